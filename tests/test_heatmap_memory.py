"""Methods on attention weights never hold a whole map of many tokens."""

import weakref

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch.utils._python_dispatch import TorchDispatchMode

import visattn
from tests.tensors import LargestTensor
from visattn.heatmaps.watch import exactness

SIDE = 42
TOKENS = SIDE**2 + 1
SOURCES = (SIDE // 2) ** 2 + 1  # patches are joined four by four


class HeldMemory(TorchDispatchMode):
    """Remembers the most bytes that were held at once behind tensors that operations returned."""

    def __init__(self, before):
        super().__init__()
        self.held = {each.untyped_storage()._cdata: 0 for each in before}
        self.peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else (result,):
            if isinstance(value, torch.Tensor) and not value.is_meta:
                storage = value.untyped_storage()
                if storage._cdata not in self.held:
                    self.held[storage._cdata] = storage.nbytes()
                    weakref.finalize(storage, self.held.pop, storage._cdata)
                    self.peak = max(self.peak, sum(self.held.values()))
        return result


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return VisionTransformer(8 * SIDE, 8, embed_dim=32, depth=2, num_heads=4, num_classes=5).eval()


def largest(model, method):
    """Of all tensors of a heatmap; the first one includes those that are needed to know what the tokens are."""
    with LargestTensor() as memory:
        visattn.explain(model, torch.rand(1, 3, 8 * SIDE, 8 * SIDE), method)
    return memory.bytes


@pytest.mark.parametrize("method", ["attention", "rollout", "chefer", "grad_rollout", "legrad"])
def test_no_map_is_held_whole(model, method):
    assert largest(model, method) <= 4 * TOKENS * SOURCES < 4 * TOKENS**2 / 3


def test_the_measure_can_fail(model, monkeypatch):
    monkeypatch.setattr(exactness, "PIECE", 2**40)
    assert largest(model, "rollout") >= 4 * TOKENS**2


@pytest.mark.slow
@pytest.mark.parametrize(("width", "heads"), [(192, 3), (384, 6)])
def test_rollout_of_a_large_image_takes_half_as_much_again_as_the_model(width, heads):
    """4,096 patches in layers as wide as those of a ViT-Ti and a ViT-S."""
    model = VisionTransformer(1024, 16, embed_dim=width, depth=2, num_heads=heads, num_classes=5).eval()
    images = torch.rand(1, 3, 1024, 1024)
    before = (*model.parameters(), *model.buffers(), images)
    with torch.no_grad(), HeldMemory(before) as own:
        model(images)
    with HeldMemory(before) as memory:
        visattn.explain(model, images, "rollout")
    assert own.peak < memory.peak <= 1.5 * own.peak
