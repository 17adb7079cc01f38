"""What the README says is true."""

import re
import sys
from itertools import chain
from pathlib import Path

import pytest
import timm

import visattn
from visattn.blocks import base
from visattn.counting import count_parameters
from visattn.heatmaps import METHODS
from visattn.models.plugins import load_plugin, loaded
from visattn.registry import Registry

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


@pytest.mark.slow(minutes=1)
def test_the_examples_run(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    visattn.save_model(visattn.create_model("resnet_cbam", num_classes=10), "runs/resnet_cbam-digits")
    monkeypatch.setattr(base, "BLOCKS", Registry("block", {name: base.block_info(name) for name in base.BLOCKS}))
    names = {}
    for example in re.findall(r"```python\n(.*?)```", README, re.DOTALL):
        exec(example, names)
    assert names["gate"].shape == (8, 256, 14, 14)
    assert names["context"].shape == (2, 10, 64)
    assert type(names["model"]).__name__ == "RegNet"
    assert count_parameters(visattn.create_model("resnet50_cbam")) == 28_089_624
    assert "28,089,624" in README
    assert visattn.create_block("halve", 3).gain.shape == (3, 1, 1)
    monkeypatch.setattr(timm.models._registry, "_model_entrypoints", dict(timm.models._registry._model_entrypoints))
    assert load_plugin("my_file.py").registers == {"double_up", "my_cnn"}
    assert visattn.create_model("my_cnn_double_up", num_classes=3)(names["torch"].zeros(1, 3, 32, 32)).shape == (1, 3)
    del loaded["my_file"], sys.modules["my_file"]
    skip = names["Skip"](names["nn"].Identity())
    skip(names["x"])
    names["policy_term"](skip, reward=names["torch"].ones(len(names["x"]))).backward()
    assert skip.energy.grad is not None


def test_the_table_lists_every_block():
    rows = re.findall(r"^\| (\w+) \| (.*) \|$", README, re.MULTILINE)
    listed = {family: sorted(re.findall(r"`(\w+)`", blocks)) for family, blocks in rows if family in base.FAMILIES}
    assert listed == {family: visattn.list_blocks(family=family) for family in listed}
    assert sorted(chain.from_iterable(listed.values())) == visattn.list_blocks()
    assert f"{len(visattn.list_blocks())} plug-in blocks" in README


def test_the_table_lists_every_method():
    table = README.partition("| kind | methods |")[2].partition("\n\n")[0]
    listed = re.findall(r"`([\w+]+)`", table)
    assert sorted(listed) == sorted(METHODS)
    assert f"{len(listed)} heatmap methods" in README


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
        if not re.match(r"https?://", target):
            assert (page.parent / target).exists(), target
