"""Score, distribution and scope of every block that attends to pairs of places.

Words in code are names of the core (``SCORES``, ``DISTRIBUTIONS``, ``SCOPES``). ``tests/test_zoo.py`` compares scope
and distribution with the weights that a block returns.
"""

from __future__ import annotations

from typing import NamedTuple


class Steps(NamedTuple):
    score: str
    distribution: str
    scope: str


_POSITIONS = "relative positions"
_OVER_BOTH = "softmax of keys over places and of queries over channels"
_KERNEL = ("`dot` of positive features", "divided by the sum")

STEPS: dict[str, Steps] = {
    "acmix": Steps("`scaled_dot`, positions", "`softmax`", "`local_2d`, radius 3"),
    "aft": Steps("a number per key, and one per offset", "`softmax`", "`global`"),
    "agent": Steps("`scaled_dot`, positions", "`softmax`, twice", "`global`, through averages of queries"),
    "aug": Steps(f"`scaled_dot`, {_POSITIONS}", "`softmax`", "`global`"),
    "axial": Steps(f"`dot`, {_POSITIONS}, normed", "`softmax`, twice", "`global`, by a column and then a row"),
    "bra": Steps("`scaled_dot`", "`softmax`", "the 4 best of 7 x 7 tiles"),
    "cga": Steps(f"`scaled_dot`, {_POSITIONS}", "`softmax`", "`window_2d`, size 7"),
    "cot": Steps("`location`, of a query and its surroundings", "none, normed", "`local_2d`, radius 1"),
    "criss_cross": Steps("`dot`", "`softmax`", "a row and a column"),
    "danet": Steps("`dot`", "`softmax`", "`global`"),
    "deformable": Steps(f"`scaled_dot`, {_POSITIONS}", "`softmax`", "`global`, at sampled points"),
    "dilated": Steps("`scaled_dot`", "`softmax`", "`local_2d`, radius 1, taken 1, 2 and 3 apart"),
    "double": Steps("`dot`", _OVER_BOTH, "`global`, through descriptors"),
    "efficient": Steps("`dot`", _OVER_BOTH, "`global`, through descriptors"),
    "emsa": Steps("`scaled_dot`, heads mixed", "`softmax`, then normed", "`global`, of a smaller map"),
    "external": Steps("`dot`", "softmax over places, divided by the sum over slots", "`global`, of a memory"),
    "focused_linear": Steps(*_KERNEL, "`global`"),
    "generalized": Steps(f"`biased_general`, {_POSITIONS}", "`softmax`", "`global`, of every other row and column"),
    "halo": Steps(f"`scaled_dot`, {_POSITIONS}", "`softmax`", "`window_2d`, size 8, and 3 pixels around it"),
    "hilo": Steps("`scaled_dot`", "`softmax`", "`window_2d`, size 2; other heads `global`, of averages"),
    "involution": Steps("`location`", "none", "`local_2d`, radius 3"),
    "irmb": Steps("`scaled_dot`", "`softmax`", "every n-th row and column, 7 x 7 in all"),
    "lambda": Steps(f"`dot`, {_POSITIONS} up to 11 apart", "none; of keys, softmax over places", "`global`"),
    "linear": Steps(*_KERNEL, "`global`"),
    "mhsa": Steps(f"`scaled_dot`, {_POSITIONS}", "`softmax`", "`global`"),
    "nonlocal": Steps("`scaled_dot`", "`softmax`", "`global`"),
    "nonlocal_concat": Steps("`concat`", "ReLU, divided by N", "`global`"),
    "nonlocal_dot": Steps("`dot`", "none, divided by N", "`global`"),
    "nonlocal_gaussian": Steps("`dot`", "`softmax`", "`global`"),
    "outlook": Steps("`location`", "`softmax`", "`local_2d`, radius 1, of every other row and column, and all of it"),
    "perceiver": Steps("`scaled_dot`", "`softmax`, twice", "`global`, through latents"),
    "performer": Steps(*_KERNEL, "`global`"),
    "sasa": Steps(f"`dot`, {_POSITIONS}", "`softmax`", "`local_2d`, radius 3"),
    "shsa": Steps("`scaled_dot`", "`softmax`", "`global`"),
}
