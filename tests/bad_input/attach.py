"""Networks, places and checkpoints that do not fit."""

import timm
import torch
from torch import nn

import visattn
from tests.bad_input.case import Call


def network() -> nn.Module:
    return timm.create_model("test_resnet", num_classes=2)


def attach(*arguments, **options):
    return lambda: visattn.attach(network(), *arguments, **options)


def endless():
    state = {}
    state["model"] = state
    return state


def load(state):
    return lambda: visattn.load_state_dict(network(), state)


class Lazy(nn.Module):
    """A network whose shapes come with the first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.LazyConv2d(8, 3), nn.ReLU())

    def forward(self, x):
        """Features."""
        return self.layers(x)


def on_meta() -> nn.Module:
    with torch.device("meta"):
        return network()


class InPlace(nn.Module):
    """Changes what it is given."""

    def forward(self, x):
        """Twice the map."""
        return x.mul_(2)


class Refusing(nn.Module):
    """Cannot be run."""

    def forward(self, x):
        """Nothing."""
        raise KeyError(len(x))


def vit(at):
    return lambda: visattn.attach(timm.create_model("test_vit"), "patch", at=at, score="cosine")


def named_twice() -> nn.Module:
    shared = nn.Conv2d(8, 8, 3, padding=1)
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), shared, shared)


class Cube(nn.Sequential):
    """Maps of 8 x 8 pixels and 8 channels, for images of 32 x 32 and no others."""

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(3, 8, 4, 4), nn.ReLU())

    def forward(self, x):
        """The maps."""
        if x.shape[-1] != 32:
            raise ValueError("too large")
        return super().forward(x)


CASES = [
    Call(
        "attach where channels cannot be told from rows",
        lambda: visattn.attach(Cube(), "se", at="1", example=torch.rand(1, 3, 32, 32)),
        "'1' has maps of 8 x 8 x 8, of which nobody can tell which number is that of the channels: larger images",
    ),
    Call(
        "detach an attached layer alone",
        lambda: visattn.detach(visattn.attach(network(), "se", at="layer1").layer1),
        "a block is attached to this very module: detach it from the network",
    ),
    Call(
        "attach to a module by its second name",
        lambda: visattn.attach(named_twice(), "se", at=["1", "2"], example=torch.rand(1, 3, 32, 32)),
        "'2' is the same module as '1': name that one",
    ),
    Call("stack in words", attach("se", "layer1", stack="no"), "stack must be True or False, got 'no'", TypeError),
    Call(
        "pretrained in words",
        lambda: visattn.create_model("test_resnet", pretrained="no"),
        "pretrained must be True or False, got 'no'",
        TypeError,
    ),
    Call(
        "pixels for an example",
        attach("se", "layer1", example=torch.zeros(1, 3, 64, 64, dtype=torch.uint8)),
        "example is a batch of images (B, C, H, W) of floating-point numbers, got torch.uint8",
        TypeError,
    ),
    Call(
        "a function for a distribution",
        lambda: visattn.attach(timm.create_model("test_vit"), "patch", distribution=torch.softmax),
        "distribution is a name, got",
        TypeError,
    ),
    Call("patch a place of no type", vit(3), "at is a name, or a list of names", TypeError),
    Call("patch nothing", vit([]), "at is empty"),
    Call("patch one place of two", vit(["blocks.0", "blocks.99"]), "no attention matches 'blocks.99'"),
    Call("a block elsewhere", attach("se", device="meta"), "a block has the device of the network", TypeError),
    Call("a block of another type", attach("se", dtype=torch.float16), "a block has the dtype of the", TypeError),
    Call("a block that works in place", attach(lambda channels: InPlace()), "the map that it is given, in place"),
    Call("a block that cannot be run", attach(lambda channels: Refusing()), "the block does not take a map of (2, "),
    Call("attach to no network", lambda: visattn.attach(5, "se"), "attach takes a network, got int", TypeError),
    Call("detach from no network", lambda: visattn.detach(5), "takes a network, got int", TypeError),
    Call("attach to a lazy network", lambda: visattn.attach(Lazy(), "se"), "has no shape yet (a lazy module)"),
    Call("attach to a place of no type", attach("se", at=5), "at is a name, or a list of names", TypeError),
    Call("attach to places of no type", attach("se", at=[5]), "at is a name, or a list of names", TypeError),
    Call("attach a block of no type", attach(5), "a block is a name or a function", TypeError),
    Call("attach no block", attach(None), "a block is a name or a function", TypeError),
    Call("start in no known way", attach("se", init="zero"), "init is 'identity' or 'paper', got 'zero'"),
    Call("start in a list of ways", attach("se", init=["paper"]), "init is 'identity' or 'paper'"),
    Call(
        "an example of no type",
        attach("se", example=5),
        "example is a batch of images (B, C, H, W), got int",
        TypeError,
    ),
    Call("an example of one number", attach("se", example=torch.zeros(())), "(B, C, H, W), got a tensor ()", TypeError),
    Call(
        "a sparse example",
        attach("se", example=torch.zeros(1, 3, 64, 64).to_sparse()),
        "of floating-point numbers, got a tensor that is not dense",
        TypeError,
    ),
    Call("load a list", load([]), "a state dict is a dictionary of tensors by name, got list", TypeError),
    Call("load nothing", load({}), "this is no state dict, a dictionary of tensors by name: it is empty"),
    Call(
        "load numbers", load({"epoch": 5}), "this is no state dict, a dictionary of tensors by name: 'epoch' is a int"
    ),
    Call("load what contains itself", load(endless()), "this is no state dict, a dictionary of tensors by name"),
    Call("load other weights", load({"a": torch.zeros(1)}), "does not fit the model, which stays as it was: missing"),
    Call(
        "load too large numbers into half precision",
        lambda: visattn.load_state_dict(
            network().half(), {**network().state_dict(), "fc.bias": torch.tensor([1.0, 1e30])}
        ),
        "which stays as it was: too large for the type of the model: 1 (fc.bias (torch.float16))",
    ),
    Call("load into nothing", lambda: visattn.load_state_dict(on_meta(), network().state_dict()), "on the meta device"),
]
