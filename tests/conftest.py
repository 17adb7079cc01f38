import os
import sys
from collections import defaultdict

import pytest
import timm
import torch

from visattn.blocks import base
from visattn.heatmaps import METHODS
from visattn.models import plugins
from visattn.registry import Registry

# Processes share the cores, and threads that wait for each other cost more than these small networks.
os.environ["OMP_NUM_THREADS"] = "1"  # for processes that tests start
torch.set_num_threads(1)


@pytest.hookimpl(tryfirst=True)  # before pytest looks at marks
def pytest_collection_modifyitems(config, items):
    """Sample tests of many rows, and let the longest begin first: the last one would keep a single core busy."""
    if runs_everything(config):
        quick = [item for item in items if not any(map(item.get_closest_marker, ("slow", "sweep", "gpu")))]
        for number in beyond_the_sample([item.nodeid for item in quick]):
            quick[number].add_marker(pytest.mark.slow)

    def minutes(item):
        slow = item.get_closest_marker("slow")
        return 0 if slow is None else slow.kwargs.get("minutes", 0)

    items.sort(key=minutes, reverse=True)  # all others keep their order


ROWS = 8  # of one test in a plain pytest; the rest of a long table is in the slow tier


def runs_everything(config):
    """Whether nobody has chosen files or names: those who did want every row."""
    if hasattr(config, "workerinput"):
        return config.workerinput["runs_everything"]
    return config.args_source is pytest.Config.ArgsSource.TESTPATHS and not config.option.keyword


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """Tell the processes of pytest-xdist, who are given the files one by one."""
    node.workerinput["runs_everything"] = runs_everything(node.config)


def beyond_the_sample(names):
    """The numbers of the rows that are left out: all but ROWS of a test, evenly spread."""
    tests = defaultdict(list)
    for number, name in enumerate(names):
        tests[name.partition("[")[0]].append(number)
    for rows in tests.values():
        kept = {each * len(rows) // ROWS for each in range(ROWS)}
        yield from (number for at, number in enumerate(rows) if len(rows) > ROWS and at not in kept)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A folder of its own to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def _few_pictures(monkeypatch):
    """Runs that are not about their pictures draw two images; twelve take as long as all the rest of a small run."""
    monkeypatch.setattr("visattn.training.pictures.SHOWN", 2)
    monkeypatch.setattr("visattn.training.pictures.FILMED", 2)


@pytest.fixture
def undrawn(elsewhere, monkeypatch):
    """A folder of its own to work in, for runs that leave out their last pictures."""
    monkeypatch.setattr("visattn.training.train.draw_outcome", lambda *_: None)
    return elsewhere


@pytest.fixture
def _scratch_names(monkeypatch):
    """Blocks, methods, models and plugins that come in during a test are gone after it."""
    monkeypatch.setattr(base, "BLOCKS", Registry("block", {name: base.block_info(name) for name in base.BLOCKS}))
    monkeypatch.setattr(METHODS, "_entries", dict(METHODS._entries))
    for table in ("_model_entrypoints", "_model_to_module"):
        monkeypatch.setattr(timm.models._registry, table, dict(getattr(timm.models._registry, table)))
    modules = {module: set(names) for module, names in timm.models._registry._module_to_models.items()}
    monkeypatch.setattr(timm.models._registry, "_module_to_models", defaultdict(set, modules))
    before = set(plugins.loaded)
    yield
    for module in set(plugins.loaded) - before:
        del plugins.loaded[module]
        sys.modules.pop(module, None)
