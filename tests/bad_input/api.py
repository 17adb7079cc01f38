"""Wrong arguments in Python."""

import numpy as np
import timm
import torch
from PIL import Image
from torch import nn

import visattn
from tests.bad_input.case import Call
from visattn.core import (
    Attention,
    AttentionPool,
    MultiHeadAttention,
    entmax15,
    scopes,
    scores,
    sigmoid,
    softmax,
    sparsemax,
)
from visattn.cost import bench_blocks, bench_budget
from visattn.hard import RAM, glimpse, policy_term
from visattn.heatmaps import attention_heads, relate

TOKENS = torch.zeros(2, 5, 8)


def resnet(classes=5):
    return timm.create_model("test_resnet", num_classes=classes)


def create(*arguments, **options):
    return lambda: visattn.create_model(*arguments, **options)


def attend(*tokens, **options):
    return lambda: Attention(8, **options)(*tokens)


def attach(block, at="layer1", **options):
    """Refused, and the network is as it was."""

    def do():
        model = resnet().eval()
        keys = list(model.state_dict())
        try:
            visattn.attach(model, block, at, **options)
        finally:
            assert list(model.state_dict()) == keys
            assert not visattn.attachments(model)

    return do


def load(change):
    """Refused, and no weight has changed."""

    def do():
        model, state = resnet(), resnet().state_dict()
        before = {key: value.clone() for key, value in model.state_dict().items()}
        try:
            visattn.load_state_dict(model, change(state))
        finally:
            assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())

    return do


def save(model=resnet, **options):
    return lambda: visattn.save_model(model(), "nowhere", **options)


def look(images, *, method="forward"):
    return lambda: getattr(RAM(size=4, glimpses=2).eval(), method)(images)


class Twice(nn.Module):
    """Two maps instead of one."""

    def forward(self, x):
        """The map and the map."""
        return x, x


def broken(channels):
    convolution = nn.Conv2d(channels, channels, 1)
    nn.init.constant_(convolution.weight, torch.nan)
    return convolution


NO_NETWORKS = [None, "test_resnet", 5, [nn.Identity()], nn.Linear]
TAKE_NETWORKS = {
    "attachments": visattn.attachments,
    "detach": visattn.detach,
    "load_state_dict": lambda model: visattn.load_state_dict(model, {}),
    "save_model": lambda model: visattn.save_model(model, "nowhere"),
    "list_methods": visattn.list_methods,
}

IMAGES = torch.zeros(1, 3, 64, 64)
HUGE = {"400 digits": 10**400, "minus 400 digits": -(10**400), "5,000 digits": 10**5000}  # too large for a float


def predict(images=IMAGES, **options):
    return lambda: visattn.predict(resnet(), images, **options)


def without_numbers(do):
    """On torch's default device for tensors without numbers."""

    def call():
        with torch.device("meta"):
            return do()

    return call


OPTIONS_OF_TIMM = [
    ({"global_pool": "foo"}, "'test_vit' cannot be built with {'global_pool': 'foo'} (AssertionError"),
    ({"global_pool": 5}, "cannot be built with {'global_pool': 5}"),
    ({"img_size": "x"}, "img_size is a whole number from 1 up, got 'x'"),
    ({"img_size": 0}, "img_size is a whole number from 1 up, got 0"),
    ({"img_size": (32, -1)}, "img_size is a whole number from 1 up, got -1"),
    ({"drop_path_rate": "x"}, "drop_path_rate is a number from 0 to 1, got 'x'"),
    ({"drop_path_rate": 2}, "drop_path_rate is a number from 0 to 1, got 2"),
    ({"drop_rate": float("nan")}, "drop_rate is a number from 0 to 1, got nan"),
    ({"drop_rate": 10**400}, "drop_rate is a number from 0 to 1, got 1000"),
    ({"img_size": np.array([64, 64])}, "img_size is a whole number from 1 up, got array([64, 64])"),
    ({"num_heads": 0}, "cannot be built with {'num_heads': 0} (ZeroDivisionError"),
    ({"embed_dim": 7}, "cannot be built with {'embed_dim': 7} (AssertionError"),
    ({"patch_size": 0}, "cannot be built with {'patch_size': 0}"),
    ({"depth": -1}, "cannot be built with {'depth': -1}"),
    ({"act_layer": "foo"}, "cannot be built with {'act_layer': 'foo'} (KeyError: 'foo')"),
    ({"init": "foo"}, "init is 'identity' or 'paper', got 'foo'"),
    ({"init": 3}, "init is 'identity' or 'paper', got 3"),
    ({"features_only": "x"}, "features_only is True or False, got 'x'"),
    ({"dtype": "float32"}, "cannot be built with {'dtype': 'float32'}"),
    ({"device": "nope"}, "cannot be built with {'device': 'nope'}"),
    ({"pretrained_cfg": 3}, "cannot be built with {'pretrained_cfg': 3}"),
    ({"pretrained_cfg_overlay": 3}, "cannot be built with {'pretrained_cfg_overlay': 3}"),
    ({"checkpoint_path": "nope.pth"}, "cannot be built with {'checkpoint_path': 'nope.pth'}"),
    ({"features_only": True, "out_indices": (9,)}, "feature index 9 is out of range"),
]

CASES = [
    *(
        Call(f"{name} by default without numbers", without_numbers(do), "torch's default device is 'meta'")
        for name, do in {
            "explain": lambda: visattn.explain(timm.create_model("test_vit"), torch.zeros(1, 3, 160, 160), "rollout"),
            "list_methods": lambda: visattn.list_methods(timm.create_model("test_vit")),
            "attach": lambda: visattn.attach(timm.create_model("test_resnet", device="cpu"), "se"),
            "save_model": lambda: visattn.save_model(timm.create_model("test_resnet", device="cpu"), "nowhere"),
            "load_model": lambda: visattn.load_model("nowhere"),
            "predict": lambda: visattn.predict(timm.create_model("test_resnet", device="cpu"), IMAGES),
            "examine": lambda: visattn.examine(timm.create_model("test_resnet", device="cpu"), "nowhere.png"),
            "evaluate": lambda: visattn.evaluate(timm.create_model("test_resnet", device="cpu"), IMAGES),
            "relate": lambda: relate(timm.create_model("test_vit", device="cpu"), IMAGES),
            "attention_heads": lambda: attention_heads(timm.create_model("test_vit", device="cpu"), IMAGES),
        }.items()
    ),
    *(
        Call(f"test_vit with {options}", lambda options=options: visattn.create_model("test_vit", **options), says)
        for options, says in OPTIONS_OF_TIMM
    ),
    *(
        Call(f"predict names, {type(value)}", predict(classes=value), "classes is a list of names", TypeError)
        for value in ("abcde", b"abcde", set("abcde"), dict.fromkeys("abcde"), iter("abcde"), 5)
    ),
    *(
        Call(f"predict {name} {value!r}", predict(**{name: value}), f"{name} must be a whole number", TypeError)
        for name in ("top", "batch_size")
        for value in (True, 1.5, "1", None)
    ),
    Call("predict, prepared by a text", predict(preparation="resize"), "preparation must be a Preparation", TypeError),
    *(
        Call(f"{name}, prepared by {value!r}", lambda do=do, value=value: do(value), "preparation must be a", TypeError)
        for value in ("resize", 5)
        for name, do in {
            "evaluate": lambda value: visattn.evaluate(resnet(), IMAGES, "gradcam", "srg", preparation=value),
            "examine": lambda value: visattn.examine(resnet(), "nowhere.png", preparation=value),
        }.items()
    ),
    *(
        Call(
            f"{name} that is told by {value!r}",
            lambda name=name, value=value: bench_blocks("se", **{name: value}),
            f"{name} must be a function",
            TypeError,
        )
        for name in ("note", "track")
        for value in (5, "print")
    ),
    Call("predict no numbers", predict(IMAGES.to("meta")), "the model or the image is on the meta device"),
    Call("predict a picture of nothing", predict(Image.new("RGB", (0, 5))), "it has no pixels"),
    Call("predict somewhere", lambda: visattn.predict(".", IMAGES, device="privateuseone"), "cannot be used"),
    *(
        Call(f"whole numbers for weights, {kind}", load(change), f"of another kind: 1 (fc.weight (torch.{kind}, not")
        for kind, change in {
            "int64": lambda state: {**state, "fc.weight": state["fc.weight"].long()},
            "bool": lambda state: {**state, "fc.weight": state["fc.weight"] > 0},
            "complex64": lambda state: {**state, "fc.weight": state["fc.weight"].to(torch.complex64)},
        }.items()
    ),
    Call("save to no folder", lambda: visattn.save_model(resnet(), ""), "the path of the model is empty"),
    Call("load from no folder", lambda: visattn.load_model(""), "the path of the model is empty"),
    Call("save no numbers", save(lambda: resnet().to("meta")), "on the meta device, where weights have no values"),
    Call("weights of no such name", create("resnet18.a9_in1k"), "unknown weights 'a9_in1k' of 'resnet18'"),
    *(
        Call(f"attend to {dtype}", attend(TOKENS.to(dtype)), "query is a tensor of floating-point numbers", TypeError)
        for dtype in (torch.int64, torch.bool, torch.complex64)
    ),
    Call("weights of a list", lambda: Attention(8).weights([1.0], TOKENS), "query is a tensor (...", TypeError),
    Call("weights of other features", lambda: Attention(8).weights(TOKENS[..., :6], TOKENS), "built for queries of 8"),
    *(
        Call(f"pool of {dim}", lambda dim=dim: AttentionPool(dim), f"AttentionPool needs dim above zero, got {dim}")
        for dim in (0, -1)
    ),
    *(
        Call(f"context of {dim}", lambda dim=dim: MultiHeadAttention(8, dim), "needs context_dim above zero")
        for dim in (0, -1)
    ),
    *(
        Call(f"{each.__name__} of {value!r}", lambda each=each, value=value: each(value), "energies are", TypeError)
        for each in (softmax, sigmoid, sparsemax, entmax15)
        for value in ([1.0, 2.0], torch.tensor(1.0), torch.tensor([True]))
    ),
    Call("unknown block", lambda: visattn.create_block("cbma", 8), "did you mean 'cbam'"),
    *(
        Call(
            f"blocks like {value!r}",
            lambda value=value: visattn.list_blocks(value),
            "pattern is a name or a glob",
            TypeError,
        )
        for value in (None, 5, ["se"], b"se")
    ),
    *(
        Call(
            f"blocks of the family {value!r}",
            lambda value=value: visattn.list_blocks(family=value),
            "unknown block family",
        )
        for value in (5, ["channel"], b"channel")
    ),
    Call("channels twice", lambda: visattn.create_block("se", 8, channels=8), "has no argument 'channels'", TypeError),
    Call("a block's name twice", lambda: visattn.create_block("se", 8, name="x"), "has no argument 'name'", TypeError),
    Call("block in capitals", lambda: visattn.create_block("SE", 8), "unknown block 'SE': did you mean 'se'"),
    Call("block in bytes", lambda: visattn.create_block(b"se", 8), "unknown block b'se': did you mean 'se'"),
    *(
        Call(f"a ratio of {name}", lambda value=value: visattn.create_block("se", 8, rd_ratio=value), "a number, got ")
        for name, value in HUGE.items()
    ),
    *(
        Call(f"channels, {name}", lambda value=value: visattn.create_block("se", value), "number of channels, got ")
        for name, value in HUGE.items()
    ),
    *(
        Call(f"a budget of {name}", lambda value=value: bench_budget("test_resnet", value), "budget must be a number")
        for name, value in HUGE.items()
    ),
    Call("channels in a list", lambda: visattn.create_block("se", np.array([8, 8])), "a positive number of channels"),
    *(
        Call(f"model named {value!r}", create(value), "name is that of a model", TypeError)
        for value in (None, 5, b"resnet18")
    ),
    Call("attention of no type", create("resnet18", attn=3), "unknown attention 3"),
    *(
        Call(
            f"{name} that starts as the identity",
            create(name, init="identity"),
            f"init='identity' does not apply to {attention!r} in {base!r}",
        )
        for name, attention, base in (
            ("resnet18_halo", "halo", "resnet18"),
            ("glimpse_resnet18_sk", "sk", "resnet18"),
            ("test_vit_cosine", "cosine", "test_vit"),
        )
    ),
    Call("patch attention as in its paper", create("test_vit_cosine", init="paper"), "it takes the place of attention"),
    Call("a stride that cannot be", create("resnet18", output_stride=3), "(AssertionError in resnet.py, line"),
    Call("a start of nothing", create("test_resnet", init="paper"), "init='paper' is given, but 'test_resnet'"),
    Call(
        "a model's unknown start",
        create("test_resnet", attn="se", init="zero"),
        "init is 'identity' or 'paper', got 'zero'",
    ),
    *(
        Call(
            f"attention options {value!r}",
            create("resnet18_se", attn_options=value),
            "attn_options are options by name",
            TypeError,
        )
        for value in ([1], "rd_ratio=1", {1: 1})
    ),
    *(
        Call(f"{value!r} classes", create("test_resnet", num_classes=value), "num_classes is a whole number from 0 up")
        for value in (-1, "3", 3.0, True)
    ),
    *(
        Call(f"{value!r} colours", create("test_resnet", in_chans=value), "in_chans is a whole number from 1 up")
        for value in (0, -3, "3", 1.5)
    ),
    *(
        Call(f"{name} of {value!r}", lambda do=do, value=value: do(value), "network", TypeError)
        for name, do in TAKE_NETWORKS.items()
        for value in NO_NETWORKS
    ),
    *(
        Call(f"attend to {value!r}", attend(value), "query is a tensor (..., tokens, features)", TypeError)
        for value in (None, [1.0], np.zeros((2, 5, 8)), torch.zeros(8))
    ),
    Call("a list of keys", attend(TOKENS, [1.0]), "key is a tensor (..., tokens, features), got list", TypeError),
    Call(
        "values that heads do not divide",
        attend(TOKENS, TOKENS, torch.zeros(2, 5, 7), heads=2),
        "2 heads do not divide values",
    ),
    *(
        Call(f"score {value!r}", attend(TOKENS, score=value), "score is a name, or a Score", TypeError)
        for value in (None, 3, scores.Dot)
    ),
    *(
        Call(f"scope {value!r}", attend(TOKENS, scope=value), "scope is a name, or a Scope", TypeError)
        for value in (None, 3, scopes.Local)
    ),
    *(
        Call(
            f"distribution {value!r}",
            attend(TOKENS, distribution=value),
            "a distribution is a name or a function",
            TypeError,
        )
        for value in (None, 3, nn.Softmax)
    ),
    Call("a score of locations by name", attend(TOKENS, score="location"), "has a fixed number of keys"),
    *(
        Call(
            f"{each.__name__} of whole numbers",
            lambda each=each: each(torch.tensor([1, 2])),
            "energies are floating-point",
            TypeError,
        )
        for each in (sigmoid, sparsemax, entmax15)
    ),
    Call("ram on nothing", look(torch.zeros(2, 1, 0, 8)), "ram was built for images (B, 1, H, W), got (2, 1, 0, 8)"),
    Call(
        "ram on bytes", look(torch.zeros(2, 1, 8, 8, dtype=torch.uint8)), "images of floating-point numbers", TypeError
    ),
    Call(
        "paths on colours", look(torch.zeros(2, 3, 8, 8), method="fixations"), "ram was built for images (B, 1, H, W)"
    ),
    Call(
        "a glimpse of nothing",
        lambda: glimpse(torch.zeros(1, 1, 8, 8), torch.zeros(1, 1, 2), size=0),
        "of at least one",
    ),
    *(
        Call(
            f"reward {value!r}",
            lambda value=value: policy_term(RAM(), value),
            "the reward must be a tensor (B,)",
            TypeError,
        )
        for value in (None, 1.0, [1, 0])
    ),
    *(
        Call(f"reward {value!r} by number", lambda value=value: policy_term(RAM(), torch.tensor(value)), says)
        for value, says in (
            ([], "one number per image, got (0,)"),
            ([1.0, float("nan")], "the reward must be finite, got tensor([1., nan])"),
        )
    ),
    *(
        Call(f"mean reward {value!r}", lambda value=value: policy_term(RAM(), torch.ones(2), mean=value), says, error)
        for value, says, error in (
            (float("nan"), "the mean must be finite", ValueError),
            (torch.tensor(float("inf")), "the mean must be finite", ValueError),
            (torch.ones(2), "mean must be one number, got tensor([1., 1.])", TypeError),
            ("x", "mean must be one number, got 'x'", TypeError),
            (True, "mean must be one number, got True", TypeError),
        )
    ),
    Call("reward for no network", lambda: policy_term(None, torch.ones(2)), "policy_term takes a network", TypeError),
    Call("a block that is None", attach(lambda channels: None), "this block is not a module but NoneType", TypeError),
    Call(
        "a block that widens",
        attach(lambda channels: nn.Conv2d(channels, 1 + channels, 1)),
        "a map of the shape it was given",
    ),
    Call("a block that shrinks", attach(lambda channels: nn.MaxPool2d(2)), "a map of the shape it was given"),
    Call("a block that returns two", attach(lambda channels: Twice()), "this one: a tuple"),
    Call("a block of NaN", attach(broken), "not finite (NaN or infinite), even before training"),
    Call("places in a set", attach("se", {"layer1"}), "at is a name, or a list of names", TypeError),
    Call(
        "places with commas",
        attach("se", "layer1,layer2"),
        "no 'layer1,layer2' here: did you mean 'layer2' or 'layer1'",
    ),
    Call("places in capitals", attach("se", "Layer1"), "no 'Layer1' here: did you mean 'layer1'"),
    Call("one place of two", attach("se", ["layer1", "layer9"]), "no 'layer9' here"),
    Call("an example in grey", attach("se", example=torch.zeros(1, 1, 64, 64)), "example= does not fit it"),
    Call(
        "sparse weights",
        load(lambda state: {**state, "fc.weight": state["fc.weight"].to_sparse()}),
        "without numbers (sparse",
    ),
    Call(
        "weights without numbers",
        load(lambda state: {key: value.to("meta") for key, value in state.items()}),
        "without numbers",
    ),
    Call("one weight without", load(lambda state: {**state, "fc.bias": None}), "no tensors: 1 (fc.bias)"),
    Call(
        "one weight of one number", load(lambda state: {**state, "fc.bias": torch.zeros(1)}), "fc.bias ((1,), not (5,))"
    ),
    *(
        Call(
            f"one weight in {dtype}",
            load(lambda state, dtype=dtype: {**state, "fc.bias": state["fc.bias"].to(dtype)}),
            f"of another kind: 1 (fc.bias ({dtype}, not torch.float32))",
        )
        for dtype in (torch.int64, torch.bool, torch.complex64)
    ),
    Call("names one by one", save(classes=(name for name in "abcde")), "classes are names in order, a list", TypeError),
    Call("a number for names", save(classes=5), "classes are names in order, a list", TypeError),
    *(
        Call(
            f"arguments {value!r}", save(arguments=value), "arguments are those of timm.create_model by name", TypeError
        )
        for value in ([1], "drop_rate=0.1")
    ),
]
