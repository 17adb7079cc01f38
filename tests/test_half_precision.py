"""Half precision: no further from the exact result than rounding of input, weights and output explains.

The exact result is that of the same block, with the same rounded weights and input, in float64. How far rounding
carries is measured, too: weights and input are moved by as much as rounding may move them, and the block is run again.
"""

import copy
from itertools import product

import pytest
import torch
from torch import nn

import visattn
from tests.blocks import Case, mask
from visattn.blocks import block_info
from visattn.blocks.base import Gate
from visattn.core import DISTRIBUTIONS, SCORES, Attention, energies, entmax15, sparsemax
from visattn.core.sampling import draw_log_prob, entropy, gumbel_like
from visattn.core.scopes import LocalPredictive

HALVES = [torch.float16, torch.bfloat16]
KINDS = {"centred": lambda x: x, "rectified": lambda x: 2**0.5 * x.relu(), "shifted": lambda x: x + 3}
SCALES = (0.1, 1, 6, 30, 100)  # rms
BOUND = 3  # times what rounding explains; single roundings inside a block add up
# How often weights and input are moved: more often if that does not explain the result, since rounding may flip a
# top-k, the largest of large energies, or what an offset of hundreds of pixels points to, in one draw of ten.
FEW, MANY = 2, 12

every_block = pytest.mark.parametrize("name", visattn.list_blocks())
both_halves = pytest.mark.parametrize("dtype", HALVES, ids=["float16", "bfloat16"])


def moved(tensor, epsilon, generator):
    return tensor * (1 + epsilon * (2 * torch.rand(tensor.shape, generator=generator, dtype=tensor.dtype) - 1))


def largest_inside(block, x):
    """The largest number that a layer of the block is given, or gives."""
    seen = []

    def look(_module, args, output):
        seen.extend(t.abs().max() for t in (*args, output) if isinstance(t, torch.Tensor))

    hooks = [m.register_forward_hook(look) for m in block.modules() if not list(m.children())]
    block(x)
    for hook in hooks:
        hook.remove()
    return max(seen, default=x.abs().max()).item()


def results(block, x):
    """What is compared: output and map; of hard attention the energies, since a choice is not continuous."""
    if block_info_of(block) == "hard":
        return [block.energies(x)]
    return [block(x), mask(block.attention(x))]


def block_info_of(block):
    return next(i.family for i in map(block_info, visattn.list_blocks()) if isinstance(block, i.factory))


@torch.no_grad()
def check(name, dtype, *, channels, side, scale, kind, autocast=False):
    generator = torch.Generator().manual_seed(3)
    x = scale * KINDS[kind](torch.randn(2, channels, side, side, generator=generator))
    x = x.to(dtype)
    block = Case(name, channels=channels).build(dtype=torch.float32 if autocast else dtype)
    exact = copy.deepcopy(block)
    if autocast:  # rounds the weights of convolutions
        for module in exact.modules():
            if isinstance(module, nn.Conv1d | nn.Conv2d):
                module.weight.copy_(module.weight.to(dtype))
        with torch.autocast("cpu", dtype=dtype):
            ours = results(block, x.float())
    else:
        ours = results(block, x)
        assert all(result.dtype in (dtype, torch.float32) for result in ours)
    exact, x = exact.double(), x.double()
    truth = results(exact, x)
    rounding = torch.finfo(dtype)
    smallest = rounding.smallest_normal * rounding.eps
    explained = [rounding.eps * t.abs() + smallest for t in truth]
    if isinstance(block, Gate):
        explained[0] += smallest * x.abs()  # a gate that is smaller than any number of float16
    overflow = largest_inside(exact, x) > rounding.max  # of a layer's own numbers: nothing can be done about that
    for seed in range(MANY):
        other, draw = copy.deepcopy(exact), torch.Generator().manual_seed(seed)
        for tensor in (*other.parameters(), *other.buffers()):
            if tensor.is_floating_point():
                tensor.copy_(moved(tensor, rounding.eps, draw))
        near = results(other, moved(x, rounding.eps, draw))
        explained = [torch.maximum(e, (n - t).abs()) for e, n, t in zip(explained, near, truth, strict=True)]
        if seed + 1 >= FEW:
            wrong = [find_wrong(*each, rounding.max, overflow) for each in zip(ours, truth, explained, strict=True)]
            if not any(wrong):
                return
    raise AssertionError(wrong)


def find_wrong(result, true, error, largest, overflow):
    """What rounding does not explain, in words."""
    fits = true.abs() + BOUND * error < largest
    if not overflow and not result[fits].isfinite().all():
        return "not finite"
    fits &= result.isfinite()
    wrong, explained = ((each[fits]).square().sum().sqrt() for each in (result.double() - true, error))
    return "" if wrong <= BOUND * explained else f"{wrong / explained:.1f} times what rounding explains"


@every_block
@both_halves
def test_blocks(name, dtype):
    for scale, kind in [(0.1, "centred"), (6, "centred"), (6, "shifted"), (30, "rectified"), (100, "centred")]:
        check(name, dtype, channels=16, side=7, scale=scale, kind=kind)
    if block_info(name).family != "self":
        check(name, dtype, channels=8, side=56, scale=6, kind="centred")


@both_halves
def test_frequencies_of_a_large_map(dtype):
    """Angles beyond a hundred turns are not rounded before their cosine is taken."""
    half, exact = (visattn.create_block("fca", 16, size=112, dtype=each) for each in (dtype, torch.float64))
    torch.testing.assert_close(half.rows.double(), exact.rows, rtol=0.01, atol=1e-3)


@every_block
@both_halves
def test_blocks_under_autocast(name, dtype):
    for scale, kind in [(6, "shifted"), (30, "centred")]:
        check(name, dtype, channels=16, side=7, scale=scale, kind=kind, autocast=True)


@pytest.mark.sweep
@every_block
@both_halves
@pytest.mark.parametrize("autocast", [False, True], ids=["half", "autocast"])
def test_blocks_at_every_scale(name, dtype, autocast):
    large = [(16, 28)] if block_info(name).family == "self" else [(16, 56), (16, 112)]
    for (channels, side), scale, kind in product([(16, 7), (64, 7), (256, 14), *large], SCALES, KINDS):
        check(name, dtype, channels=channels, side=side, scale=scale, kind=kind, autocast=autocast)


def vectors(dtype, scale, *shape):
    return (scale * torch.randn(*shape, generator=torch.Generator().manual_seed(1))).to(dtype)


@both_halves
@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("scale", [0.01, 1, 30])
@pytest.mark.parametrize("autocast", [False, True], ids=["half", "autocast"])
def test_attention_with_every_score(dtype, name, scale, autocast):
    """Weights and context; energies of 30 * 30 * 64 are close to what float16 can hold, and are not rounded."""
    if scale > 1 and name in ("boxcar", "triangular", "epanechnikov"):
        scale = 0.05  # further away these see nothing
    width, keys = 64, 50
    query, key = vectors(dtype, scale, 2, 5, width), vectors(dtype, scale, 3, keys, width)[:2]
    score = SCORES[name](width, **({"num_keys": keys} if name == "location" else {})).to(dtype)
    attention = Attention(width, score=score)
    with torch.no_grad():
        if autocast:
            with torch.autocast("cpu", dtype=dtype):
                ours = attention.float()(query.float(), key.float(), return_weights=True)
        else:
            ours = attention(query, key, return_weights=True)
        exact = attention.double()
        truth = exact(query.double(), key.double(), return_weights=True)
        epsilon, draw = torch.finfo(dtype).eps, torch.Generator().manual_seed(0)
        for parameter in exact.parameters():
            parameter.copy_(moved(parameter, epsilon, draw))
        near = exact(*(moved(x.double(), epsilon, draw) for x in (query, key)), return_weights=True)
    for result, true, other in zip(ours, truth, near, strict=True):
        assert result.isfinite().all()
        explained = (other - true).square().sum().sqrt() + epsilon * true.square().sum().sqrt()
        assert (result.double() - true).square().sum().sqrt() <= 2 * BOUND * explained


@both_halves
@pytest.mark.parametrize("distribution", [sparsemax, entmax15], ids=["sparsemax", "entmax15"])
@pytest.mark.parametrize("scale", [1e-3, 1, 100])
def test_sparse_distributions_over_many_keys(dtype, distribution, scale):
    """Sums over thousands of keys, and ranks beyond what half precision can count."""
    energies = vectors(dtype, scale, 3, 5000)
    weights = distribution(energies)
    assert weights.dtype == dtype
    torch.testing.assert_close(weights.double(), distribution(energies.double()), rtol=0.02, atol=1e-6)


@both_halves
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distributions_of_what_nobody_sees(dtype, name):
    distribution = Attention(4, distribution=name).eval().distribution
    assert distribution(torch.full((2, 3), -torch.inf, dtype=dtype)).eq(0).all()


@both_halves
def test_vectors_without_length(dtype):
    """The eps of a normalisation is zero in float16."""
    zero = torch.zeros(1, 2, 8, dtype=dtype)
    other = torch.ones(1, 3, 8, dtype=dtype)
    assert energies.cosine(zero, other).eq(0).all()
    assert Attention(8, score="cosine").to(dtype)(zero, other).isfinite().all()
    small = torch.full((1, 2, 8), 1e-4, dtype=dtype)
    torch.testing.assert_close(energies.cosine(small, other), torch.ones(1, 2, 3), rtol=0.01, atol=0)


@both_halves
def test_a_predicted_centre_among_thousands_of_keys(dtype):
    scope = LocalPredictive(8, radius=4).to(dtype)
    query = vectors(dtype, 1, 6, 8)
    mask, gain = scope(query, 5000)
    true_mask, true_gain = scope.double()(query.double(), 5000)
    centre, true_centre = (torch.where(m, g, 0).argmax(1) for m, g in ((mask, gain), (true_mask, true_gain)))
    assert (centre - true_centre).abs().max() <= 5000 * 4 * torch.finfo(dtype).eps
    assert gain.unique().numel() > 6  # not the same few values for all


@both_halves
def test_draws(dtype):
    energies = vectors(dtype, 3, 4, 3000)
    chosen = energies.topk(50).indices
    for function in (entropy, lambda e: draw_log_prob(e, chosen)):
        torch.testing.assert_close(function(energies).double(), function(energies.double()), rtol=1e-4, atol=1e-4)
    assert gumbel_like(torch.zeros(1000, 1000, dtype=dtype)).isfinite().all()
