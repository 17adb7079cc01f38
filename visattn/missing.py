"""Packages that only some parts of visattn need: where one is missing, say what to install."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

# What is imported, and what pip calls it. torch and timm, with all that they need, are enough for the rest.
PACKAGES = {
    "albumentations": "albumentations",
    "cv2": "opencv-python-headless",
    "docstring_parser": "jsonargparse[signatures]",
    "jsonargparse": "jsonargparse[signatures]",
    "lightning": "lightning",
    "matplotlib": "matplotlib",
    "pytorch_grad_cam": "grad-cam",
    "rich": "rich",
    "scipy": "scipy",
    "sklearn": "scikit-learn",
    "tensorboard": "tensorboard",
    "torchmetrics": "torchmetrics",
    "webdataset": "webdataset",
}


class MissingPackage(ModuleNotFoundError):  # noqa: N818 - read as prose: except MissingPackage
    """A package that this part of visattn needs is not installed."""


@contextmanager
def saying_what_to_install() -> Iterator[None]:
    """Name the package to install where one cannot be imported; also a decorator.

    >>> with saying_what_to_install():
    ...     raise ModuleNotFoundError("No module named 'cv2'", name="cv2")
    Traceback (most recent call last):
    visattn.missing.MissingPackage: this needs cv2, which is not installed: pip install opencv-python-headless
    """
    try:
        yield
    except MissingPackage:
        raise
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module not in PACKAGES:
            raise
        package = PACKAGES[module]
        quoted = f"'{package}'" if "[" in package else package  # for the shell
        raise MissingPackage(
            f"this needs {module}, which is not installed: pip install {quoted}", name=error.name
        ) from error
