"""Hostile and odd configuration files: ``--config``, and ``--resume`` of a stranger's folder."""

import os
import sys

from tests.bad_input.case import Command

PAYLOAD = """
from pathlib import Path
from lightning.pytorch.callbacks import Callback
Path(__file__).with_name("executed").touch()
class Evil(Callback): pass
"""


def planted(folder):
    """Code of a stranger's, where Python would find it: the folder is on the import path."""
    (folder / "runs" / "evil").mkdir(parents=True)
    (folder / "runs" / "evil" / "payload.py").write_text(PAYLOAD)
    for name in [name for name in sys.modules if name.split(".")[0] == "runs"]:
        del sys.modules[name]


def config(text, says, line="train --config odd.yaml"):
    """A configuration that is refused."""

    def prepare(folder):
        planted(folder)
        content = text.encode() if isinstance(text, str) else text
        (folder / "odd.yaml").write_bytes(content)
        (folder / "other.yaml").write_text("class_path: runs.evil.payload.Evil\n")
        (folder / "runs" / "evil" / "config.yaml").write_bytes(content)

    return Command(line, says, 2, prepare)


def command(line, says):
    """A command line that is refused."""
    return Command(line, says, 2, planted)


def resumed(text, says):
    """The same file in a folder that is resumed."""
    return config(text, says, "train --resume runs/evil")


def replaced(make, says):
    def prepare(folder):
        make(folder / "odd.yaml")

    return Command("train --config odd.yaml", says, 2, prepare)


EVIL = "'runs.evil.payload.Evil' is not one of Lightning's"
CALLBACK = "trainer:\n  callbacks:\n  - class_path: lightning.pytorch.callbacks.LambdaCallback\n    init_args: "
LAUGHS = "a: &a [x, x]\n" + "".join(f"{b}: &{b} [*{a}, *{a}]\n" for a, b in zip("abcdefghi", "bcdefghij", strict=True))

FILES = [
    ("trainer:\n  callbacks:\n    class_path: runs.evil.payload.Evil\n", EVIL),
    ("trainer:\n  callbacks:\n  - class_path: runs.evil.payload.Evil\n    init_args: {}\n", EVIL),
    ("trainer:\n  callbacks: runs.evil.payload.Evil\n", EVIL),
    ("trainer:\n  callbacks: [runs.evil.payload.Evil]\n", EVIL),
    ("trainer:\n  logger: {class_path: runs.evil.payload.Evil}\n", EVIL),
    ("trainer:\n  plugins: [{class_path: runs.evil.payload.Evil}]\n", EVIL),
    ("trainer:\n  profiler: {class_path: runs.evil.payload.Evil}\n", EVIL),
    ("trainer:\n  strategy: {class_path: runs.evil.payload.Evil}\n", EVIL),
    ("trainer:\n  accelerator: {class_path: runs.evil.payload.Evil}\n", EVIL),
    (f"{CALLBACK}{{on_train_start: runs.evil.payload.Evil}}\n", EVIL),
    (f"{CALLBACK}{{on_train_start: os.system}}\n", "'os.system' is not one of Lightning's"),
    (f"{CALLBACK}{{on_train_start: 'lambda trainer: 3'}}\n", "LambdaCallback: on_train_start: expected Callable"),
    (f"{CALLBACK}{{on_train_start: print}}\n", "LambdaCallback: on_train_start: expected Callable, nothing; got print"),
    (
        "trainer:\n  callbacks: [{class_path: subprocess.Popen, init_args: {args: x}}]\n",
        "'subprocess.Popen' is not one",
    ),
    ("trainer:\n  callbacks: [jsonargparse.set_parsing_settings]\n", "'jsonargparse.set_parsing_settings' is not one"),
    (
        "trainer:\n  callbacks: [lightning.pytorch.callbacks.timer.os.system]\n",
        "trainer.callbacks: expected list[Callback]",
    ),
    ("trainer:\n  callbacks: other.yaml\n", "trainer.callbacks: 'other.yaml' is not one of Lightning's"),
    ("trainer: other.yaml\n", "'trainer' in"),
    ("trainer: [1]\n", "'trainer' in"),
    ("trainer:\n  logger: 'lambda x: x'\n", "trainer.logger: expected Logger"),
    ("trainer:\n  callbacks: [Tmier]\n", "trainer.callbacks: expected list[Callback]"),
    ("model: !!python/object/apply:os.system ['touch executed']\n", "uses a tag"),
    ("model: !!python/name:os.system\n", "uses a tag"),
    ("? !!python/object/apply:os.system ['touch executed']\n: 1\n", "uses a tag"),
    ("model: !evil resnet18\n", "uses a tag"),
    (LAUGHS, "uses an anchor or alias (line 1)"),
    ("attn_options: &a\n  x: *a\n", "uses an anchor or alias"),
    ("attn_options: " + "[" * 5000 + "]" * 5000, "nested too deeply"),
    ("attn_options: " + "{a: " * 5000 + "1" + "}" * 5000, "nested too deeply"),
    ("name: " + "a" * 200_000, "larger than the limit of 0.1 MB"),
    (b"\x80\x04\x95\xff", "is not a text file"),
    (b"\x00\x00", "is not YAML"),
    ("model: a: b\n", "is not YAML"),
    ("", "is not a settings file"),
    ("plugin: runs/evil/payload.py\n", "names a plugin, which a file may not do"),
    ("plugin: [runs/evil/payload.py]\n", "names a plugin, which a file may not do"),
    ("config: other.yaml\n", "unknown key 'config'"),
    ("resume: last\n", "names a run to resume, which a file may not do: use --resume on"),
    ("trainer: 0\n", "'trainer' in"),
    ("trainer: null\n", "'trainer' in"),
    ("trainer: false\n", "'trainer' in"),
    ("3: 4\n", "unknown key 3"),
    ("model: [resnet18]\n", "model: expected str"),
    ("epochs: null\n", "epochs is empty"),
    ("epochs: {a: 1}\n", "epochs: expected int"),
    ("model_options: 3\n", "model_options: expected dict"),
    *(
        (f"pretrained: true\nmodel_options: {{{options}}}\n", f"cannot set {key!r}: where weights come from is said on")
        for key, options in {
            "pretrained_cfg": "pretrained_cfg: {file: forbidden.pth}",
            "pretrained_cfg_overlay": "pretrained_cfg_overlay: {url: 'http://127.0.0.1:9/x'}",
            "checkpoint_path": "block_args: [{checkpoint_path: forbidden.pth}]",
            "cache_dir": "cache_dir: executed",
            "pretrained_strict": "pretrained_strict: false",
        }.items()
    ),
]
FLAGS = [
    ("model: 'hf-hub:timm/resnet18'\n", "unknown model 'hf-hub:timm/resnet18'"),
    ("model: 'local-dir:runs/evil'\n", "unknown model 'local-dir:runs/evil'"),
    ("model: resnet18\nmodel_options: {pretrained: true}\n", "cannot set 'pretrained'"),
    ("model: resnet18\nmodel_options: {checkpoint_path: forbidden.pth}\n", "cannot set 'checkpoint_path'"),
    ("model: resnet18\nmodel_options: {name: vit_tiny_patch16_224}\n", "cannot set 'name'"),
    ("model: resnet18\nmodel_options: {class_path: runs.evil.payload.Evil}\n", "cannot be built"),
    ("model: resnet18\nattn: se\nattn_options: {gate: {class_path: runs.evil.payload.Evil}}\n", "gate"),
    ("data: wds/x\nnum_classes: 2\nroot: 'pipe:touch executed'\n", "commands ('pipe:…') are never run"),
    ("data: wds/x\nnum_classes: 2\nroot: ' PIPE:touch executed'\n", "commands ('pipe:…') are never run"),
    ("data: 'tfds/huggingface:x'\nnum_classes: 2\nroot: x\n", "would download code"),
]

CASES = [
    config("devices: 0\n", "--devices 0 must be a number, a list"),
    config("devices: true\n", "devices: expected str, int; got True"),
    config("precision: 33\n", "Precision 33 is invalid"),
    *(config(text, says) for text, says in FILES + FLAGS),
    *(resumed(text, says) for text, says in FILES),
    replaced(lambda file: file.mkdir(), "unknown configuration 'odd.yaml'"),
    replaced(lambda file: os.mkfifo(file), "unknown configuration 'odd.yaml'"),
    replaced(lambda file: file.symlink_to("/dev/zero"), "unknown configuration 'odd.yaml'"),
    Command("train --config nowhere/imagenet100.yaml", "unknown configuration 'nowhere/imagenet100.yaml'"),
    command("train --trainer.callbacks=runs.evil.payload.Evil", EVIL),
    command("train --trainer.callbacks+=runs.evil.payload.Evil", EVIL),
    command("train --trainer.callbacks+ runs.evil.payload.Evil", EVIL),
    command("train --trainer.callbacks '{class_path: runs.evil.payload.Evil}'", EVIL),
    command("train --trainer.callbacks.help=runs.evil.payload.Evil", "runs.evil.payload.Evil"),
    command("train --trainer.callbacks=other.yaml", "'other.yaml' is not one of Lightning's"),
    command("train --trainer other.yaml", "--trainer takes no value"),
    command("train --print_config", "unknown flag '--print_config'"),
    command("train --plugin nowhere.py", "--plugin nowhere.py: there is no such file"),
    Command("train --resume model --model test_resnet", "has no checkpoint to resume from"),
]
