"""What the table of oracles has no column for: identities between blocks, second inputs, small maps and odd widths."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import visattn
from tests.blocks import Case, array
from tests.blocks.parts import bias, linear, matrix, norm
from tests.reference.blocks import attention_gate, danet

ANY_WIDTH = (
    "attention_gate",
    "caa",
    "cpca",
    "danet",
    "deformable_lka",
    "ema",
    "lsk",
    "lska",
    "mhca",
    "mlca",
    "msca",
    "strip",
)


def image(*shape):
    return torch.randn(*shape, dtype=torch.float64)


@torch.no_grad()
def test_lska_of_separable_kernels_is_lka():
    lka, lska = Case("lka").build(), Case("lska").build()
    for whole, row, column in ((lka.local, lska.row, lska.column), (lka.distant, lska.far_row, lska.far_column)):
        whole.weight.copy_(column.weight * row.weight)
        row.bias.zero_()
        whole.bias.copy_(column.bias)
    lka.mix.load_state_dict(lska.mix.state_dict())
    x = image(2, 16, 9, 14)
    torch.testing.assert_close(lska(x), lka(x))


@torch.no_grad()
def test_deformable_lka_that_does_not_move_is_lka():
    lka, deformable = Case("lka").build(), Case("deformable_lka").build()
    for plain, moved in ((lka.local, deformable.local), (lka.distant, deformable.distant)):
        plain.weight.copy_(moved.weight)
        plain.bias.zero_()
        moved.offsets.weight.zero_()
        moved.offsets.bias.zero_()
    lka.mix.load_state_dict(deformable.mix.state_dict())
    x = image(2, 16, 9, 14)
    torch.testing.assert_close(deformable(x), lka(x))


@torch.no_grad()
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_deformable_lka_of_what_is_not_finite(value):
    """torchvision reads anywhere in memory if it is told to look at no place at all."""
    x = image(2, 16, 9, 14)
    x[0, 3, 4, 5] = value
    y = Case("deformable_lka").build()(x)
    assert not y[0].isfinite().all()
    assert y[1].isfinite().all()


@torch.no_grad()
def test_the_map_of_cpca_is_what_its_features_are_multiplied_by():
    block = Case("cpca").build()
    x = image(2, 16, 9, 7)
    torch.testing.assert_close(block.mix(block.attention(x) * F.gelu(block.mix(x))), block(x))


def test_channels_attend_to_those_unlike_them():
    x = image(2, 16, 7, 5)
    weights = Case("danet").build().channel_attention(x)[:, 0]
    np.testing.assert_allclose(array(weights), danet.channel_weights(array(x)), rtol=1e-10)


@torch.no_grad()
def test_the_selection_of_lsk():
    """With a single scale selected everywhere, only that one is left."""
    block = Case("lsk").build()
    block.choose.weight.zero_()
    block.choose.bias.copy_(torch.tensor([1e3, -1e3]))
    x = image(2, 16, 7, 5)
    assert torch.equal(block.selection(x)[:, 0], torch.ones(2, 7, 5, dtype=torch.float64))
    torch.testing.assert_close(block.attention(x), block.mix(block.narrow(block.local(x))))


@pytest.mark.parametrize(("size", "signal"), [((7, 5), (4, 3)), ((14, 17), (7, 8)), ((8, 8), (1, 1)), ((2, 3), (5, 7))])
def test_a_gate_with_a_signal(size, signal):
    block = Case("attention_gate", {"signal_channels": 6}).build()
    x, signal = image(2, 16, *size), image(2, 6, *signal)
    parts = array(x), array(signal), array(block.theta.weight), linear(block.phi), linear(block.psi)
    with torch.no_grad():
        gated, weights = block(x, signal), block.attention(x, signal)
    last = matrix(block.out), bias(block.out), norm(block.bn)
    np.testing.assert_allclose(array(gated), attention_gate.attention_gate(*parts, *last), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(array(weights), attention_gate.attention_gate_map(*parts), rtol=1e-10, atol=1e-10)


def test_a_gate_says_which_signal_it_takes():
    block = visattn.create_block("attention_gate", 16, signal_channels=6)
    x = torch.rand(2, 16, 8, 8)
    with pytest.raises(ValueError, match=r"signals \(B, 6, H, W\), got a tensor \(2, 16, 8, 8\)"):
        block(x)
    with pytest.raises(ValueError, match=r"signals \(B, 6, H, W\), got a tensor \(2, 5, 4, 4\)"):
        block(x, torch.rand(2, 5, 4, 4))


class Skip(nn.Module):
    """A network with a gate between a fine and a coarse map."""

    def __init__(self, by_name):
        super().__init__()
        self.fine, self.coarse = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 12, 3, stride=2, padding=1)
        self.gate = visattn.create_block("attention_gate", 8, signal_channels=12)
        self.by_name = by_name

    def forward(self, x):
        fine = self.fine(x)
        signal = self.coarse(fine)
        gated = self.gate(fine, signal=signal) if self.by_name else self.gate(fine, signal)
        return gated.mean((2, 3))


@pytest.mark.parametrize("by_name", [False, True])
def test_gates_are_shown_with_their_signal(by_name):
    model = Skip(by_name).eval()
    images = torch.rand(2, 3, 16, 16)
    found = visattn.explain(model, images, "gates")
    fine = model.fine(images)
    torch.testing.assert_close(found.raw, model.gate.attention(fine, model.coarse(fine)).detach()[:, 0])


@pytest.mark.parametrize("name", ANY_WIDTH)
@pytest.mark.parametrize("channels", [1, 3, 7, 33])
def test_any_width(name, channels):
    block = visattn.create_block(name, channels).eval()
    for size in ((1, 1), (1, 6), (5, 4)):
        x = torch.randn(1, channels, *size)
        assert block(x).shape == x.shape
        assert block(x).isfinite().all()


@pytest.mark.parametrize(
    ("name", "channels", "options", "message"),
    [
        ("scsa", 6, {}, "scsa needs a number of channels that four divides, got 6"),
        ("scsa", 16, {"heads": 3}, "scsa: 3 heads do not divide 16 channels"),
        ("scsa", 16, {"window": 0}, "scsa needs window above zero, got 0"),
        ("ema", 16, {"groups": 3}, "ema: 3 groups do not divide 16 channels"),
        ("mlca", 16, {"size": 0}, "mlca needs size above zero, got 0"),
        ("mlca", 16, {"local_weight": 1.5}, "mlca needs local_weight between 0 and 1, got 1.5"),
        ("lska", 16, {"kernel_size": 9}, "lska needs a kernel_size of 7, 11, 23, 35, 41, 53, got 9"),
        ("caa", 16, {"kernel_size": 10}, "caa needs an odd kernel_size, got 10"),
        ("strip", 16, {"kernel_size": 0}, "strip needs an odd kernel_size, got 0"),
        ("mhca", 16, {"heads": 0}, "mhca needs heads above zero, got 0"),
        ("attention_gate", 16, {"signal_channels": 0}, "attention_gate needs signal_channels above zero, got 0"),
    ],
)
def test_bad_settings_are_explained(name, channels, options, message):
    with pytest.raises(ValueError, match=message):
        visattn.create_block(name, channels, **options)


def test_scsa_of_one_number_per_group():
    block = visattn.create_block("scsa", 4)
    assert block(torch.randn(1, 4, 1, 1)).isfinite().all()
