"""The oracle tests can fail: each row changes one line of a block, and the comparison with the paper must turn red.

The mutations are mistakes seen in widely used attention collections, or ones that are easy to make.
"""

import inspect
import sys
import types

import pytest

import visattn
from tests.blocks import DEFAULTS, MUTATIONS, Case
from tests.test_block_oracles import check_against_oracle
from visattn.blocks import base, block_info
from visattn.registry import Registry

SHARED = (  # lines that other blocks are built from
    "visattn.blocks.primitives",
    "visattn.blocks.se",
    "visattn.blocks.spatial",
    "visattn.blocks.windows",
    "visattn.blocks.feature_maps",
)


def execute(source):
    module = types.ModuleType("mutant")
    exec(compile(source, "mutant.py", "exec"), vars(module))
    return module


def mutated_factory(name, line, mistake, monkeypatch):
    """The block's class, made anew from its source with one change, outside of the real registry."""
    info = block_info(name)
    own = info.factory.__module__
    sources = {module: inspect.getsource(sys.modules[module]) for module in dict.fromkeys((own, *SHARED))}
    changed = next((module for module, source in sources.items() if line in source), None)
    assert changed is not None, f"no longer in the code of {name}: {line}"
    monkeypatch.setattr(base, "BLOCKS", Registry("block"))
    monkeypatch.setitem(sys.modules, changed, execute(sources[changed].replace(line, mistake)))
    module = sys.modules[own] if changed == own else execute(sources[own])
    return getattr(module, info.factory.__name__)


def test_every_block_has_a_mutation():
    assert {name for name, *_ in MUTATIONS} == set(visattn.list_blocks())


@pytest.mark.parametrize(
    ("name", "options", "line", "mistake"), MUTATIONS, ids=[f"{m[0]}: {m[3].strip()[:40]}" for m in MUTATIONS]
)
def test_a_mistake_turns_the_oracle_test_red(name, options, line, mistake, monkeypatch):
    factory = mutated_factory(name, line, mistake, monkeypatch)
    default = next(case for case in DEFAULTS if case.name == name)
    case = Case(name, options, channels=max(32, default.channels), sizes=((7, 5), (33, 17)))
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        check_against_oracle(case, case.build(factory=factory))
