"""The zoo on paper is the zoo in the registry."""

import re
import sys

import pytest
import torch
from PIL import Image

import visattn
from tests.blocks import Case
from tests.zoo import DOCS, page
from tests.zoo.docstrings import MATH, read, summary
from tests.zoo.steps import STEPS
from tests.zoo.taxonomy import ELSEWHERE, taxa, taxon
from visattn.blocks import block_info
from visattn.core import DISTRIBUTIONS, SCOPES, SCORES, scopes
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


def test_every_block_of_pairs_has_its_steps():
    assert sorted(STEPS) == visattn.list_blocks(family="self")
    for name, steps in STEPS.items():
        for word, known in zip(steps, (SCORES, DISTRIBUTIONS, SCOPES), strict=True):
            assert set(re.findall("`(.*?)`", word)) <= set(known), name


SIZE = (28, 14)  # whole tiles of 7 x 7 and of 2 x 2, and 7 x 7 regions of 4 x 2
ROWS, COLUMNS = (torch.arange(side) for side in SIZE)


def same(row, column):
    """Who shares two numbers, that of its row and that of its column."""
    return scopes.on_grid(*(each[:, None] == each for each in (row, column)))


def apart(step):
    """Neighbours of radius 1, so many rows and columns apart."""
    near = scopes.local_2d(*SIZE, step)
    return near & same(ROWS % step, COLUMNS % step)


def around_blocks(tile, halo):
    def axis(places):
        offset = places - places[:, None] // tile * tile  # of a key from the first of a query's block
        return (-halo <= offset) & (offset < tile + halo)

    return scopes.on_grid(axis(ROWS), axis(COLUMNS))


def through_centres(step):
    def axis(places):
        reach = scopes.near(places, places[::step], 1).float()
        return reach @ reach.T > 0

    return scopes.on_grid(axis(ROWS), axis(COLUMNS))


EVERYTHING = torch.ones(1, 1, dtype=torch.bool)
MASKS = {  # by the word: what the heads see, in any order
    "`local_2d`, radius 1": [scopes.local_2d(*SIZE, 1)],
    "`local_2d`, radius 3": [scopes.local_2d(*SIZE, 3)],
    "`local_2d`, radius 1, taken 1, 2 and 3 apart": [apart(1), apart(2), apart(3)],
    "`local_2d`, radius 1, of every other row and column, and all of it": [through_centres(2)],
    "`window_2d`, size 7": [scopes.window_2d(*SIZE, 7)],
    "`window_2d`, size 2; other heads `global`, of averages": [scopes.window_2d(*SIZE, 2), EVERYTHING],
    "`window_2d`, size 8, and 3 pixels around it": [around_blocks(8, 3)],
    "a row and a column": [same(ROWS, 0 * COLUMNS) | same(0 * ROWS, COLUMNS)],
    "every n-th row and column, 7 x 7 in all": [same(ROWS % 4, COLUMNS % 2)],
}


def weights_of(name):
    """Of two random images, (2, heads, queries, keys)."""
    return Case(name, channels=48).build().attention(torch.randn(2, 48, *SIZE, dtype=torch.float64)).detach()


@pytest.mark.parametrize("name", STEPS)
def test_the_scope_of_a_block_is_what_its_weights_show(name):
    """Weights of what is not seen are exactly zero, in every head and image, and others are not."""
    word, weights = STEPS[name].scope, weights_of(name)
    seen = (weights != 0).any(0)
    if name == "nonlocal_concat":  # its ReLU closes some pairs, but no pixel to all
        seen = seen.any(1, keepdim=True) & seen.any(2, keepdim=True)
    if word == "the 4 best of 7 x 7 tiles":
        tile = same(ROWS // 4, COLUMNS // 2).double()
        for image in (weights != 0).any(1).double():
            assert (image.sum(1) == 4 * 8).all()
            assert torch.equal(image @ tile / 8, image)  # whole tiles
            assert torch.equal(tile @ image / 8, image)  # the same for a tile of queries
        return
    expected = MASKS.get(word, [EVERYTHING])
    assert word in MASKS or word.startswith("`global`")
    assert all(any((head == mask).all() for mask in expected) for head in seen)
    assert all(any((head == mask).all() for head in seen) for mask in expected)
    assert (weights.shape[2] != weights.shape[3]) == word.startswith("`global`, of ")


@pytest.mark.parametrize("name", STEPS)
def test_the_distribution_of_a_block_is_what_its_weights_show(name):
    """Weights of either sign have none; those of a softmax sum to one, or to less where the zeros around count."""
    word, weights = STEPS[name].distribution, weights_of(name)
    assert (weights < 0).any() == word.startswith("none")
    if word.startswith("`softmax`") and name != "outlook":  # adds up windows
        total = weights.sum(-1)
        assert (total < 1 + 1e-9).all()
        inside = total.unflatten(2, SIZE)[..., 3:-3, 3:-3]
        assert name == "halo" or (inside > 1 - 1e-9).all()  # all of its windows reach beyond this map
