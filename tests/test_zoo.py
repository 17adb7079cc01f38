"""The zoo on paper is the zoo in the registry."""

import re
import sys

import pytest
from PIL import Image

import visattn
from tests.zoo import DOCS, page
from tests.zoo.docstrings import MATH, read, summary
from tests.zoo.taxonomy import ELSEWHERE, taxa, taxon
from visattn.blocks import block_info
from visattn.models import attentions

STALE = "run: python -m tests.zoo"
PAGE = (DOCS / "zoo.md").read_text()


def test_every_block_has_an_entry_a_row_and_a_leaf():
    assert sorted(re.findall(r"^### `(\w+)`$", PAGE, re.MULTILINE)) == visattn.list_blocks(), STALE
    assert sorted(re.findall(r"<tr><td>(\w+)</td>", (DOCS / "zoo.html").read_text())) == visattn.list_blocks(), STALE
    with Image.open(DOCS / "zoo_tree.png") as tree:
        assert sorted(tree.info["Description"].split()) == visattn.list_blocks(), STALE


@pytest.mark.parametrize("name", visattn.list_blocks())
def test_the_words_about_a_block_are_those_of_its_docstring(name):
    (entry,) = re.findall(rf"^### `{name}`\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    written = page.entry(page.Row(name, 0, 0, "", None)).partition("\n")[2]
    same = [re.sub(r"^Attends to .*$", "", text, flags=re.MULTILINE).strip() for text in (entry, written)]
    assert same[0] == same[1], STALE
    assert f"Attends to {block_info(name).attends}. " in entry, STALE


def test_what_is_no_block_and_what_is_left_out_are_named():
    assert "## A head\n\nClass-specific residual attention" in PAGE, STALE
    assert "## Left out\n\nThe spatial part of [`nam`](#nam)" in PAGE, STALE


@pytest.mark.slow
def test_the_page_is_what_the_code_writes():
    rows = page.rows()
    assert page.markdown(rows) == PAGE, STALE
    assert page.html(rows) == (DOCS / "zoo.html").read_text(), STALE


@pytest.mark.parametrize("name", visattn.list_blocks())
def test_the_docstring_of_a_block_has_all_parts(name):
    info = block_info(name)
    said = read(sys.modules[info.factory.__module__].__doc__)
    assert said.title
    assert said.paper
    assert said.equations
    assert not any(MATH in part for part in said.equations), "equations need an empty line between them"
    assert said.differences.startswith("Differences")
    assert summary(info.factory.__doc__)
    assert page.year(info.paper), "the paper has no year"


def test_a_docstring_is_taken_apart():
    said = read(
        """Title of ``it``.

        Somebody, *Paper*, 2026, https://example.org

        .. math::
            a = b,
            c = d

        .. math:: e

        where a is ``one``, like :mod:`visattn.blocks.se`, and :math:`\\bar e` is :func:`visattn.policy.policy_term`.

        Differences from the paper: none
        known.

        A note.

        >>> 1
        1
        """
    )
    assert (said.title, said.paper) == ("Title of `it`", "Somebody, *Paper*, 2026, https://example.org")
    assert said.equations == ["a = b,\nc = d", "e"]
    assert said.symbols == ["where a is `one`, like [`se`](#se), and $\\bar e$ is `policy.policy_term`."]
    assert (said.differences, said.notes) == ("Differences from the paper: none known.", ["A note."])


def test_everybody_is_in_the_taxonomy():
    who = " ".join(name for names in taxa().values() for name in names)
    assert set(attentions()) <= set(re.findall(r"`(\w+)`", who))
    assert set(ELSEWHERE) <= set(visattn.list_blocks())
    assert {taxon(name).softness for name in visattn.list_blocks(family="hard")} == {"hard"}
    assert {taxon(name).outputs for name in ("se", "spatial", "mhsa")} == {"multi-dimensional", "single", "multi-head"}
