"""Class activation maps of any backbone: the grad-cam package's family behind one adapter.

The package wants a layer whose output is (B, C, H, W). Here it is given a probe: an identity that sits behind the
chosen module for the length of a call and sees its output as a map, whatever the arrangement (NCHW, NHWC, tokens with a
prefix). Gradients are taken to the probe only, so that parameters keep their ``.grad``.

==============  =====================================================================================
``gradcam``     Selvaraju et al. 2017, https://arxiv.org/abs/1610.02391
``gradcam++``   Chattopadhyay et al. 2018, https://arxiv.org/abs/1710.11063
``hirescam``    Draelos & Carin 2020, https://arxiv.org/abs/2011.08891
``xgradcam``    Fu et al. 2020, https://arxiv.org/abs/2008.02312
``layercam``    Jiang et al. 2021, https://doi.org/10.1109/TIP.2021.3089943
``eigencam``    Muhammad & Yeasin 2020, https://arxiv.org/abs/2008.00299
``scorecam``    Wang et al. 2020, https://arxiv.org/abs/1910.01279: a forward pass per channel
``ablationcam`` Desai & Ramaswamy 2020, https://doi.org/10.1109/WACV45572.2020.9093360: a forward pass per channel
==============  =====================================================================================
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import FunctionType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from visattn.heatmaps.methods.base import register_method
from visattn.heatmaps.request import MethodResult, Request, backward_pass
from visattn.heatmaps.scaling import FINE
from visattn.heatmaps.watch.cache import cached
from visattn.heatmaps.watch.pooled import pooled_place
from visattn.listing import shown
from visattn.models.layout import Place
from visattn.models.places import choose, survey_places
from visattn.models.survey import Survey
from visattn.models.wrapper import replace_slot
from visattn.modules import HookOfThread
from visattn.registry import suggest

COARSEST = 4  # rows and columns that the map which the head reads must have
AT_THE_HEAD = frozenset({"gradcam", "hirescam", "xgradcam", "eigencam", "ablationcam"})  # see look_at

BY_GRADIENTS = frozenset({"gradcam", "gradcam++", "hirescam", "xgradcam", "layercam"})

# The package's class for each method.
PACKAGE = {
    "gradcam": "GradCAM",
    "gradcam++": "GradCAMPlusPlus",
    "hirescam": "HiResCAM",
    "xgradcam": "XGradCAM",
    "layercam": "LayerCAM",
    "eigencam": "EigenCAM",
    "scorecam": "ScoreCAM",
    "ablationcam": "AblationCAM",
}


def look_at(model: nn.Module, example: Tensor, method: str = "gradcam") -> Place:
    """The feature map that a method looks at: one that is deep, still has some resolution, and a say in the output.

    Most methods look at the map that the head reads, where the score is nearly a weighted sum of channels, unless it
    has fewer than 4 rows or columns (a ResNet-18 pools 2x2 of a 64-pixel image). ``gradcam++`` and ``layercam``, which
    weigh every place by its own gradient, look at the end of a stage: the gradient of a map that is averaged is the
    same everywhere, and tells them nothing of places. So does ``scorecam``, whose masks are better there, and fewer.
    Of the stages it is the deepest with at least 7 rows and columns. Where a norm is all that reads the map place by
    place, as when a class token looks at it, ``hirescam`` looks behind the norm: a norm forgets the length of its
    input, so that map and gradient are orthogonal before it, and their product is zero at every place. (With a balanced
    backward pass they are not.)
    What this was measured on is in ``docs/where_cams_look.md``.

    Args:
        model: any network.
        example: a batch of images of the size it will be given.
        method: one of the family.

    >>> import timm
    >>> model = timm.create_model("mobilenetv2_100")
    >>> [look_at(model, torch.rand(1, 3, 224, 224), method).name for method in ("gradcam", "layercam")]
    ['bn2', 'blocks.6']
    >>> look_at(model, torch.rand(1, 3, 64, 64)).name
    'blocks.2'
    """
    if method not in tuple(PACKAGE):
        raise ValueError(f"{shown(method)} is not a class activation map: {suggest(method, PACKAGE)}")
    return cached(model, example, f"place {_kind(method)}", lambda: _look_at(model, example, method))


def _kind(method: str) -> str:
    """Methods of one kind look at the same place."""
    return method if method == "hirescam" else "head" if method in AT_THE_HEAD else "stage"


def _look_at(model: nn.Module, example: Tensor, method: str) -> Place:
    found = survey_places(model, example)
    place = pooled_place(model, found) if method in AT_THE_HEAD else None
    if place is None or min(place.size) < COARSEST:
        places = choose(model, found, "stages")
        fine = [place for place in places if min(place.size) >= FINE]
        place = fine[-1] if fine else max(places, key=lambda place: min(place.size))
    return _behind_norm(place, found) if method == "hirescam" else place


def _behind_norm(place: Place, found: Survey) -> Place:
    """The same map behind the norm that reads it, if it is one that forgets lengths; see :func:`look_at`."""
    names = [visit.name for visit in found.visits]
    behind = names[names.index(place.name) + 1 :]
    kind = type(found.modules[behind[0]]) if behind else nn.Module
    forgets = "norm" in kind.__name__.lower() and not issubclass(kind, nn.modules.batchnorm._NormBase)
    return found.places()[behind[0]] if forgets else place


def place_at(model: nn.Module, example: Tensor, layer: str) -> Place:
    """The feature map behind a module of this name."""
    if not isinstance(layer, str):
        raise TypeError(f"layer is the name of a module, such as {look_at(model, example).name!r}, got {layer!r}")
    if not layer:
        raise ValueError(f"layer is empty: name a module, such as {look_at(model, example).name!r}")
    return cached(model, example, f"place at {layer}", lambda: _place_at(model, example, layer))


def _place_at(model: nn.Module, example: Tensor, layer: str) -> Place:
    (place, *others) = choose(model, survey_places(model, example), layer)
    if others:
        raise ValueError(f"{layer!r} are {1 + len(others)} feature maps: name one")
    return place


class Probed(nn.Module):
    """A model with a probe behind one of its modules."""

    def __init__(self, model: nn.Module, place: Place) -> None:
        super().__init__()
        self.model = model
        self.place = place
        self.probe: nn.Module = nn.Identity()
        self.map: Tensor | None = None
        self.rows: Callable[[Any], Tensor] | None = None  # what the package is to see of the output
        self.dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), None)

    def forward(self, images: Tensor) -> Any:
        """What the model returns, or what the package is to see of it."""
        layout, size = self.place.layout, (images.shape[-2], images.shape[-1])

        def through(output: Tensor) -> Tensor:
            self.map = self.probe(layout.to_map(output, layout.size(output.shape, size)))
            return layout.from_map(self.map, output)

        def hook(_module: nn.Module, _args: Any, output: Any) -> Any:
            return replace_slot(output, self.place.index, through)

        handle = self.model.get_submodule(self.place.name).register_forward_hook(HookOfThread(hook))
        try:
            output = self.model(images.to(self.dtype))  # the package multiplies them by masks in single precision
            return output if self.rows is None else self.rows(output)
        finally:
            handle.remove()


def why_no_cam(model: nn.Module, images: Tensor) -> str | None:
    """Why there is no feature map to look at; None if there is."""
    try:
        look_at(model, images)
    except ValueError as error:
        return str(error)
    return None


def cam(request: Request, method: str, *, layer: str | None = None) -> MethodResult:
    """A class activation map.

    Args:
        request: model and images.
        method: one of :data:`PACKAGE`.
        layer: name of the module whose output to look at; see :func:`look_at` for the default.
    """
    return _cam(request, method, layer, balanced=False)


def gradient_cam(request: Request, method: str, *, layer: str | None = None, balanced: bool = False) -> MethodResult:
    """A class activation map whose channels are weighed by gradients.

    Args:
        request: model and images.
        method: one of :data:`BY_GRADIENTS`.
        layer: name of the module behind which to look; see :func:`look_at` for what is chosen unless it is given.
        balanced: take gradients from a balanced backward pass (:mod:`visattn.heatmaps.balanced`).
    """
    return _cam(request, method, layer, balanced=balanced)


def _cam(request: Request, method: str, layer: str | None, *, balanced: bool) -> MethodResult:
    model, images = request.model, request.images
    if layer is not None:
        place = place_at(model, images, layer)
    else:
        place = look_at(model, images, "gradcam" if balanced and method == "hirescam" else method)
    return MethodResult(_maps(request, place, method, balanced=balanced), (place.name,))


for _name in PACKAGE:
    _method = register_method(
        _name,
        why_not=why_no_cam,
        looks_at_layers=True,
        of_class=_name != "eigencam",
        slow=_name in ("scorecam", "ablationcam"),  # a pass for every channel
    )
    _method(partial(gradient_cam if _name in BY_GRADIENTS else cam, method=_name))


def _maps(request: Request, place: Place, method: str, *, balanced: bool = False) -> Tensor:
    """(B, height, width) at the resolution of the place."""
    import pytorch_grad_cam

    probed = Probed(request.model, place)
    with torch.enable_grad(), backward_pass(request, is_balanced=balanced):
        request.run(model=probed, images=request.images.detach().requires_grad_())
        activation = probed.map
        assert activation is not None
        gradient = torch.autograd.grad(request.score(), activation)[0] if method in BY_GRADIENTS else activation
    options = {"ablation_layer": _zeroing()} if method == "ablationcam" else {}
    package = _without_progress_bars(getattr(pytorch_grad_cam, PACKAGE[method]))(probed, [probed.probe], **options)
    # On reduced precision the package's NumPy would fail.
    arrays = [x.detach().float().cpu().numpy() for x in (activation, gradient)]
    probed.rows = partial(request.aim.rows, request.model) if request.has_score() else None
    targets = [_number(request, image) for image in range(len(request.images))] if request.has_score() else []
    with torch.no_grad():
        maps = package.get_cam_image(request.images, probed.probe, targets, *arrays, False)
    package.activations_and_grads.release()
    return torch.as_tensor(maps).clamp(min=0)


def _number(request: Request, image: int) -> Callable[[Tensor], Tensor]:
    """What is explained of an image, given a row of the output for a changed one."""
    return lambda row: request.aim.numbers(row[None], request.target, slice(image, image + 1))[0]


def _without_progress_bars(package: Any) -> Any:
    """A subclass of the package's class that draws no progress bars."""
    loop = package.get_cam_weights
    names = {**loop.__globals__, "tqdm": SimpleNamespace(tqdm=lambda steps: steps)}
    quiet = FunctionType(loop.__code__, names, loop.__name__, loop.__defaults__, loop.__closure__)
    return type(package.__name__, (package,), {"get_cam_weights": quiet})


def _zeroing() -> nn.Module:
    """Ablation as in its paper: a channel becomes zero. (The package subtracts ten million from signed channels.)"""
    from pytorch_grad_cam.ablation_layer import AblationLayer

    class Zeroing(AblationLayer):
        def __call__(self, x: Tensor) -> Tensor:
            output = self.activations.to(x)
            output[torch.arange(len(output)), torch.as_tensor(self.indices[: len(output)]).long()] = 0
            return output

    return Zeroing()
