"""Which tests a plain pytest runs."""

import subprocess
import sys
from itertools import pairwise

import pytest

from tests.conftest import ROWS, beyond_the_sample
from tests.training import ROOT, environment


def test_long_tables_are_sampled_evenly_and_others_left_whole():
    long, short = [f"a.py::test_long[{row}]" for row in range(100)], [f"a.py::test_short[{row}]" for row in range(ROWS)]
    names = [name for pair in zip(long, short, strict=False) for name in pair] + long[ROWS:] + ["a.py::test_one"]
    left_out = [names[number] for number in beyond_the_sample(names)]
    kept = [name for name in names if name not in left_out]
    assert len(kept) == 2 * ROWS + 1
    assert set(short) < set(kept)
    rows = [long.index(name) for name in kept if name in long]
    assert rows[0] == 0
    assert {after - before for before, after in pairwise(rows)} == {100 // ROWS, 100 // ROWS + 1}


def collected(*arguments):
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *arguments]
    output = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=True).stdout
    return {line for line in output.splitlines() if "::" in line}


@pytest.mark.slow
def test_the_two_tiers_have_every_row():
    quick, slow = collected(), collected("-m", "slow")
    assert not quick & slow
    assert quick | slow == collected("-m", "slow or not (sweep or gpu)")
    file = "tests/test_block_properties.py"
    assert {name for name in quick if name.startswith(file)} < collected(file), "a chosen file has every row"
