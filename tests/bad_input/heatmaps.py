"""Wrong questions about what a model looks at."""

import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import timm
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import visattn
from tests.bad_input.case import Call, Command
from visattn.files import to_json
from visattn.heatmaps import METHODS, attention_heads, look_at, on_mask
from visattn.heatmaps.balanced import balanced
from visattn.heatmaps.request import MethodResult


def explain(
    method: str = "gradcam",
    *,
    name: str = "test_resnet",
    number: int = 3,
    side: tuple[int, int] = (64, 64),
    **options: object,
) -> object:
    return visattn.explain(timm.create_model(name, num_classes=number), torch.zeros(1, 3, *side), method, **options)


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


def encode(target: object) -> object:
    return visattn.explain(timm.create_model("test_resnet", num_classes=0), torch.rand(1, 3, 64, 64), target=target)


def fail(_output: object) -> torch.Tensor:
    raise KeyError("a")


def examine(images: object, methods: object = "gradcam", **options: object) -> object:
    return visattn.examine(timm.create_model("test_resnet", num_classes=3), images, methods, **options)


def own_method(returned: object) -> object:
    """What an own method returns; the registry is as before."""
    visattn.register_method("mine")(lambda request: returned)
    try:
        return explain("mine")
    finally:
        del METHODS._entries["mine"]


def map_of(name: object) -> object:
    model = timm.create_model("test_vit")
    with visattn.capture(model) as maps:
        model(torch.zeros(1, 3, 160, 160))
    return maps[name]


MASKS = torch.ones(2, 5, 5)
BLACK = np.zeros((64, 64, 3), np.uint8)
SITE = "heatmap --weights model --image a.png --out site"


def look(model: Callable[[], nn.Module], method: str) -> Callable[[], object]:
    return lambda: visattn.explain(model(), torch.rand(1, 3, 160, 160), method)


def decorated() -> nn.Module:
    model = timm.create_model("test_resnet", num_classes=4).eval()
    model.forward = torch.inference_mode()(model.forward)
    return model


def roll_out_quantised() -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch wants to be rid of it, and has no gradients for it
        model = torch.ao.quantization.quantize_dynamic(timm.create_model("test_vit").eval(), {nn.Linear})
        return visattn.explain(model, torch.rand(1, 3, 160, 160), "rollout")


def balanced_twice() -> object:
    network = timm.create_model("test_resnet")
    with balanced(network), balanced(network):
        return None


def explained_inside() -> object:
    with balanced(timm.create_model("test_resnet")):
        return explain("gradcam")


def single_heads(**options: object) -> object:
    return attention_heads(timm.create_model("test_vit"), torch.zeros(1, 3, 160, 160), **options)


def examine_heads(**options: object) -> object:
    return visattn.examine(timm.create_model("test_vit", num_classes=3), BLACK, "rollout", **options)


CASES = [
    *(
        Call(f"{method} of a decorated network", look(decorated, method), "which its layers and their gradients")
        for method in ("gradcam", "fullgrad")
    ),
    Call("rollout of a quantised network", roll_out_quantised, "it is quantised: which part of the image"),
    *(
        Call(
            f"examine, {key} is no function",
            lambda key=key: visattn.examine(timm.create_model("test_resnet"), "a.png", **{key: 5}),
            f"{key} must be a function, got 5",
            TypeError,
        )
        for key in ("note", "track")
    ),
    *(
        Call(
            f"where {method!r} looks",
            lambda method=method: look_at(timm.create_model("test_resnet"), torch.zeros(1, 3, 64, 64), method),
            says,
        )
        for method, says in (
            ("gradcan", "'gradcan' is not a class activation map: did you mean 'gradcam'"),
            ("rollout", "'rollout' is not a class activation map: "),
            (["gradcam"], "['gradcam'] is not a class activation map: "),
        )
    ),
    Call("fixations of NaN", lambda: on_mask(torch.full((2, 4, 2), torch.nan), MASKS), "points must be finite"),
    *(
        Call(f"fixations {shape}", lambda shape=shape: on_mask(torch.rand(shape), MASKS), f"got {shape} and (2, 5, 5)")
        for shape in ((2, 3), (3, 4, 2), (2, 4, 3))
    ),
    *(
        Call(f"masks {masks!r}", lambda masks=masks: on_mask(torch.rand(2, 4, 2), masks), "masks (B, H, W), got (2, 4")
        for masks in (torch.ones(2, 0, 5), torch.ones(5, 5), None)
    ),
    Call("balanced nothing", lambda: balanced(None).__enter__(), "balanced takes a network, got NoneType", TypeError),
    Call("balanced twice", balanced_twice, "another balanced backward pass cannot be asked for inside balanced(...)"),
    Call("a heatmap in a balanced pass", explained_inside, "heatmaps and scores cannot be asked for inside balanced"),
    Call("balanced in words", lambda: explain(balanced="no"), "needs balanced to be True or False, got 'no'"),
    Call("balanced by number", lambda: explain(balanced=1), "needs balanced to be True or False, got 1"),
    Call("a detached function", lambda: explain(target=lambda y: y.detach()[:, 0]), "numbers without gradients"),
    Call("a complex map", lambda: own_method(MethodResult(torch.ones(1, 3, 3) * 1j)), "must be floating-p", TypeError),
    Call("a complex vector", lambda: encode(torch.ones(96) * 1j), "must hold real floating-point numbers"),
    Call(
        "a nested vector",
        lambda: encode(torch.nested.nested_tensor([torch.ones(96)], layout=torch.jagged)),
        "must hold real floating-point numbers",
    ),
    Call("five maps", lambda: own_method(MethodResult(torch.rand(5, 3, 3))), "1 of them, got (5, 3, 3)"),
    Call("a map too deep", lambda: own_method(MethodResult(torch.rand(1, 1, 3, 3))), "got (1, 1, 3, 3)"),
    Call("a map of nothing", lambda: own_method(MethodResult(torch.rand(1, 0, 0))), "got (1, 0, 0)"),
    Call("no map", lambda: own_method(None), "method 'mine' must return a MethodResult with maps, got None", TypeError),
    Call("no function", lambda: visattn.register_method("mine")(3), "needs a function of a request", TypeError),
    *(
        Call(f"a method {name}", lambda run=run: visattn.register_method("mine")(run), "method 'mine' must", TypeError)
        for name, run in (
            ("of nothing", lambda: None),
            ("of two things", lambda request, other: None),
            ("with an option that must be given", lambda request, *, share: None),
            ("without a signature", max),
        )
    ),
    Call("a method named all", lambda: visattn.register_method("all")(len), "cannot be named 'all'"),
    Call("a second auto", lambda: visattn.register_method("auto")(len), "'auto' stands for the best of all methods"),
    Call("no such map", lambda: map_of("blocks.0.att"), "no map 'blocks.0.att': did you mean", KeyError),
    Call("a map by number", lambda: map_of(0), "no map 0: known: ", KeyError),
    Call("signed in words", lambda: explain("fullgrad", signed="no"), "signed must be True or False", TypeError),
    Call("signed by NaN", lambda: explain("fullgrad", signed=float("nan")), "signed must be True or False", TypeError),
    Call("frames in words", lambda: explain("rollout", frames="no"), "frames must be True or False", TypeError),
    Call("scores in words", lambda: examine(BLACK, score="no"), "score must be True or False, got 'no'", TypeError),
    Call("five names for three", lambda: examine(BLACK, classes=[*"abcde"]), "5 names for the 3 classes of the model"),
    Call("no images at all", lambda: examine([]), "there are no images: the list is empty"),
    Call("methods by number", lambda: examine(BLACK, 5), "methods must be a name or a list of names, got 5", TypeError),
    Call("a class per image", lambda: examine([BLACK, BLACK], target=[0, 1]), "target is one class for all images"),
    *(
        Call(f"{name} {options}", lambda do=do, options=options: do(**options), says, error)
        for name, do in (("single heads", single_heads), ("examine", examine_heads))
        for options, says, error in (
            ({"heads": []}, "heads is empty: name at least one", ValueError),
            ({"layers": []}, "layers is empty: name at least one", ValueError),
            ({"layers": "blocks.0.atn"}, "unknown attention layer 'blocks.0.atn': did you mean", ValueError),
            ({"heads": 9}, "there is no head 9", ValueError),
            ({"heads": "first"}, "a head is a number, got 'first'", TypeError),
            ({"heads": 0.5}, "a head is a number, got 0.5", TypeError),
        )
    ),
    Call("opacity in words", lambda: explain().overlay(True), "opacity is a number from 0 to 1, got True"),
    Call("no methods at all", lambda: examine(BLACK, []), "no methods: name some"),
    Call("tensors for files", lambda: examine(torch.rand(3, 64, 64)), "a uint8 array (H, W, 3) or (H, W)", TypeError),
    Call("a billion masks", lambda: explain("rise", masks=10**12), "masks must be at most 100000"),
    Call("a billion cells", lambda: explain("rise", cells=10**9), "cells must be at most 64"),
    Call("masks all the same", lambda: explain("rise", share=1e-30), "all 512 masks are the same"),
    Call("too many cells", lambda: explain("occlusion", side=(320, 320), cells=320), "320 x 320 cells are too many"),
    Call("a billion samples", lambda: explain("smoothgrad", samples=10**9), "samples must be at most 10000"),
    Call("a billion steps", lambda: explain("integrated_gradients", steps=10**9), "steps must be at most 10000"),
    Call("noise without end", lambda: explain("smoothgrad", noise=1e300), "noise is a share of the range of the image"),
    Call("a function that fails", lambda: explain(target=fail), "the target function fails (KeyError 'a' in"),
    Call("failing without gradients", lambda: explain("rise", target=fail), "the target function fails (KeyError"),
    Call(
        "a function of nothing",
        lambda: explain(target=lambda y: torch.ones(len(y), requires_grad=True)),
        "the target function does not use what the model returns",
    ),
    Call("a function for no use", lambda: explain("edge", target=len), "edge is the same whatever the target"),
    Call("a sparse vector", lambda: encode(torch.ones(96).to_sparse()), "the target vector must be dense"),
    Call("a vector of no numbers", lambda: encode(torch.ones(96, device="meta")), "the target vector must be dense"),
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
