"""Every block computes what its paper says: float64 against an oracle that knows nothing of our code."""

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

import visattn
from tests.blocks import CASES, DEFAULTS, MULTIPLIES, OUTPUT, WEIGHTS, Case, array, mask
from tests.reference.blocks import eca
from visattn.blocks.eca import eca_kernel_size
from visattn.blocks.performer import orthogonal_features

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


@pytest.mark.parametrize(
    "case",
    # A minute of plain loops; a variant on smaller maps is quick.
    [pytest.param(case, marks=pytest.mark.slow) if case.id == "deformable" else case for case in CASES],
    ids=CASES_BY_ID,
)
def test_agrees_with_the_paper(case):
    check_against_oracle(case, case.build())


NOT_THE_WHOLE_GRADIENT = {"nam"}  # by definition, none goes through a part of what a parameter does


@pytest.mark.parametrize("case", CASES, ids=CASES_BY_ID)
def test_gradients(case):
    """Analytic against numerical derivatives, in the input and in every parameter."""
    block = case.build()
    size = (4, 3) if len(case.sizes) > 1 else case.sizes[0]
    x = torch.randn(1, case.channels, *size, dtype=torch.float64, requires_grad=True)
    names, values = zip(*block.named_parameters(), strict=True) if list(block.parameters()) else ((), ())
    if case.name in NOT_THE_WHOLE_GRADIENT:
        values = [value.detach() for value in values]

    def run(x, *parameters):
        return torch.func.functional_call(block, dict(zip(names, parameters, strict=True)), (x,))

    assert gradcheck(run, (x, *values), fast_mode=True)


NO_GATE = {"simam", "ge", *visattn.list_blocks(family="hard")}  # no weights, or nothing between open and closed
NO_GATE |= {"gct_gaussian", "shuffle"}  # no weights; in another order than the input


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
    ratio |= dict.fromkeys(("criss_cross", "efficient", "external"), 1.0)
    ratio |= dict.fromkeys(("sk", "splat", "mhsa", "involution"), 0.0)  # convolutions of zeros
    ratio |= dict.fromkeys(("outlook", "aft", "emsa", "bra", "deformable", "cga", "cas", "dilated", "hilo"), 0.0)
    ratio |= {"agent": 0.0, "shsa": 0.0, "irmb": 1.0, "generalized": 1.0, "perceiver": 1.0}
    ratio |= dict.fromkeys(("attention_gate", "cpca", "deformable_lka", "lsk", "lska", "msca", "strip"), 0.0)
    ratio |= {"danet": 1.0, "scsa": 0.125}
    ratio |= {"ela": 0.25, "gam": 0.25, "polarized_sequential": 0.25, "parnet": 0.0, "psa": 0.0}
    ratio |= {"polarized_parallel": 0.5 + 1 / (1 + np.exp(-1 / 35))}
    ratio |= dict.fromkeys(("sasa", "halo", "acmix", "cot", "lambda", "aug", "axial"), 0.0)
    ratio |= dict.fromkeys(("linear", "performer", "focused_linear"), 0.0)
    expected = x * ratio.get(case.name, 0.5)
    torch.testing.assert_close(output, expected.relu() if case.name == "external" else expected)


READS_POSITIONS = {"fca", "ge_theta", "ge_theta_plus", "sk", "splat"}  # frequencies, or spatial convolutions
READS_POSITIONS |= {"parnet", "psa"}


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


@pytest.mark.parametrize(
    "name",
    [
        "nonlocal",
        "nonlocal_gaussian",
        "mhsa",
        "double",
        "danet",
        "acmix",
        "aug",
        "axial",
        "criss_cross",
        "efficient",
        "performer",
    ],
)
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


@pytest.mark.parametrize("name", ["linear", "performer", "efficient", "external"])
def test_attention_that_knows_no_positions(name):
    block = Case(name).build()
    x, order = torch.randn(2, 16, 7, 5, dtype=torch.float64), torch.randperm(35)

    def shuffle(t):
        return t.flatten(2)[..., order].view_as(t)

    torch.testing.assert_close(block(shuffle(x)), shuffle(block(x)))


@pytest.mark.parametrize("name", ["sasa", "halo"])
def test_what_is_outside_the_map_takes_its_share(name):
    """Zeros around the map stay in the softmax: rows sum to one inside, and to less at the border."""
    options = {"kernel_size": 3} if name == "sasa" else {"block": 4, "halo": 1}
    total = Case(name, options).build().attention(torch.randn(1, 16, 12, 12, dtype=torch.float64)).sum(-1)
    total = total.unflatten(2, (12, 12))
    inside = total[..., 4:8, 4:8]
    torch.testing.assert_close(inside, torch.ones_like(inside))
    assert (total[..., 0, :] < 1).all()


def test_stand_alone_is_halo_of_single_pixels():
    """With blocks of one pixel, the windows are those around every pixel; without positions both are the same."""
    stand_alone = Case("sasa", {"kernel_size": 5, "heads": 2}).build()
    halo = Case("halo", {"block": 1, "halo": 2, "heads": 2}).build()
    with torch.no_grad():
        for table in (stand_alone.rel_h, stand_alone.rel_w, halo.rel_h, halo.rel_w):
            table.zero_()
        halo.qkv.weight.copy_(stand_alone.qkv.weight)
        halo.qkv.weight[:16] *= 8**0.5  # its energies are divided by that
    x = torch.randn(2, 16, 7, 5, dtype=torch.float64)
    torch.testing.assert_close(stand_alone(x), halo(x))


def test_many_random_features_are_a_softmax():
    block = visattn.create_block("performer", 16, heads=2, features=100_000, dtype=torch.float64)
    x = 0.3 * torch.randn(1, 16, 5, 4, dtype=torch.float64)
    query, key = (layer(x).unflatten(1, (2, 8)).flatten(3).mT for layer in (block.query, block.key))
    expected = torch.softmax(query @ key.mT / 8**0.5, dim=-1)
    assert expected.max() > 1.5 * expected.min()
    torch.testing.assert_close(block.attention(x), expected, rtol=0.05, atol=0)


def test_random_features_of_the_performer():
    """Orthogonal within a block, as long as Gaussian vectors, the same in every block that is built."""
    rows = orthogonal_features(2000, 8, torch.Generator().manual_seed(3))
    products = rows[:8] @ rows[:8].T
    torch.testing.assert_close(products, products.diag().diag(), atol=1e-12, rtol=0)
    torch.testing.assert_close(rows.square().sum(1).mean(), torch.tensor(8.0).double(), rtol=0.03, atol=0)
    assert rows.unflatten(0, (-1, 8)).mean(0).abs().max() < 0.3  # of 250 numbers of variance one: no sign is preferred
    first, second = (visattn.create_block("performer", 16) for _ in range(2))
    assert torch.equal(first.projection, second.projection)
    second.redraw(1)
    assert not torch.equal(first.projection, second.projection)
