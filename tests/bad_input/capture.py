"""Wrong arguments of capture."""

import timm
import torch

import visattn
from tests.bad_input.case import Call


def run(layers, name="test_vit"):
    model = timm.create_model(name).eval()
    with torch.no_grad(), visattn.capture(model, layers=layers):
        model(torch.rand(1, *model.pretrained_cfg["input_size"]))


def differentiate():
    model = timm.create_model("test_vit").eval()
    with torch.no_grad(), visattn.capture(model) as maps:
        score = model(torch.rand(1, 3, 160, 160)).sum()
    maps.gradients(score)


def enter(model, layers=None):
    with visattn.capture(model, layers=layers):
        pass


CASES = [
    Call("unknown layer", lambda: run("blocks.0.atn"), "did you mean 'blocks.0.attn'"),
    Call(
        "unknown layer, nothing run", lambda: enter(timm.create_model("test_vit"), "blocks.9.attn"), "unknown attention"
    ),
    Call("a pattern that fits nothing", lambda: run("layers.*"), "unknown attention layer 'layers.*'"),
    Call("one of several is unknown", lambda: run(["blocks.0.attn", "blocks.0.at"]), "'blocks.0.at'"),
    Call("a module without attention", lambda: run("blocks.0.mlp"), "there was no attention in 'blocks.0.mlp'"),
    Call("a second use that is not there", lambda: run("blocks.0.attn#2"), "no attention in 'blocks.0.attn#2'"),
    Call("a number too large", lambda: run(6), "the model has 6 attention layers, numbered from 0; there is no 6"),
    Call("a number too small", lambda: run([0, -7]), "there is no -7"),
    Call("a model without attention", lambda: run(0, "test_resnet"), "the model has 0 attention layers"),
    Call(
        "a layer of a model without attention",
        lambda: run("layer1", "test_resnet"),
        "there was no attention in 'layer1'",
    ),
    Call(
        "left but not entered",
        lambda: visattn.capture(timm.create_model("test_vit")).__exit__(None, None, None),
        "capture is left without having been entered",
        RuntimeError,
    ),
    Call("no layers", lambda: run([]), "layers is empty"),
    Call("a fraction", lambda: run(1.5), "names, patterns or numbers, got 1.5", TypeError),
    Call("a truth value", lambda: run(True), "names, patterns or numbers, got True", TypeError),
    Call("nothing in a list", lambda: run([None]), "names, patterns or numbers, got None", TypeError),
    Call("bytes", lambda: run(b"blocks.0.attn"), "names, patterns or numbers, got b'blocks.0.attn'", TypeError),
    Call("a network", lambda: run(timm.create_model("test_vit")), "patterns or numbers, got VisionTransf", TypeError),
    Call("the name of a model", lambda: enter("test_vit"), "an nn.Module, got str", TypeError),
    Call("gradients of a pass without", differentiate, "'blocks.0.attn' was made without gradients"),
]
