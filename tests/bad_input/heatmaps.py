"""Wrong questions about what a model looks at."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import timm
import torch
from safetensors.torch import load_file, save_file

import visattn
from tests.bad_input.case import Call, Command
from visattn.files import to_json


def explain(method: str = "gradcam", *, name: str = "test_resnet", number: int = 3, **options: object) -> object:
    return visattn.explain(timm.create_model(name, num_classes=number), torch.zeros(1, 3, 64, 64), method, **options)


def encoder(folder: Path) -> None:
    visattn.save_model(timm.create_model("test_resnet", num_classes=0), folder / "encoder")


def broken(folder: Path) -> None:
    shutil.copytree(folder / "model", folder / "broken")
    tensors = load_file(folder / "broken" / "model.safetensors")
    save_file({key: value.new_full(value.shape, torch.nan) if value.is_floating_point() else value
               for key, value in tensors.items()}, folder / "broken" / "model.safetensors")  # fmt: skip


def website(folder: Path) -> None:
    (folder / "site").mkdir()
    (folder / "site" / "index.html").write_text("mine")


def foreign_manifest(folder: Path) -> None:
    (folder / "site").mkdir()
    (folder / "site" / "manifest.json").write_text('{"name": "a web application"}')


def manifest(make: Callable[[Path], object]) -> Callable[[Path], None]:
    """Something else in the place of a manifest."""

    def prepare(folder: Path) -> None:
        (folder / "site").mkdir()
        make(folder / "site" / "manifest.json")

    return prepare


def built_in_inference_mode() -> object:
    with torch.inference_mode():
        model = timm.create_model("test_resnet", num_classes=3)
    return visattn.explain(model, torch.zeros(1, 3, 64, 64), "input_gradient")


SITE = "heatmap --weights model --image a.png --out site"
CASES = [
    *(Command(SITE, "did not write ('manifest.json')", prepare=manifest(make))
      for make in (os.mkfifo, lambda file: file.symlink_to("/dev/zero"), lambda file: file.write_text("[" * 100_000))),
    Call("names in a set", lambda: explain(classes={"a", "b", "c"}), "classes is a list of names", TypeError),
    Call("names one by one", lambda: explain(classes=iter("abc")), "classes is a list of names", TypeError),
    Call("a huge seed", lambda: explain("random", seed=10**30), "a seed is a whole number of 64 bits"),
    Call("a model of inference mode", built_in_inference_mode, "the model was built inside torch.inference_mode()"),
    Call("number of a layer", lambda: explain(layer=3), "layer is the name of a module, such as", TypeError),
    Call("list of layers", lambda: explain(layer=["layer1"]), "layer is the name of a module", TypeError),
    Call("class method without classes", lambda: explain(number=0), "it explains a class, and the model has none"),
    Call("target without classes", lambda: explain("eigencam", number=0, target=3), "the model has no classes"),
    Call("names without classes", lambda: explain("edge", number=0, classes=["a"]), "1 names for the 0 classes"),
    Call("NaN in JSON", lambda: to_json({"share": float("nan")}), "not finite (NaN or infinite)"),
    Command("predict --weights encoder --image a.png", "the model has no classes", prepare=encoder),
    Command("heatmap --weights encoder --image a.png --method gradcam", "the model has none", prepare=encoder),
    Command("heatmap --weights encoder --image a.png --target 3", "the model has no classes", prepare=encoder),
    Command("heatmap --weights broken --image a.png", "are not finite", prepare=broken),
    Command("predict --weights broken --image a.png --json", "is not finite", prepare=broken),
    Command("heatmap --weights model --image a.png --out site", "did not write ('index.html')", prepare=website),
    Command(
        "heatmap --weights model --image a.png --out site", "did not write ('manifest.json')", prepare=foreign_manifest
    ),
    Command("heatmap --weights model --image a.png --out a.png", "cannot write to 'a.png'"),
    Command("heatmap --weights model --image a.png --out /dev/null", "cannot write to '/dev/null'"),
    Command("heatmap --weights model --image a.png --device meta", "device 'meta' cannot be used"),
    Command("heatmap --weights model --image a.png --device xla", "device 'xla' cannot be used"),
    Command("heatmap --weights model --image a.png --device CPU", "device 'CPU' cannot be used"),
    Command("heatmap --weights model --image a.png --method ' , '", "--method is empty"),
    Command("heatmap --weights model --image a.png --heads 1.5", "--heads must be numbers or all, got '1.5'"),
    Command("heatmap --weights model --image a.png --target cat,dog", "unknown class 'cat,dog': did you mean"),
    Command("heatmap --weights model --image a.png --target -1", "unknown class '-1'"),
    Command("heatmap --weights model --image a.png --out photos", "did not write ('cat' and 1 more)"),
]  # fmt: skip
