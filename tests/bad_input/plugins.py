"""Plugins that cannot be loaded, and models that need one."""

import json

from tests.bad_input.case import Command

BLOCK = "import visattn\nvisattn.register_block({!r}, family='channel', paper='mine')(lambda channels: None)\n"
FAILING = """
import visattn
from torch import nn

@visattn.register_block("odd_block", family="channel", paper="mine")
class Odd(nn.Module):
    def __init__(self, channels, *, device=None, dtype=None):
        super().__init__()

    def forward(self, x):
        raise ValueError("no")
"""
ODD = """
import torch
import visattn
from torch import nn

@visattn.register_block("odd_block", family="channel", paper="mine")
class Odd(nn.Module):
    def __init__(self, channels, *, device=None, dtype=None):
        super().__init__()
        self.layer = nn.{layer}

    def forward(self, x):
        return {result}
"""
MODEL = "import timm\n@timm.models.register_model\ndef {}(pretrained=False, **kwargs): ...\n"


def plugin(name, text, says, line="blocks"):
    """A file that is no plugin."""
    content = text if isinstance(text, bytes) else text.encode()
    return Command(f"{line} --plugin {name}", says, 2,
                   lambda folder: (folder / name).write_bytes(content))  # fmt: skip


def odd(name, says, result="x", layer="Conv2d(channels, channels, 1)", line="train"):
    """A block that is no block, to be measured."""
    bench = f"bench --blocks odd_block --shape 2x8x4x4 --repeats 1 --mode {line}"
    return plugin(name, ODD.format(layer=layer, result=result), says, line if " " in line else bench)


LAZY = "block 'odd_block' has a lazy module, whose 'layer.weight' has no shape yet"


def needing(name):
    def prepare(folder):
        file = folder / "model" / "model.json"
        card = json.loads(file.read_text())
        (folder / name).write_text("from pathlib import Path\nPath('executed').touch()\n")
        file.write_text(json.dumps({**card, "plugins": [{"name": name, "registers": ["never_registered"]}]}))

    return prepare


CASES = [
    Command("blocks --plugin nowhere.py", "--plugin nowhere.py: there is no such file"),
    Command("blocks --plugin nowhere", "--plugin nowhere: there is no such module"),
    Command("blocks --plugin no.where", "--plugin no.where: there is no such module"),
    Command("blocks --plugin photos", "--plugin photos is a folder"),
    Command("blocks --plugin photos/", "--plugin photos/ is a folder"),
    Command("blocks --plugin a.png", "a plugin is a Python file"),
    Command("blocks --plugin ''", "there is no such file"),
    Command("blocks --plugin x-y", "a module is called like my.module"),
    Command("blocks --plugin json", "a module of Python's own"),
    Command("blocks --plugin os.path", "a module of Python's own"),
    Command("predict --plugin nowhere.py --weights model --image a.png", "there is no such file"),
    Command("heatmap --plugin nowhere.py --weights model --image a.png", "there is no such file"),
    plugin("my-plugin.py", "", "with a name such as my_plugin.py"),
    plugin("json.py", "", "there is another Python module called 'json'"),
    plugin("torch.py", "", "there is another Python module called 'torch'"),
    plugin("antigravity.py", "", "there is another Python module called 'antigravity'"),
    plugin("odd_1.py", "x = 1\ndef (:\n", "--plugin odd_1.py: line 2: SyntaxError"),
    plugin("odd_end.py", "raise GeneratorExit('no')\n", "--plugin odd_end.py: line 1: GeneratorExit: no"),
    plugin("odd_own.py", "class Own(BaseException): ...\n\nraise Own('x')\n", "odd_own.py: line 3: Own: x", "train"),
    plugin("odd_2.py", "x = 1\n\nprint(undefined)\n", "--plugin odd_2.py: line 3: NameError"),
    plugin("odd_3.py", "def f():\n    return 1 / 0\n\nf()\n", "--plugin odd_3.py: line 2: ZeroDivisionError"),
    plugin("odd_4.py", "import nothing_like_this\n", "--plugin odd_4.py: line 1: ModuleNotFoundError"),
    plugin("odd_5.py", "import sys\nsys.exit(0)\n", "--plugin odd_5.py: line 2: it ends the program"),
    plugin("odd_6.py", BLOCK.format("se"), "--plugin odd_6.py: line 2: ValueError: block 'se' is already registered"),
    plugin("odd_7.py", MODEL.format("resnet18"), "--plugin odd_7.py: line 2: there is a model called 'resnet18'"),
    plugin("odd_16.py", FAILING, "block 'odd_block' fails in 'test_resnet' on images of 3 x 32 x 32: ValueError: no",
           "train --model test_resnet --attn odd_block --image-size 32"),
    plugin("odd_17.py", BLOCK.format("odd_block"), "block 'odd_block' is not a module but NoneType",
           "bench --blocks odd_block --shape 2x8x4x4"),
    odd("odd_18.py", "gives back a map of the shape it was given, (2, 8, 4, 4); this one: a tuple", "(x, x)"),
    odd("odd_19.py", "a map of the shape it was given, (2, 8, 4, 4); this one: (2, 8, 2, 4)", "x[:, :, ::2]"),
    odd("odd_20.py", "the numbers of this block are not finite", "x / 0"),
    odd("odd_21.py", "no gradient comes back through this block", "x.detach() + 1"),
    odd("odd_22.py", "this block changes the map that it is given, in place", "x.mul_(2)"),
    odd("odd_23.py", "this block changes the map that it is given, in place", "x.mul_(2)", line="eval"),
    odd("odd_24.py", "gives back floating-point numbers; this one: torch.int64", "x.long()", line="eval"),
    odd("odd_25.py", "train, fp32, nchw: KeyError 'y'", "{'x': x}['y']"),
    odd("odd_26.py", "train, fp32, nchw: SystemExit 3", "exit(3)"),
    odd("odd_27.py", LAZY, "self.layer(x)", "LazyConv2d(channels, 1)"),
    odd("odd_28.py", LAZY, "self.layer(x)", "LazyConv2d(channels, 1)", "train --model test_resnet --attn odd_block"),
    odd("odd_29.py", LAZY, "self.layer(x)", "LazyConv2d(channels, 1)", "bench --model test_resnet_odd_block"),
    odd("odd_31.py", "SystemExit", "exit(3)", line="train --model test_resnet --attn odd_block --image-size 32"),
    odd("odd_32.py", "SystemExit", "exit(3)", line="bench --model test_resnet_odd_block --repeats 1 --image-size 32"),
    odd("odd_33.py", "SystemExit", "exit(3)", line="bench --budget 2 --model test_resnet --blocks odd_block"),
    plugin("odd_8.py", b"\x00", "--plugin odd_8.py"),
    plugin("odd_15.py", "# coding: foo\n", "--plugin odd_15.py: SyntaxError: unknown encoding: foo"),
    plugin("odd_9.py", b"\xff\xfe = 1", "--plugin odd_9.py"),
    plugin("odd_10.py", "raise ValueError('two\\nlines')", "line 1: ValueError: two lines"),
    plugin("odd_11.py", "import json\njson.loads('{')\n", "--plugin odd_11.py: line 2: JSONDecodeError"),
    plugin("odd_13.py", "raise Warning('beware')", "--plugin odd_13.py: line 1: Warning: beware"),
    plugin("odd_12.py", "x = (\n", "--plugin odd_12.py: line 1: SyntaxError", line="train"),
    Command("predict --weights model --image a.png", "this model needs --plugin mine.py", 2, needing("mine.py")),
    Command("heatmap --weights model --image a.png", "this model needs --plugin mine.py", 2, needing("mine.py")),
    Command("predict --plugin mine.py --weights model --image a.png", "this model needs --plugin mine.py", 2,
            lambda folder: (needing("mine.py")(folder), (folder / "mine.py").write_text(""))),
]  # fmt: skip
