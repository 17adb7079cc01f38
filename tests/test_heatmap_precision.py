"""Heatmaps in half precision: no further from those in single precision than the model's own rounding carries them.

How far that is, is measured: the model runs in single precision, and what each of its layers returns, and the gradient
that comes back to it, is rounded, or moved by as much as rounding may move it.
"""

import pytest
import torch

import visattn
from tests.models import model_and_images

BOUND = 2.5  # times what this explains: layers round inside too; measured 2.2 (xgradcam, float16), others below 2
CAMS = ["eigencam", "gradcam", "gradcam++", "hirescam", "layercam", "xgradcam"]  # the others take hundreds of passes
# HiResCAM of a ViT with a class token is zero, and what is seen of it rounding: the patches before the last block reach
# the output through a LayerNorm only, and the gradient of a LayerNorm is orthogonal to its input.
METHODS = {
    "test_vit": ["attention", "rollout", "chefer", "grad_rollout", "legrad", "input_gradient"]
    + [each for each in CAMS if each != "hirescam"],
    "test_resnet": ["input_gradient", *CAMS],
}
WAYS = {"autocast": torch.bfloat16, "bfloat16": torch.bfloat16, "float16": torch.float16}


def in_half_precision(way, model, images, method, target):
    if way == "autocast":
        with torch.autocast("cpu", torch.bfloat16):
            return visattn.explain(model, images, method, target).raw
    dtype = WAYS[way]
    return visattn.explain(model.to(dtype), images.to(dtype), method, target).raw


def rounded(dtype, seed):
    """A hook that rounds what a layer returns; with a seed, one that moves it at random as far as rounding could."""
    generator = torch.Generator().manual_seed(seed)

    def round_off(x):
        if seed == 0:
            return x.to(dtype).float()
        return x * (1 + torch.finfo(dtype).eps * (2 * torch.rand(x.shape, generator=generator) - 1))

    def hook(_module, _args, output):
        moved = round_off(output)
        output = output + (moved - output).detach() if seed == 0 else moved
        if output.requires_grad:
            output.register_hook(round_off)
        return output

    return hook


def explained(model, images, method, target, dtype, seed):
    """The heatmap of a model that rounds, with everything else in single precision."""
    layers = [m for m in model.modules() if not list(m.children())]
    handles = [m.register_forward_hook(rounded(dtype, seed)) for m in layers]
    try:
        return visattn.explain(model, images.to(dtype).float(), method, target).raw
    finally:
        for handle in handles:
            handle.remove()


def distance(a, b):
    return ((a.float() - b.float()).norm() / b.float().norm()).item()


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("name", "method"), [(name, each) for name in METHODS for each in METHODS[name]])
def test_every_method_is_as_exact_as_its_model(name, method, way):
    model, images = model_and_images(name, number=1)
    target = model(images).argmax(1).tolist()
    true = visattn.explain(model, images, method, target).raw
    error = max(distance(explained(model, images, method, target, WAYS[way], seed), true) for seed in range(4))
    found = in_half_precision(way, model, images, method, target)
    assert found.isfinite().all()
    assert distance(found, true) <= BOUND * error
