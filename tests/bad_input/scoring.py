"""Wrong questions about whether heatmaps are true."""

from pathlib import Path

import numpy as np
import timm
import torch
from PIL import Image

import visattn
from tests.bad_input.case import Call, Command


def evaluate(methods: object = "edge", metrics: object = "srg", number: int = 3, **options: object) -> object:
    torch.manual_seed(0)
    model = timm.create_model("test_resnet", num_classes=number)
    return visattn.evaluate(model, torch.rand(2, 3, 64, 64), methods, metrics, **options)


def with_nan() -> object:
    model = timm.create_model("test_resnet", num_classes=3)
    return visattn.evaluate(model, torch.full((1, 3, 64, 64), torch.nan), "edge", "srg")


def broken() -> object:
    model = timm.create_model("test_resnet", num_classes=3)
    torch.nn.init.constant_(model.fc.weight, torch.nan)
    return visattn.evaluate(model, torch.rand(1, 3, 64, 64), "edge", "srg")


def one_picture(shape: tuple[int, ...] = (1, 3, 64, 64), **options: object) -> object:
    model, x = timm.create_model("test_resnet", num_classes=3), torch.rand(1, 3, 64, 64)
    return visattn.score(visattn.explain(model, x, "edge"), model, torch.rand(shape), **options)


def on_files(**options: object) -> object:
    return visattn.evaluate(timm.create_model("test_resnet", num_classes=3), "photos", "edge", "pointing", **options)


def reading() -> object:
    model = timm.create_model("test_resnet", num_classes=3)
    model.batches = (batch for batch in ())
    return visattn.evaluate(model, torch.rand(1, 3, 64, 64), "edge", "srg")


def of_something_else(target: object) -> object:
    model, x = timm.create_model("test_resnet", num_classes=3), torch.rand(1, 3, 64, 64)
    return visattn.score(visattn.explain(model, x, "gradcam", target=target), model, x)


def asked(**arguments: object) -> object:
    return evaluate({"mine": {"method": "gradcam", **arguments}})


def twins(folder: Path) -> None:
    (folder / "twins").mkdir()
    (folder / "masks").mkdir()
    for kind in ("cat", "dog"):
        (folder / "twins" / kind).mkdir()
        Image.new("RGB", (60, 40)).save(folder / "twins" / kind / "0.png")
    Image.fromarray(np.ones((40, 60), np.uint8)).save(folder / "masks" / "0.png")


def blurred(extension: str):
    def prepare(folder: Path) -> None:
        (folder / "masks").mkdir()
        Image.fromarray(np.ones((40, 60), np.uint8)).save(folder / "masks" / f"a.{extension}")

    return prepare


def masks(folder: Path) -> None:
    (folder / "masks").mkdir()
    for name in ("a", "b"):
        Image.fromarray(np.ones((41, 60), np.uint8)).save(folder / "masks" / f"{name}.png")


def boxes(content: str):
    def prepare(folder: Path) -> None:
        (folder / "masks").mkdir()
        (folder / "masks" / "a.xml").write_text(content)

    return prepare


DEEP = "<annotation>" + "<a>" * 200_000  # comparing whole paths, a reader would take half a minute
LAUGHS = '<!DOCTYPE a [<!ENTITY b "ha">]><annotation><object>&b;</object></annotation>'
SMALL = "<bndbox><xmin>5</xmin><ymin>5</ymin><xmax>30</xmax><ymax>30</ymax></bndbox>"
LARGE = f"<annotation><size><width>600</width><height>400</height></size><object>{SMALL}</object></annotation>"
START = "evaluate --weights model"


def score(**options):
    model, x = timm.create_model("test_resnet", num_classes=3).eval(), torch.rand(1, 3, 64, 64)
    return visattn.score(visattn.explain(model, x, "edge"), model, x, **options)


CASES = [
    Call("no such layer", lambda: asked(layer="layer9"), "none of the methods could be scored (mine: "),
    Call("no such number", lambda: asked(of="x"), "none of the methods could be scored (mine: unknown number 'x'"),
    Call("versus of some images", lambda: asked(versus=[0, 1]), "versus of 'mine' is one class, the same for all"),
    Call("a number for a name", lambda: evaluate({3: {"method": "gradcam"}}), "under a name of one line, got 3"),
    Call("a name of two lines", lambda: evaluate({"a\nb": {"method": "gradcam"}}), "under a name of one line"),
    Call("methods by number", lambda: evaluate(5), "methods must be a name or a list of names, got 5", TypeError),
    Call("methods in bytes", lambda: evaluate(b"edge"), "methods must be a name or a list of names", TypeError),
    Call("no methods", lambda: evaluate([]), "no methods: name some"),
    Call("metrics by number", lambda: evaluate(metrics=3), "metrics must be a name or a list of names", TypeError),
    Call("balanced in words", lambda: evaluate(balanced="no"), "balanced must be True or False, got 'no'", TypeError),
    Call("complex masks", lambda: evaluate(masks=torch.ones(2, 64, 64) * 1j), "masks are real numbers or booleans"),
    Call("masks of no numbers", lambda: evaluate(masks=torch.ones(2, 64, 64, device="meta")), "not on the meta device"),
    Call("no such baseline", lambda: evaluate().against("srg", "random", "foo"), "unknown baseline 'foo'"),
    Call("no such score", lambda: evaluate().interval("srgg", "random"), "unknown score 'srgg': did you mean 'srg'"),
    Call("not scored", lambda: evaluate().interval("srg", "gradcam"), "unknown method 'gradcam'"),
    Call(
        "a function is no class", lambda: of_something_else(lambda y: y[:, 0]), "the explanation is not about a class"
    ),
    Call("a vector is no class", lambda: of_something_else(torch.ones(3)), "the explanation is not about a class"),
    Command(f"{START} --data twins --masks masks", "would have the same mask: rename one of them", prepare=twins),
    Command(
        f"{START} --data a.png --masks masks", "is a JPEG, which blurs a mask: save it as PNG", prepare=blurred("jpg")
    ),
    Command(f"{START} --data a.png --masks masks", "is a WEBP, which blurs a mask", prepare=blurred("webp")),
    Command(
        f"{START} --data a.png --masks masks",
        "is about an image of 600 x 400, but its image is 60 x 40",
        prepare=boxes(LARGE),
    ),
    Command(f"{START} --data a.png --masks masks", "names no object", prepare=boxes("<html><body/></html>")),
    Command(
        f"{START} --data a.png --masks masks",
        "has an object without a box",
        prepare=boxes("<annotation><object><name>cat</name></object></annotation>"),
    ),
    Call("unknown metric", lambda: evaluate(metrics="srgg"), "unknown metric 'srgg': did you mean 'srg'"),
    Call(
        "no masks and no sure image",
        lambda: evaluate(metrics="localisation"),
        "none of the scores could be computed (",
    ),
    Call("no metric", lambda: evaluate(metrics=[]), "no metrics: choose from"),
    Call("unknown fill", lambda: evaluate(fill="blurr"), "unknown fill 'blurr': did you mean 'blur'"),
    Call("unknown method of scores", lambda: evaluate("gradcamm"), "unknown method 'gradcamm'"),
    Call("a method that does not fit", lambda: evaluate("rollout"), "none of the methods fits the model"),
    Call("no steps", lambda: evaluate(steps=0), "steps must be at least 1"),
    Call("masks of another size", lambda: evaluate(masks=torch.ones(2, 64, 63)), "here 2 x 64 x 64, got 2 x 64 x 63"),
    Call("masks of other images", lambda: evaluate(masks=torch.ones(3, 64, 64)), "here 2 x 64 x 64, got 3 x 64 x 64"),
    Call("empty masks", lambda: evaluate(masks=torch.zeros(2, 64, 64)), "the mask of image 0 is empty"),
    Call("NaN in masks", lambda: evaluate(masks=torch.full((2, 64, 64), torch.nan)), "masks hold numbers that are not"),
    Call("masks in a list", lambda: evaluate(masks=[1]), "masks are a folder, or a tensor", TypeError),
    Call("a number of masks", lambda: on_files(masks=5), "in a tensor, got int", TypeError),
    Call("bytes of masks", lambda: on_files(masks=b"x"), "in a tensor, got bytes", TypeError),
    Call("no masks", lambda: evaluate(metrics="pointing"), "pointing: it is not known where the objects are"),
    Command("evaluate --weights model --data photos --metrics pointing", "objects are: give masks of the images"),
    Call("no confident image", lambda: evaluate(metrics="gridpg", number=50), "gridpg: no mosaics"),
    Call("NaN in images", with_nan, "the images hold numbers that are not finite"),
    Call("NaN in weights", broken, "are not finite (NaN or infinite): are its weights?"),
    Call("one class only", lambda: evaluate(number=1), "scores need a classifier with two classes or more"),
    Call("no classes to score", lambda: evaluate(number=0), "scores need a classifier with two classes or more"),
    *(
        Call(
            f"no such data, {kind}",
            lambda data=data: visattn.evaluate(timm.create_model("test_resnet"), data, "edge"),
            "there are no images to score heatmaps on (nowhere.png: no such file or folder",
        )
        for kind, data in {
            "one": "nowhere.png",
            "a path": [Path("nowhere.png")],
            "many": ["nowhere.png", *map(str, range(1000))],
            "a long name": ["nowhere.png", "x" * 5000],
        }.items()
    ),
    Call(
        "no such model",
        lambda: visattn.evaluate(Path("nowhere"), torch.rand(2, 3, 64, 64)),
        "no model: there is no file and no folder 'nowhere'",
    ),
    *(
        Call(
            f"{key} is no function", lambda key=key: evaluate(**{key: 5}), f"{key} must be a function, got 5", TypeError
        )
        for key in ("note", "track")
    ),
    Call("a model by number", lambda: visattn.evaluate(3), "the model must be a network, a run folder", TypeError),
    Call("another size", lambda: one_picture((1, 3, 32, 32)), "of 1 images of 64 x 64, and these are 1 of 32 x 32"),
    Call("another number", lambda: one_picture((2, 3, 64, 64)), "of 1 images of 64 x 64, and these are 2 of 64 x 64"),
    Call("a huge seed", lambda: one_picture(seed=10**30), "seed must be a whole number from 0 to 4294967295, got 1000"),
    Call("a seed in words", lambda: evaluate(seed="x"), "seed must be a whole number from 0 to 4294967295, got 'x'"),
    Call("no whole seed", lambda: evaluate(seed=1.5), "seed must be a whole number from 0 to 4294967295, got 1.5"),
    *(
        Call(f"score {options}", lambda options=options: score(**options), says)
        for options, says in (
            ({"share": True}, "share is a number above 0 and at most 1, got True"),
            *(
                ({"fill": "black", "black": black}, "black must be a finite number for every channel, got")
                for black in (0.0, "000", [0, 0, float("nan")], [0, None, 0], [])
            ),
        )
    ),
    Call("no explanation", lambda: visattn.score("x", None, None), "is what visattn.explain returns", TypeError),
    Call("a network that cannot be copied", reading, "the model cannot be copied, and others may be using it"),
    Call("a share of nothing", lambda: one_picture(share=0), "share is a number above 0 and at most 1, got 0"),
    Command(f"{START} --metrics nothing", "unknown metric 'nothing'"),
    Command(f"{START} --methods rollout --data photos", "none of the methods fits the model"),
    Command(f"{START} --data nowhere", "there are no images to score heatmaps on (nowhere: no such file or"),
    Command(f"{START} --data a.png --masks nowhere", "there is no folder 'nowhere' of masks"),
    Command(f"{START} --data a.png --masks photos", "holds no masks"),
    Command(f"{START} --data a.png --masks masks", "is 60 x 41, but its image is 60 x 40 pixels", prepare=masks),
    Command(f"{START} --data a.png --masks masks", "declares a document type", prepare=boxes(LAUGHS)),
    Command(f"{START} --data a.png --masks masks", "is not XML: ", prepare=boxes(DEEP)),
    Command(f"{START} --data a.png --masks masks", "is not XML", prepare=boxes("no")),
    Command(f"{START} --out photos", "has files that visattn evaluate did not write"),
    Command(f"{START} --steps 0 --data photos", "steps must be at least 1"),
    Command(f"{START} --steps 1000000000 --data photos", "steps must be at most 1000, got 1000000000"),
    Command(f"{START} --batch-size 100000000 --data photos", "batch_size must be at most 65536"),
    Command(f"{START} --seed -1 --data photos", "seed must be a whole number from 0 to 4294967295, got -1"),
    Command(
        f"{START} --seed 99999999999999999999999 --data photos", "seed must be a whole number from 0 to 4294967295"
    ),
    Command(f"{START} --fill fog --data photos", "unknown fill 'fog'"),
]
