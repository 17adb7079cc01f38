"""Blocks of other packages: listed without an import, imported when named, and one line if something is wrong."""

import json
import sys

import pytest
import torch

import visattn
from visattn.blocks import announced, block_info, is_imported, unusable_announcements
from visattn.cli import main
from visattn.cost.settings import block_names
from visattn.models import blocks_for
from visattn.models.replacing import replacing_blocks

BLOCK = """
import torch, visattn
from torch import nn

@visattn.register_block("{name}", family="{family}", paper="Somebody et al., 2026")
class Mine(nn.Module):
    def __init__(self, channels, *, gain=0.5, device=None, dtype=None):
        super().__init__()
        self.gain = nn.Parameter(torch.full((channels, 1, 1), gain, device=device, dtype=dtype))

    def forward(self, x):
        return x * self.gain
"""


@pytest.fixture
def install(tmp_path, monkeypatch, _scratch_names):
    """Install a package: a module and the folder beside it that says what is installed, as pip writes it."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)

    def install(package, code, entries):
        (tmp_path / f"{package}.py").write_text(code)
        metadata = tmp_path / f"{package}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = "".join(f"{name} = {value}\n" for name, value in entries.items())
        (metadata / "entry_points.txt").write_text(f"[visattn.blocks]\n{lines}")
        announced.announced.cache_clear()

    yield install
    announced.announced.cache_clear()
    for module in set(sys.modules) - before:
        if getattr(sys.modules[module], "__file__", None) and str(tmp_path) in sys.modules[module].__file__:
            del sys.modules[module]


def test_listed_without_an_import_and_imported_when_named(install, capsys):
    install("other_package", BLOCK.format(name="mine", family="hard"), {"mine": "other_package:Mine"})
    assert "mine" in visattn.list_blocks()
    assert visattn.list_blocks("min*") == ["mine"]
    assert "mine" not in visattn.list_blocks(family="hard")
    assert "mine" not in block_names("all") + block_names("m*")
    assert main(["blocks", "m*"]) == 0
    assert "package 'other_package' announces a block 'mine': imported if it is named" in capsys.readouterr().out
    (row,) = (row for row in blocks_for("test_resnet", "mi*") if row.block == "mine")
    assert row.problem == "package 'other_package' announces a block 'mine': imported if it is named"
    assert "mine" not in replacing_blocks()
    assert "other_package" not in sys.modules
    assert not is_imported("mine")

    assert blocks_for("test_resnet", "mine")[0].where == "behind layer4.0"  # it is known to be a hard one by now
    assert is_imported("mine")
    assert block_info("mine").attends == "a few places"
    assert "mine" in visattn.list_blocks(family="hard")
    assert visattn.create_block("mine", 8)(torch.ones(1, 8, 2, 2)).eq(0.5).all()
    assert not unusable_announcements()


def test_a_network_with_such_a_block_comes_back_and_its_card_says_what_it_needs(install, elsewhere, monkeypatch):
    install("other_package", BLOCK.format(name="mine", family="channel"), {"mine": "other_package:Mine"})
    visattn.save_model(visattn.create_model("test_resnet_mine", num_classes=2), "model")
    (needed,) = json.loads((elsewhere / "model" / "model.json").read_text())["plugins"]
    assert (needed["name"], needed["package"], needed["registers"]) == ("other_package", "other_package", ["mine"])
    model, _ = visattn.load_model("model")
    assert {attached.name for attached in visattn.attachments(model).values()} == {"mine"}
    monkeypatch.setattr(visattn.blocks.base.BLOCKS, "_entries", {"se": block_info("se")})
    monkeypatch.setattr(announced, "entry_points", lambda group: ())
    announced.announced.cache_clear()
    with pytest.raises(ValueError, match="this model needs 'mine': install the package 'other_package'"):
        visattn.load_model("model")


WRONG = [
    ("import nothing_like_this", "o:Mine", "that cannot be imported (o:Mine): ModuleNotFoundError"),
    ("raise SystemExit(3)", "o:Mine", "that cannot be imported (o:Mine): SystemExit: 3"),
    ("class Other: ...", "o:Mine", "that cannot be imported (o:Mine): AttributeError"),
    ("Mine = 3", "o:Mine", "that is no class or function, but int (o:Mine)"),
    ("", "o", "that is no class or function, but module (o)"),
    ("class Mine: ...", "o:Mine", "that it does not register: @visattn.register_block('mine', ...)"),
    (BLOCK.format(name="se", family="channel"), "o:Mine", "ValueError: block 'se' is already registered"),
]


@pytest.mark.parametrize(("code", "value", "said"), WRONG)
def test_what_cannot_be_imported_is_one_line_that_names_the_package(install, capsys, code, value, said):
    install("o", code, {"mine": value})
    with pytest.raises(ValueError, match="package 'o' announces a block 'mine'") as raised:
        visattn.create_block("mine", 8)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)
    assert main(["blocks", "mine"]) == 2
    assert said in capsys.readouterr().err
    assert main(["blocks", "se"]) == 0


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("se", "package 'o' announces a block 'se' that cannot be used: there is another one of this name"),
        ("cosine", "that cannot be used: that is an attention inside vision transformers"),
        ("a-b", "that cannot be used: a name has letters, digits and single underscores"),
    ],
)
def test_a_name_that_is_taken_is_one_line_and_changes_nothing(install, capsys, name, said):
    before = visattn.list_blocks()
    install("o", "raise RuntimeError", {name: "o:Mine"})
    assert visattn.list_blocks() == before
    (problem,) = unusable_announcements()
    assert said in problem
    assert main(["blocks", "se"]) == 0
    assert capsys.readouterr().err == f"visattn: {problem}\n"
    assert type(visattn.create_block("se", 16)).__name__ == "SqueezeExcite"
    if name != "se":
        with pytest.raises(ValueError, match="announces a block"):
            visattn.create_block(name, 8)


def test_one_name_of_two_packages_is_nobodys(install):
    for package in ("one", "two"):
        install(package, BLOCK.format(name="mine", family="channel"), {"mine": f"{package}:Mine"})
    assert "mine" not in visattn.list_blocks()
    with pytest.raises(ValueError, match="'one' and package 'two' announce a block of the same name, 'mine'"):
        visattn.create_block("mine", 8)
