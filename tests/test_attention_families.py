"""A sample of the sweep over timm's families with attention, and its table."""

import re

import pytest
import timm

from tests.attention_families import TABLE, row, smallest_with_attention
from tests.tiers import mostly_slow

ROWS = re.findall(r"^\| (\w+) \| `([\w.]+)` \| (\d+) \|.*\| (.*) \|$", TABLE.read_text(), re.MULTILINE)


def test_the_table_has_no_failures():
    assert len(ROWS) >= 50
    assert not [family for family, _, _, remarks in ROWS if "FAILED" in remarks]


SAMPLE = ["vision_transformer", "levit", "efficientvit_msra", "shvit", "xcit", "edgenext"]


@pytest.mark.parametrize("family", mostly_slow(SAMPLE, "vision_transformer", "edgenext"))
def test_sample(family):
    name, layers = next((name, layers) for each, name, layers, _ in ROWS if each == family)
    fresh = row(family, name)
    assert "FAILED" not in fresh.remarks
    assert fresh.layers == int(layers)


@pytest.mark.sweep
@pytest.mark.parametrize("family", [name for name in timm.list_modules() if name != "visattn"])
def test_all(family):
    name = smallest_with_attention(family)
    if name is not None:
        assert "FAILED" not in row(family, name).remarks
