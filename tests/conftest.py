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


def pytest_collection_modifyitems(items):
    """The longest tests begin first: one that began last would keep a single core busy while the others have ended."""

    def minutes(item):
        slow = item.get_closest_marker("slow")
        return 0 if slow is None else slow.kwargs.get("minutes", 0)

    items.sort(key=minutes, reverse=True)  # all others keep their order


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
