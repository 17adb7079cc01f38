"""Every block computes what its paper says: float64 against an oracle that knows nothing of our code."""

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

import visattn
from tests.blocks import CASES, DEFAULTS, MULTIPLIES, OUTPUT, WEIGHTS, Case, array, mask
from tests.reference.blocks import eca
from visattn.blocks.eca import eca_kernel_size

CASES_BY_ID = {case.id: case for case in CASES}


def check_against_oracle(case: Case, block: torch.nn.Module) -> None:
    """Output and attention map, on every size of the case."""
    for height, width in case.sizes:
        x = torch.randn(2, case.channels, height, width, dtype=torch.float64)
        expected = OUTPUT[case.name](block, array(x))
        with torch.no_grad():
            output, attention = block(x), mask(block.attention(x))
        np.testing.assert_allclose(array(output), expected, rtol=1e-10, atol=1e-10)
        if case.name in MULTIPLIES:
            np.testing.assert_allclose(array(x * attention), expected, rtol=1e-10, atol=1e-10)
        elif case.name in WEIGHTS:
            weights = WEIGHTS[case.name](block, array(x))
            np.testing.assert_allclose(array(attention), weights, rtol=1e-10, atol=1e-10)


def test_every_block_has_an_oracle():
    assert sorted(OUTPUT) == visattn.list_blocks()


@pytest.mark.parametrize("case", CASES, ids=CASES_BY_ID)
def test_agrees_with_the_paper(case):
    check_against_oracle(case, case.build())


@pytest.mark.parametrize("case", CASES, ids=CASES_BY_ID)
def test_gradients(case):
    """Analytic against numerical derivatives, in the input and in every parameter."""
    block = case.build()
    size = (4, 3) if len(case.sizes) > 1 else case.sizes[0]
    x = torch.randn(1, case.channels, *size, dtype=torch.float64, requires_grad=True)
    names, values = zip(*block.named_parameters(), strict=True) if list(block.parameters()) else ((), ())

    def run(x, *parameters):
        return torch.func.functional_call(block, dict(zip(names, parameters, strict=True)), (x,))

    assert gradcheck(run, (x, *values), fast_mode=True)


NO_GATE = {"simam", "ge", *visattn.list_blocks(family="hard")}  # no weights, or nothing between open and closed


@pytest.mark.parametrize("case", [case for case in DEFAULTS if case.name not in NO_GATE], ids=lambda case: case.id)
def test_zero_logits_make_an_even_gate(case):
    """With all weights at zero a sigmoid gate is one half, a softmax uniform, and residual blocks the identity."""
    block = case.build()
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.zero_()
    x = torch.randn(2, case.channels, 7, 5, dtype=torch.float64)
    with torch.no_grad():
        output = block(x)
    ratio = {"bam": 1.5, "residual": 1.5, "coord": 0.25, "cbam": 0.25, "lka": 0.0, "gct": 1.0}
    ratio |= dict.fromkeys(("gc", "double", *visattn.list_blocks("nonlocal*")), 1.0)
    ratio |= dict.fromkeys(("sk", "splat", "mhsa"), 0.0)  # convolutions of zeros
    torch.testing.assert_close(output, x * ratio.get(case.name, 0.5))


READS_POSITIONS = {"fca", "ge_theta", "ge_theta_plus", "sk", "splat"}  # frequencies, or spatial convolutions


@pytest.mark.parametrize("name", sorted(set(visattn.list_blocks(family="channel")) - READS_POSITIONS))
def test_channel_gates_ignore_where_things_are(name):
    """Permuting the pixels permutes the output: such a gate knows no positions."""
    case = Case(name)
    block = case.build()
    x = torch.randn(2, 16, 7, 5, dtype=torch.float64)
    order = torch.randperm(35)

    def shuffle(t):
        return t.flatten(2)[..., order].view_as(t)

    torch.testing.assert_close(block(shuffle(x)), shuffle(block(x)))


@pytest.mark.parametrize("name", ["nonlocal", "nonlocal_gaussian", "mhsa", "double"])
def test_relational_weights_are_distributions(name):
    block = Case(name).build()
    weights = block.attention(torch.randn(2, 16, 7, 5, dtype=torch.float64))
    assert weights.shape == (2, getattr(block, "heads", 1), 35, 35)
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))


def test_eca_kernel_sizes():
    """The formula for every width, and the sizes that it gives a ResNet-50 (the released model has 3 first)."""
    assert [eca_kernel_size(c) for c in range(1, 4097)] == [eca.eca_kernel_size(c) for c in range(1, 4097)]
    assert [eca_kernel_size(c) for c in (256, 512, 1024, 2048)] == [5, 5, 5, 7]
