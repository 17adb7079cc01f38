"""Odd and hostile cards: ``model.json``, and the card inside a checkpoint."""

import json
import os

import torch
from safetensors.torch import load_file, save_file

from tests.bad_input.case import Command

PREDICT = "predict --weights model --image a.png"
DELETE = object()
BLOCK = {
    "at": "layer1", "block": "se", "options": {}, "init": "identity", "size": [40, 40], "image": [160, 160],
    "layout": {"kind": "NCHW", "channels": 32, "prefix": 0}, "index": None, "entry": None,
}  # fmt: skip


def changed(card, path, value):
    *outer, last = path.split(".")
    inner = card
    for key in outer:
        inner = inner.setdefault(key, {})
    if value is DELETE:
        del inner[last]
    else:
        inner[last] = value
    return card


def says(path, value, message, line=PREDICT):
    """A card with one thing changed."""

    def prepare(folder):
        file = folder / "model" / "model.json"
        file.write_text(json.dumps(changed(json.loads(file.read_text()), path, value)))

    return Command(line, message, 2, prepare)


def written(content, message):
    """A card that is this and nothing else."""
    return Command(PREDICT, message, 2, lambda folder: (folder / "model" / "model.json").write_bytes(content))


def replaced(make, message):
    """Something else in the place of the card."""

    def prepare(folder):
        (folder / "model" / "model.json").unlink()
        make(folder / "model" / "model.json")

    return Command(PREDICT, message, 2, prepare)


def attached(message, **changes):
    return says("attachments", [{**BLOCK, **changes}], message)


def checkpoint(message, path=None, value=None, **content):
    """A checkpoint of Lightning's kind with a changed card or other content."""

    def prepare(folder):
        card = json.loads((folder / "model" / "model.json").read_text())
        if path:
            changed(card, path, value)
        weights = {f"model.{key}": tensor for key, tensor in load_file(folder / "model" / "model.safetensors").items()}
        whole = {"pytorch-lightning_version": "2.6", "state_dict": weights, "card": card, **content}
        torch.save({key: part for key, part in whole.items() if part is not DELETE}, folder / "odd.ckpt")

    return Command("predict --weights odd.ckpt --image a.png", message, 2, prepare)


def weights(change, message):
    """Another state dict beside the card."""

    def prepare(folder):
        state = load_file(folder / "model" / "model.safetensors")
        save_file(change(state), folder / "model" / "model.safetensors")

    return Command(PREDICT, message, 2, prepare)


def saved(content, message, line="predict --model test_resnet --weights odd.pth --image a.png"):
    """What torch.save wrote."""
    return Command(line, message, 2, lambda folder: torch.save(content, folder / "odd.pth"))


def shared(value, times, depth):
    """A small file, and a list that would be huge: the lists in it are the same ones."""
    for _ in range(depth):
        value = [value] * times
    return value


def itself():
    circle = []
    circle.append(circle)
    return circle


ELSEWHERE = [
    says("model.pretrained", True, "model.pretrained says where weights come from"),
    says("model.pretrained", "yes", "model.pretrained says where weights come from"),
    says("model.checkpoint_path", "forbidden.pth", "model.checkpoint_path says where weights come from"),
    says("model.cache_dir", "executed", "model.cache_dir says where weights come from"),
    says("model.pretrained_strict", False, "model.pretrained_strict says where"),
    says("model.pretrained_cfg", {"url": "http://127.0.0.1:9/x"}, "model.pretrained_cfg says where weights come from"),
    says("model.pretrained_cfg", {"file": "forbidden.pth"}, "model.pretrained_cfg says where weights come from"),
    says("model.pretrained_cfg_overlay", {"url": "http://127.0.0.1:9/x"}, "model.pretrained_cfg_overlay says where"),
    says("model.pretrained_cfg_overlay", {"hf_hub_id": "a/b"}, "model.pretrained_cfg_overlay says where"),
    says("model.block_args", {"checkpoint_path": "forbidden.pth"}, "model.block_args.checkpoint_path says where"),
    says("model.name", "hf-hub:timm/resnet18.a1_in1k", "which no name here looks like"),
    says("model.name", "hf_hub:timm/resnet18.a1_in1k", "which no name here looks like"),
    says("model.name", "local-dir:.", "which no name here looks like"),
    says("model.name", "timm/resnet18.a1_in1k", "which no name here looks like"),
    says("model.name", "../model", "which no name here looks like"),
    says("model.name", "http://127.0.0.1:9/x", "which no name here looks like"),
    says("model.norm_layer", "http://127.0.0.1:9/x", "which no name here looks like"),
    says("model.weight_init", "/etc/passwd", "which no name here looks like"),
    says("model.device", "cuda:7", "model.device belongs to the machine"),
    says("model.dtype", "float16", "model.dtype belongs to the machine"),
    says("plugins", [{"name": "executed.py", "registers": ["mine"]}], "this model needs --plugin executed.py"),
    says("plugins", [{"name": "os", "registers": ["mine"]}], "this model needs --plugin os"),
    says("plugins", [{"name": "\x1b[31mred", "registers": ["mine"]}], "this model needs --plugin \ufffd[31mred"),
    says("plugins", [{"name": "a" * 900, "registers": ["b" * 150] * 900}], "bbb' and 898 more (in Python"),
    says("plugins", ["os"], "plugins[0] is 'os', not an object"),
    says("plugins", [{"name": "os"}], "plugins[0].registers is missing"),
    says("plugins", [{"name": "os", "registers": [], "sha256": "0"}], "plugins[0].sha256"),
]

MODEL = [
    says("model", DELETE, "model is missing"),
    says("model", [], "model is [], not an object"),
    says("model", "resnet18", "model is 'resnet18', not an object"),
    says("model.name", DELETE, "model.name is missing"),
    says("model.name", None, "model.name is None, not a text"),
    says("model.name", 18, "model.name is 18, not a text"),
    says("model.name", ["resnet18"], "model.name is ['resnet18'], not a text"),
    says("model.name", "", "which no name here looks like"),
    says("model.name", "a" * 1000, "1,000 letters"),
    says("model.name", "resnet_from_mars", "unknown"),
    says("model.name", "resnet50", "does not fit 'resnet50'"),
    says("model.num_classes", 10**12, "model.num_classes is 1000000000000"),
    says("model.num_classes", 10**400, "model.num_classes is 1000"),
    says("model.num_classes", 900_000, "names for 900000 classes"),
    says("model.num_classes", -1, "not a whole number from 0 to 1000000"),
    says("model.num_classes", 2.0, "not a whole number"),
    says("model.num_classes", True, "not a whole number"),
    says("model.num_classes", "2", "model.num_classes is '2', not a whole number"),
    says("model.num_classes", None, "not a whole number"),
    says("model.num_classes", 3, "2 names for 3 classes"),
    says("model.in_chans", 0, "not a whole number from 1 to 1024"),
    says("model.in_chans", 1, "of another shape"),
    says("model.img_size", 10**6, "not a whole number from 1 to 16384"),
    says("model.img_size", [64], "1 entries instead of 2"),
    says("model.img_size", 64, "cannot be built"),
    says("model.layers", [10**6, 1, 1, 1], "far more parameters"),
    says("model.layers", [10**9, 1, 1, 1], "not a number from"),
    says("model.features_only", "yes", "not true or false"),
    says("model.features_only", True, "does not fit"),
    says("model.attn", 3, "not a text"),
    says("model.attn", "cbma", "did you mean 'cbam'"),
    says("model.attn_options", [], "not an object"),
    says("model.attn_options", {"a b": 1}, "a key of model.attn_options is 'a b'"),
    says("model.init", "zero", "not one of identity, paper"),
    says("model.frobnicate", 1, "frobnicate"),
    says("model.act_layer", {"a": {"a": {"a": {"a": {"a": 1}}}}}, "nested too deeply"),
    says("model.drop_rate", 1e300, "not a number from -1e+06 to 1e+06"),
    says("model.a-b", 1, "a key of model is 'a-b'"),
]

INPUT = [
    says("input", None, "input is None, not an object"),
    says("input", [3, 64, 64], "not an object"),
    says("input.size", [3, -64, 64], "input.size[1] is -64"),
    says("input.size", [3, 0, 64], "input.size[1] is 0"),
    says("input.size", [3, 10**9, 64], "input.size[1] is 1000000000"),
    says("input.size", [3, 16384, 16384], "input.size is 16384 x 16384"),
    says("input.crop_pct", 0.0101, "with a crop_pct of 0.0101 more pixels than can be made"),
    says("input.size", [64, 64], "input.size has 2 entries instead of 3"),
    says("input.size", 64, "input.size is 64, not a list"),
    says("input.size", [3, 64.5, 64], "input.size[1] is 64.5"),
    says("input.mean", [0.5], "input.mean has 1 numbers for 3 channels"),
    says("input.mean", 0.5, "input.mean is 0.5, not a list"),
    says("input.mean", ["0.5", 0.5, 0.5], "input.mean[0] is '0.5', not a number"),
    says("input.mean", [None, 0.5, 0.5], "input.mean[0] is None"),
    says("input.std", [0, 1, 1], "input.std[0] is 0, not a number above 0"),
    says("input.std", [-1, 1, 1], "input.std[0] is -1"),
    says("input.std", [], "input.std has 0 entries"),
    says("input.std", [1, 1], "input.std has 2 numbers for 3 channels"),
    says("input.crop_pct", 0, "input.crop_pct is 0"),
    says("input.crop_pct", -1, "input.crop_pct is -1"),
    says("input.crop_pct", 3, "input.crop_pct is 3"),
    says("input.crop_pct", "all", "input.crop_pct is 'all'"),
    says("input.interpolation", "quintic", "not one of nearest, bilinear"),
    says("input.crop_mode", 1, "not one of center, squash, border"),
    says("input.sise", [3, 64, 64], "did you mean 'size'"),
]

REST = [
    says("classes", ["cat"], "classes has 1 names for 2 classes"),
    says("classes", "catdog", "classes is 'catdog', not a list"),
    says("classes", {"cat": 0, "dog": 1}, "not a list"),
    says("classes", ["cat", 3], "classes[1] is 3, not a text"),
    says("class_names", ["cat", None], "class_names[1] is None"),
    says("class_names", ["a", "b", "c"], "class_names has 3 names for 2 classes"),
    says("clases", ["cat", "dog"], "did you mean 'classes'"),
    says("name", 3, "name is 3, not a text"),
    says("versions", ["torch"], "versions is ['torch'], not an object"),
    says("versions.torch", 2.15, "versions.torch is 2.15, not a text"),
    says("best", {"val_top1": "high"}, "best.val_top1 is 'high', not a number"),
    says("attachments", {}, "attachments is {}, not a list"),
    says("attachments", [3], "attachments[0] is 3, not an object"),
    says("attachments", [{}], "attachments[0].at is missing"),
    says("attachments", [{"at": "layer1"}], "attachments[0].block is missing"),
    says("attachments", [{"at": "x", "patch": "all"}], "attachments[0].patch is 'all', not an object"),
    says("attachments", [{"at": "x", "patch": {}}], "cannot be built"),
    says("attachments", [{"at": "x", "replace": 7, "options": {}}], "attachments[0].replace is 7, not a text"),
    says("attachments", [{"at": "x", "replace": "sk"}], "attachments[0].options is missing"),
    says(
        "attachments", [{"at": "x", "replace": "sk", "options": {}, "init": "paper"}], "attachments[0].init is unknown"
    ),
    says("attachments", [{"at": "fc", "replace": "sk", "options": {}}], "'fc' is a Linear, not a 2-D convolution"),
    says("attachments", [{"at": "layer1.0.conv1", "replace": "se", "options": {}}], "cannot take the place of a conv"),
    says("attachments", [{"at": "layer1.0.conv2", "replace": "sk", "options": {"stride": 2}}], "leave stride= out"),
    attached("unknown block 'sse_': did you mean 'sse'", block="sse_"),
    attached("attachments[0].block is 7", block=7),
    attached("which no name here looks like", block="os:system"),
    attached("has no argument 'wrong'", options={"wrong": 1}),
    attached("attachments[0].options is 3", options=3),
    attached("attachments[0].options.rd_ratio is 1e+30", options={"rd_ratio": 1e30}),
    attached("not one of identity, paper", init="zero"),
    attached("cannot be built", at="nowhere"),
    attached("attachments[0].at is 5", at=5),
    attached("which no name here looks like", at="../layer1"),
    attached("attachments[0].layout is None", layout=None),
    attached("attachments[0].layout.kind is 'CHWN'", layout={"kind": "CHWN", "channels": 32}),
    attached("attachments[0].layout.channels is 0", layout={"kind": "NCHW", "channels": 0}),
    attached("does not fit", layout={"kind": "NCHW", "channels": 33}),
    attached("attachments[0].layout.colour is unknown", layout={"kind": "NCHW", "channels": 32, "colour": 1}),
    attached("attachments[0].size[0] is -4", size=[-4, 4]),
    attached("no feature map of 160 x 160 pixels", size=[1600, 1600]),
    attached("no feature map", size=[16384, 16384], image=[16384, 16384]),
    attached("attachments[0].index is 'a'", index="a"),
    attached("attachments[0].entry is 1", entry=1),
    attached("attachments[0].wrong is unknown", wrong=1),
    attached("does not fit"),
]

FILES = [
    written(b"", "it is not JSON"),
    written(b"{", "it is not JSON"),
    written(b"null", "it is None, not an object"),
    written(b"3", "it is 3, not an object"),
    written(b"[]", "it is [], not an object"),
    written(b'"model"', "it is 'model', not an object"),
    written(b"{}", "model is missing"),
    written(b'\xef\xbb\xbf{"model": {"name": "test_resnet"}}', "it is not JSON"),
    written(b"\x80\x04\x95\x00\xff", "not a text file"),
    written(b'{"model": {"name": "a"}, "model": {"name": "b"}}', "'model' stands there twice"),
    written(b'{"model": {"name": "test_resnet", "drop_rate": NaN}}', "NaN is no number"),
    written(b'{"model": {"name": "test_resnet"}, "input": {"std": [Infinity, 1, 1]}}', "Infinity is no number"),
    written(b'{"model": {"name": "test_resnet"}, "input": {"std": [1e999, 1, 1]}}', "input.std[0] is inf"),
    written(b'{"model": {"name": "test_resnet", "num_classes": ' + b"9" * 5000 + b"}}", "cannot be understood"),
    written(b"[" * 10_000 + b"]" * 10_000, "nested too deeply"),
    written(b'{"model": ' * 10_000 + b"1" + b"}" * 10_000, "nested too deeply"),
    written(b" " * (16 * 2**20 + 1), "larger than the limit of 16 MB"),
    replaced(lambda file: file.mkdir(), "does not say what model it is of"),
    replaced(lambda file: os.mkfifo(file), "does not say what model it is of"),
    replaced(lambda file: file.symlink_to("/dev/zero"), "does not say what model it is of"),
    replaced(lambda file: file.symlink_to("model.json"), "does not say what model it is of"),
]

CHECKPOINTS = [
    checkpoint("the card 'odd.ckpt' cannot be understood: model.pretrained says", "model.pretrained", True),
    checkpoint("model.checkpoint_path says where", "model.checkpoint_path", "forbidden.pth"),
    checkpoint("which no name here looks like", "model.name", "hf-hub:timm/resnet18"),
    checkpoint("input.size[1] is -1", "input.size", (3, -1, 64)),
    checkpoint("input.std[0] is nan", "input.std", (float("nan"), 1.0, 1.0)),
    checkpoint("model.drop_rate is a Tensor", "model.drop_rate", torch.zeros(())),
    checkpoint("nested too deeply", "model.layers", itself()),
    checkpoint("model.num_classes is 1000000000", "model.num_classes", 10**300),
    checkpoint("it holds more than 2,000,000 values", "attachments", shared({"options": ["x"] * 1000}, 10_000, 1)),
    checkpoint("it holds more than 2,000,000 values", "model.act_layer", shared("x", 1000, 4)),
    checkpoint("it holds more than 2,000,000 values", "class_names", shared("x", 1_000_000, 2)),
    checkpoint("more than 16,000,000 letters", "class_names", shared("x" * 1000, 20_000, 1)),
    checkpoint("best.a is [[[[[", "best", {"a": shared("x", 10, 5)}),
    checkpoint("it is 'card', not an object", card="card"),
    checkpoint("it is [], not an object", card=[]),
    checkpoint("does not say what model it is of", card=None),
    checkpoint("without a state_dict", state_dict=DELETE),
    checkpoint("without a state_dict", state_dict=[1, 2]),
    checkpoint("without a state_dict", state_dict={"model.fc.weight": 3}),
    checkpoint("without a state_dict", state_dict={3: torch.zeros(1)}),
    checkpoint("missing", state_dict={}),
]

WEIGHTS = [
    weights(lambda state: {**state, "fc.bias": state["fc.bias"].long()}, "1 of another kind (fc.bias: torch.int64"),
    weights(lambda state: {**state, "fc.bias": torch.zeros(2, dtype=torch.complex64)}, "1 of another kind (fc.bias"),
    weights(lambda state: {**state, "fc.bias": torch.zeros(3)}, "1 of another shape (fc.bias: 3 instead of 2)"),
    weights(lambda state: {**state, "x" * 1000: torch.zeros(1)}, "1 unexpected (xxxx"),
    weights(lambda state: {}, "missing"),
    Command(PREDICT, "cannot be read as safetensors", 2,
            lambda folder: (folder / "model/model.safetensors").write_bytes((2**62).to_bytes(8, "little") + b"{}")),
    Command(PREDICT, "cannot be read as safetensors", 2,
            lambda folder: (folder / "model/model.safetensors").write_bytes(b"")),
    Command("predict --weights model/model.json --image a.png", "is not a checkpoint of tensors", 2),
    saved(3, "holds no state dict"),
    saved([torch.zeros(1)], "holds no state dict"),
    saved({"a": 1}, "holds no state dict"),
    saved({3: torch.zeros(1)}, "holds no state dict"),
    saved({"state_dict": {"a": "b"}}, "holds no state dict"),
    saved(itself(), "holds no state dict"),
    saved({"fc.weight": torch.zeros(())}, "does not fit"),
    saved({"fc.weight": torch.zeros(2, 2).to_sparse()}, "does not fit"),
]  # fmt: skip

CASES = [*ELSEWHERE, *MODEL, *INPUT, *REST, *FILES, *CHECKPOINTS, *WEIGHTS]
