"""Networks that cannot be looked into, and images that are none."""

import warnings

import numpy as np
import timm
import torch
from PIL import Image
from torch import nn
from torch._subclasses import FakeTensorMode

import visattn
from tests.bad_input.case import Call, Command
from visattn.heatmaps import attention_heads, relate

IMAGES = torch.zeros(2, 3, 64, 64)


class Returning(nn.Module):
    """A classifier whose answer is changed, or lost."""

    def __init__(self, change):
        super().__init__()
        self.model = timm.create_model("test_resnet", num_classes=3)
        self.change = change

    def forward(self, x):
        """What the change makes of the logits."""
        return self.change(self.model(x))


class Asking(nn.Module):
    """A network that wants more than images."""

    def forward(self, x, y):
        """Nothing in particular."""
        return x + y


class Moody(nn.Module):
    """A block that works until it is in a network."""

    fails = False

    def forward(self, x):
        """The same map."""
        if self.fails:
            raise KeyError("mood")
        return x * 2


def with_failing_block():
    model = visattn.attach(timm.create_model("test_resnet", num_classes=3), lambda channels: Moody(), "layer1")
    for module in model.modules():
        if isinstance(module, Moody):
            module.fails = True
    return model


def raising(error):
    def change(logits):  # noqa: ARG001
        raise error

    return Returning(change)


def vit():
    return timm.create_model("test_vit", num_classes=3)


def explain(model, method="gradcam", images=IMAGES, **options):
    return lambda: visattn.explain(model(), images, method, **options)


def classifier(**options):
    return explain(lambda: timm.create_model("test_resnet", num_classes=3), **options)


def attention(**options):
    return explain(vit, "attention", torch.zeros(1, 3, 32, 32), **options)


class Half(nn.Module):
    """A network of which one part is traced."""

    def __init__(self):
        super().__init__()
        self.part = traced()
        self.head = nn.Linear(3, 3)

    def forward(self, x):
        """Logits."""
        return self.head(self.part(x))


def traced():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(timm.create_model("test_resnet", num_classes=3).eval(), IMAGES)


def quantised():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(vit().eval(), {nn.Linear})


def with_config(config):
    model = timm.create_model("test_resnet", num_classes=3)
    model.pretrained_cfg = config
    return model


def with_size(size):
    model = vit()
    model.patch_embed.img_size = size
    return model


def explain_fake(model):
    """Explain a network, or an image, of tensors without numbers."""
    real = timm.create_model("test_resnet").eval()
    with FakeTensorMode(allow_non_fake_inputs=True):
        return visattn.explain(timm.create_model("test_resnet") if model else real, torch.rand(1, 3, 64, 64), "gradcam")


def exported(count=2):
    """A network for so many images at a time."""
    network = timm.create_model("test_resnet", num_classes=3).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(network, (IMAGES[:count],)).module()


def watch(model):
    with visattn.capture(model) as maps:
        model(IMAGES)
    return maps


def hooked(register, ask):
    """A question about a network with a hook that raises."""

    def hook(*_):
        return {}["mine"]

    def call():
        model = vit()
        getattr(model.blocks[0], register)(hook)
        return ask(model)

    return call


HOOKS = {
    "forward": ("register_forward_hook", "images of 3 x 160 x 160 (KeyError 'mine' in networks.py, line "),
    "forward pre": ("register_forward_pre_hook", "images of 3 x 160 x 160 (KeyError 'mine' in networks.py, line "),
    "backward": (
        "register_full_backward_hook",
        "fails while the model is looked into (KeyError 'mine' in networks.py, line ",
    ),
}

REFUSALS = [error("boom") for error in (KeyError, IndexError, AttributeError, ZeroDivisionError, AssertionError)]
REFUSALS.append(RuntimeError("boom\n" * 300))
NOT_DENSE = {
    "sparse": IMAGES.to_sparse,
    "nested": lambda: torch.nested.nested_tensor(list(IMAGES), layout=torch.jagged),
    "MKL-DNN's": IMAGES.to_mkldnn,
}


class Unfinished(nn.Module):
    """A classifier with something that cannot be copied."""

    def __init__(self):
        super().__init__()
        self.model = timm.create_model("test_resnet", num_classes=3)
        self.batches = (batch for batch in ())

    def forward(self, x):
        """Logits."""
        return self.model(x)


NO_IMAGES = [None, "a.png", np.zeros((3, 64, 64), np.float32), [IMAGES], Image.new("RGB", (64, 64)), IMAGES.bool(),
             IMAGES.to(torch.complex64), IMAGES[None], IMAGES[0, 0], IMAGES.to_sparse()]  # fmt: skip

BACKBONE = "what takes glimpses itself cannot be the backbone of another"

CASES = [
    Call("glimpses of glimpses", lambda: visattn.create_model(2000 * "glimpse_" + "resnet18"), BACKBONE),
    Call("places of glimpses of glimpses", lambda: visattn.places(2000 * "glimpse_" + "resnet18"), BACKBONE),
    Command("train --model glimpse_glimpse_resnet18", BACKBONE),
    *(
        Call(
            f"{name}, a network that cannot be copied",
            lambda ask=ask: ask(Unfinished()),
            "the model cannot be copied, and others may be using it (cannot pickle 'generator' object)",
        )
        for name, ask in {
            "explain": lambda model: visattn.explain(model, IMAGES, "gradcam"),
            "list_methods": lambda model: visattn.list_methods(model, IMAGES),
            "predict": lambda model: visattn.predict(model, IMAGES),
        }.items()
    ),
    *(
        Call(f"{name}, {kind} images", lambda ask=ask, make=make: ask(Returning(lambda x: x), make()), says, TypeError)
        for name, (ask, says) in {
            "explain": (visattn.explain, "got a tensor that is not dense"),
            "predict": (visattn.predict, "a tensor of images must be dense"),
            "evaluate": (visattn.evaluate, "a tensor of images must be dense"),
        }.items()
        for kind, make in NOT_DENSE.items()
    ),
    *(
        Call(
            f"a {name} hook that raises",
            hooked(register, lambda model: visattn.explain(model, torch.rand(1, 3, 160, 160), "input_gradient")),
            says,
        )
        for name, (register, says) in HOOKS.items()
    ),
    *(
        Call(f"images of the size {size!r}", lambda size=size: visattn.list_methods(with_size(size)), "img_size of the")
        for size in ((160,), "160", 160.0)
    ),
    *(
        Call(
            f"an input size of {size!r}",
            lambda size=size: visattn.list_methods(with_config({"input_size": size})),
            "input_size in the model's pretrained_cfg must be (channels, height, width)",
        )
        for size in (64, (3, 64))
    ),
    Call(
        "predict, a configuration that is a word",
        lambda: visattn.predict(with_config("resnet"), np.zeros((64, 64, 3), np.uint8)),
        "does not state its preprocessing",
    ),
    *(
        Call(
            f"no classes, {name}",
            explain(lambda change=change: Returning(change)),
            "it explains a class, and the model has none",
        )
        for name, change in {"a sparse table": torch.Tensor.to_sparse, "an empty table": lambda x: x[:, :0]}.items()
    ),
    *(
        Call(
            f"{name}, a network without storage", ask, "the model is on the meta device, where tensors have no numbers"
        )
        for name, ask in {
            "explain": explain(lambda: vit().to("meta"), "rollout"),
            "evaluate": lambda: visattn.evaluate(vit().to("meta"), IMAGES, "rollout", "srg"),
            "heads": lambda: attention_heads(vit().to("meta"), IMAGES),
        }.items()
    ),
    *(
        Call(f"{name}, without numbers", lambda fake=fake: explain_fake(fake), f"{name} was made under FakeTensorMode")
        for name, fake in {"the model": True, "x": False}.items()
    ),
    *(
        Call(f"{name}, exported for one image", ask, "takes 1 image at a time, no more and no fewer: it was exported")
        for name, ask in {
            "explain": lambda: visattn.explain(exported(1), IMAGES[:1]),
            "gradcam": lambda: visattn.explain(exported(1), IMAGES[:1], "gradcam"),
            "two": lambda: visattn.explain(exported(1), IMAGES[:2], "edge"),
        }.items()
    ),
    *(
        Call(f"{name}, an exported network", ask, "the model takes 2 images at a time, no more and no fewer: ")
        for name, ask in {
            "explain": lambda: visattn.explain(exported(), IMAGES[:1], "gradcam"),
            "predict": lambda: visattn.predict(exported(), IMAGES[0]),
            "list_methods": lambda: visattn.list_methods(exported(), IMAGES[:1]),
            "evaluate": lambda: visattn.evaluate(exported(), torch.rand(3, 3, 64, 64), "edge", "srg"),
            "evaluate as many": lambda: visattn.evaluate(exported(), torch.rand(2, 3, 64, 64), "edge", "srg"),
        }.items()
    ),
    Call(
        "an exported network, images of another size",
        lambda: visattn.predict(exported(), IMAGES[:, :, :32]),
        "the model does not take images of 3 x 32 x 64 (",
    ),
    Call("watch a traced network", lambda: watch(traced()), "a scripted or traced network cannot be looked into"),
    Call("watch a traced part", lambda: watch(Half()), "'part' is scripted or traced, and cannot be looked into"),
    Call("methods of a traced part", lambda: visattn.list_methods(Half(), IMAGES), "'part' is scripted or traced"),
    Call(
        "gradients of a quantised network",
        explain(quantised, "input_gradient", torch.rand(1, 3, 160, 160)),
        "is quantised, and has no gradients: choose a method that needs none",
    ),
    *(
        Call(
            f"explain, {type(error).__name__}",
            explain(lambda error=error: raising(error)),
            "the model does not take images of 3 x 64 x 64",
        )
        for error in REFUSALS
    ),
    *(
        Call(
            f"predict, {type(error).__name__}",
            lambda error=error: visattn.predict(raising(error), IMAGES),
            "does not take images of 3 x 64 x 64",
        )
        for error in REFUSALS
    ),
    Call(
        "attach, several lines",
        lambda: visattn.attach(raising(REFUSALS[-1]), "se", example=IMAGES),
        "could not be run (boom boom",
    ),
    Call(
        "attach, no word",
        lambda: visattn.attach(raising(AssertionError()), "se", example=IMAGES),
        "could not be run (AssertionError in networks.py, line ",
    ),
    Call(
        "methods, two inputs",
        lambda: visattn.list_methods(Asking(), IMAGES),
        "missing 1 required positional argument: 'y'",
    ),
    Call(
        "fewer answers than images",
        explain(lambda: Returning(lambda logits: logits[:1])),
        "the model returned 1 rows for 2 images",
    ),
    Call(
        "fewer answers, an edge",
        explain(lambda: Returning(lambda logits: logits[:1]), "edge"),
        "returned 1 rows for 2 images",
    ),
    Call(
        "fewer predictions",
        lambda: visattn.predict(Returning(lambda logits: logits[:1]), IMAGES),
        "a row per image, but this one returned 1 for 2",
    ),
    Call(
        "complex answers", explain(lambda: Returning(lambda logits: logits.to(torch.complex64))), "the model has none"
    ),
    Call(
        "complex predictions",
        lambda: visattn.predict(Returning(lambda logits: logits.to(torch.complex64)), IMAGES),
        "a classifier returns",
    ),
    Call("no answers", explain(lambda: Returning(lambda logits: None)), "it explains a class, and the model has none"),
    Call("answers without gradient", explain(lambda: Returning(torch.detach)), "the model computes without gradients"),
    Call(
        "a model without numbers",
        explain(lambda: timm.create_model("test_resnet").to("meta")),
        "the model is on the meta device",
    ),
    Call(
        "predict without numbers",
        lambda: visattn.predict(timm.create_model("test_resnet").to("meta"), IMAGES),
        "on the meta device",
    ),
    Call("images without numbers", classifier(images=IMAGES.to("meta")), "x is on the meta device"),
    *(
        Call(f"image {number}", classifier(images=value), "x is an image (C, H, W) or a batch", TypeError)
        for number, value in enumerate(NO_IMAGES)
    ),
    Call("images without height", classifier(images=IMAGES[:, :, :0]), "the model does not take images of 3 x 0 x 64"),
    Call(
        "images with the colours last",
        classifier(images=torch.zeros(64, 64, 3)),
        "the model does not take images of 64 x 64 x 3",
    ),
    Call("infinite images", classifier(images=IMAGES + torch.inf), "are not finite (NaN or infinite)"),
    *(
        Call(f"target {value!r}", classifier(target=value), "a target is the number or the name of a class", TypeError)
        for value in (1.0, True, b"cat", {0, 1}, [None, 1], np.array([[0], [1]]))
    ),
    Call(
        "a vector of another length",
        classifier(target=torch.tensor([0.0, 1.0])),
        "a target of 2 numbers is compared with features (B, 2), but the model returns (2, 3)",
    ),
    *(
        Call(f"target {value!r}", classifier(target=value), "out of range: the model has classes 0 to 2")
        for value in (-1, 3, 10**30, "3")
    ),
    *(
        Call(f"target {value!r}", classifier(target=value), "targets for 2 images")
        for value in ([], [1], [0, 1, 2], range(3))
    ),
    *(
        Call(f"classes {value!r}", classifier(classes=value), "classes is a list of names", TypeError)
        for value in ("abc", 3, [1, 2, 3], [None] * 3, {0: "a", 1: "b", 2: "c"})
    ),
    *(
        Call(f"head {value!r}", attention(head=value), "needs head to be a whole number")
        for value in (True, "0", 0.0, [0])
    ),
    Call("a layer without a name", classifier(layer=""), "layer is empty: name a module, such as 'layer2'"),
    Call("an attention without a name", attention(layer=""), "''"),
    *(
        Call(f"layer {value!r}", attention(layer=value), "layer is the name or the number", TypeError)
        for value in (True, 1.0, [0])
    ),
    *(
        Call(f"seed {value!r}", classifier(method="random", seed=value), "needs seed to be a whole number")
        for value in ("a", 1.5, None)
    ),
    *(
        Call(f"discard {value!r}", explain(vit, "rollout", torch.zeros(1, 3, 32, 32), discard=value), says)
        for value, says in [
            ("0.5", "needs discard to be a number"),
            (1.0, "a share below 1"),
            (-0.1, "a share below 1"),
        ]
    ),
    Call("fusion of no type", explain(vit, "rollout", torch.zeros(1, 3, 32, 32), fusion=None), "unknown fusion None"),
    Call(
        "many layers",
        explain(vit, "gradcam", torch.zeros(1, 3, 32, 32), layer="blocks.*"),
        "feature maps: name one",
    ),
    Call(
        "heads of a picture too small",
        lambda: attention_heads(vit(), torch.zeros(3, 7, 7)),
        "does not take images of 3 x 7 x 7",
    ),
    Call(
        "patches of a picture too small",
        lambda: relate(vit(), torch.zeros(3, 7, 7)),
        "does not take images of 3 x 7 x 7",
    ),
    Call(
        "a true head",
        lambda: attention_heads(vit(), torch.zeros(3, 32, 32), [0], [True]),
        "a head is a number, got True",
        TypeError,
    ),
    *(
        Call(f"{name}: a block that fails", do, f"block 'Moody' of the {what} fails")
        for name, what, do in (
            ("predict", "model", lambda: visattn.predict(with_failing_block(), IMAGES)),
            ("explain", "model", lambda: visattn.explain(with_failing_block(), IMAGES, "gradcam")),
            ("evaluate", "model", lambda: visattn.evaluate(with_failing_block(), IMAGES, "gradcam", "srg")),
            ("places", "network", lambda: visattn.places(with_failing_block())),
        )
    ),
]
