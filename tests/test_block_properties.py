"""Properties that hold for every registered block; a new one is picked up by itself."""

import copy
import inspect
import io
import pickle

import pytest
import torch

import visattn
from tests.blocks import DEFAULTS, OF_EVERY_FAMILY, Case, mask, randomise
from tests.tiers import mostly_slow
from visattn.blocks import FAMILIES, Gate, block_info

every_block = pytest.mark.parametrize("case", DEFAULTS, ids=lambda case: case.id)
SIZES = [(1, 1), (7, 5), (33, 17)]


POOLED = {"emsa", "generalized"}  # blocks whose keys are every second row and column
KEYS = {"external": 64}  # blocks whose keys are not the pixels, and how many they have


def attention_shapes(case, batch, height, width):
    """The four kinds of maps a block may return."""
    channels, pixels = case.channels, height * width
    keys = -(-height // 2) * -(-width // 2) if case.name in POOLED else KEYS.get(case.name, pixels)
    return [
        (batch, channels, 1, 1),
        (batch, 1, height, width),
        (batch, channels, height, width),
        *((batch, heads, pixels, keys) for heads in (1, 2, 4, 8)),
    ]


@every_block
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("batch", [1, 3])
def test_shapes(case, size, batch):
    block = case.build(dtype=torch.float32)
    x = torch.randn(batch, case.channels, *size)
    assert block(x).shape == x.shape
    assert mask(block.attention(x)).shape in attention_shapes(case, batch, *size)
    assert block(x).isfinite().all()


@every_block
@pytest.mark.parametrize("channels", [32, 64, 100, 256])
def test_widths(case, channels):
    block = visattn.create_block(case.name, channels).eval()
    x = torch.randn(1, channels, 6, 4)
    assert block(x).shape == x.shape


# Into how many parts a definition divides the channels.
MULTIPLES = {"axial": 2, "sasa": 2, "shuffle": 2, "splat": 2, "generalized": 4, "psa": 4, "scsa": 4}


@every_block
def test_narrow_and_odd_widths(case):
    for channels in (1, 2, 3, 4, 7):
        if channels % MULTIPLES.get(case.name, 1) or (case.name, channels) == ("aug", 1):  # no convolution left
            with pytest.raises(ValueError, match=rf"\b{channels}\b"):
                visattn.create_block(case.name, channels)
        else:
            x = torch.randn(2, channels, 6, 5)
            assert visattn.create_block(case.name, channels)(x).shape == x.shape


@every_block
def test_does_not_depend_on_batch_mates(case):
    block = case.build()
    x = torch.randn(3, case.channels, 7, 5, dtype=torch.float64)
    alone = torch.cat([block(image) for image in x.split(1)])
    torch.testing.assert_close(block(x), alone, rtol=1e-12, atol=1e-12)


@every_block
def test_leaves_its_input_alone(case):
    block = case.build().train()
    x = torch.randn(2, case.channels, 7, 5, dtype=torch.float64)
    before = x.clone()
    block(x)
    block.attention(x)
    assert torch.equal(x, before)


@every_block
def test_every_parameter_receives_a_gradient(case):
    block = Case(case.name, channels=64).build().train()  # wide enough that no bottleneck is dead by chance
    x = torch.randn(4, 64, 9, 7, dtype=torch.float64, requires_grad=True)
    block(x).square().sum().backward()
    assert x.grad is not None
    assert x.grad.abs().sum() > 0
    cancelled = {  # a softmax does not notice a constant
        "gc": {"key.bias"},
        "danet": {"key.bias"},
        "emsa": {"mixing.bias"},
        "criss_cross": {"key.bias"},
        "efficient": {"key.bias"},
        "external": {"query.bias"},
        "acmix": {"position.bias"},
    }.get(case.name, set())
    for name, parameter in block.named_parameters():
        assert parameter.grad is not None, name
        if name not in cancelled:
            assert parameter.grad.abs().sum() > 0, name


@every_block
def test_nothing_is_left_behind_when_moved(case):
    """A tensor kept outside of parameters and buffers would stay on the CPU."""
    block = case.build().to("meta")
    x = torch.empty(2, case.channels, 7, 5, device="meta", dtype=torch.float64)
    assert block(x).is_meta
    assert mask(block.attention(x)).is_meta


@every_block
def test_is_built_on_the_device_and_in_the_type_asked_for(case):
    block = visattn.create_block(case.name, case.channels, device="meta", dtype=torch.bfloat16)
    for name, tensor in (*block.named_parameters(), *block.named_buffers()):
        assert tensor.is_meta, name
        assert tensor.dtype in (torch.bfloat16, torch.int64), name


@every_block
def test_bfloat16(case):
    reference = case.build(dtype=torch.float32)
    block = copy.deepcopy(reference).bfloat16()
    x = torch.randn(2, case.channels, 7, 5)
    output = block(x.bfloat16())
    assert output.dtype == torch.bfloat16
    error = (output.float() - reference(x)).norm() / reference(x).norm()
    assert error < 0.05


@every_block
def test_autocast(case):
    block = case.build(dtype=torch.float32).train()
    x = torch.randn(2, case.channels, 7, 5, requires_grad=True)
    generator = torch.get_rng_state()
    expected = block(x)
    torch.set_rng_state(generator)  # for blocks that draw
    with torch.autocast("cpu", torch.bfloat16):
        output = block(x)
    output.float().sum().backward()
    assert x.grad.isfinite().all()
    torch.testing.assert_close(output.float(), expected, rtol=0.1, atol=0.05 * float(expected.detach().abs().max()))


@every_block
def test_channels_last(case):
    block = case.build(dtype=torch.float32)
    x = torch.randn(2, case.channels, 7, 5)
    last = copy.deepcopy(block).to(memory_format=torch.channels_last)
    output = last(x.to(memory_format=torch.channels_last))
    assert output.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(output, block(x), rtol=1e-4, atol=1e-5)


@every_block
def test_state_dict_round_trip(case):
    block = case.build()
    file = io.BytesIO()
    torch.save(block.state_dict(), file)
    file.seek(0)
    other = visattn.create_block(case.name, case.channels, dtype=torch.float64).eval()
    other.load_state_dict(torch.load(file, weights_only=True))
    x = torch.randn(2, case.channels, 7, 5, dtype=torch.float64)
    assert torch.equal(other(x), block(x))


@every_block
@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda block: pickle.loads(pickle.dumps(block))])
def test_copies(case, duplicate):
    block = case.build()
    x = torch.randn(2, case.channels, 7, 5, dtype=torch.float64)
    other = duplicate(block)
    assert torch.equal(other(x), block(x))
    randomise(other)
    assert not {id(p) for p in other.parameters()} & {id(p) for p in block.parameters()}


@pytest.mark.parametrize(
    "case", mostly_slow(DEFAULTS, *OF_EVERY_FAMILY, key=lambda case: case.name), ids=lambda case: case.id
)
def test_trains(case):
    """From the block's own initialisation, the loss on a batch falls, in whatever way the block draws."""
    block = visattn.create_block(case.name, 32)
    if not list(block.parameters()):
        return
    optimiser = torch.optim.Adam(block.parameters(), lr=0.01)
    x, wanted = torch.randn(2, 4, 32, 7, 5)
    losses = []
    for _ in range(100):
        torch.manual_seed(0)
        losses.append((block(x) - wanted).square().mean())
        optimiser.zero_grad()
        losses[-1].backward()
        optimiser.step()
    assert losses[-1] < losses[0]


@every_block
def test_is_written_as_agreed(case):
    """DESIGN: channels first, everything else by keyword, no **kwargs, a documented class, a runnable example."""
    info = block_info(case.name)
    first, *others = inspect.signature(info.factory).parameters.values()
    assert first.name == "channels"
    assert first.kind is first.POSITIONAL_OR_KEYWORD
    assert all(p.kind is p.KEYWORD_ONLY for p in others)
    assert {"device", "dtype"} <= {p.name for p in others}
    assert info.family in FAMILIES
    assert info.factory.__doc__
    module = inspect.getmodule(info.factory)
    assert ">>>" in module.__doc__
    assert "Differences" in module.__doc__
    assert "http" in module.__doc__


@pytest.mark.parametrize(
    "case", [case for case in DEFAULTS if issubclass(block_info(case.name).factory, Gate)], ids=lambda case: case.id
)
def test_a_gate_is_a_product(case):
    block = case.build()
    x = torch.randn(2, case.channels, 7, 5, dtype=torch.float64)
    assert torch.equal(block(x), x * block.attention(x))


@pytest.mark.parametrize(
    "name", ["criss_cross", "danet", "gc", "gct", "generalized", *visattn.list_blocks("nonlocal*")]
)
def test_blocks_that_start_as_the_identity(name):
    block = visattn.create_block(name, 16)
    x = torch.randn(2, 16, 7, 5)
    assert torch.equal(block(x), x)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("eca", {"kernel_size": 4}, "odd"),
        ("spatial", {"kernel_size": 2}, "odd"),
        ("mhsa", {"heads": 5}, "5 heads do not divide 16"),
        ("splat", {"radix": 3}, "16 channels cannot be divided"),
        ("ge", {"extent": -1}, "extent"),
        ("ge_theta", {"extent": 6}, "power of two"),
        ("fca", {"size": 5}, "at least 7"),
        ("residual", {"depth": 0}, "depth"),
        ("simam", {"lam": 0}, "lam"),
        ("nonlocal", {"subsample": 0}, "subsample"),
        ("se", {"rd_ratio": 0}, "rd_ratio"),
        ("outlook", {"heads": 3}, "outlook: 3 heads do not divide 16"),
        ("outlook", {"kernel_size": 2}, "outlook needs an odd kernel_size, got 2"),
        ("outlook", {"stride": 0}, "outlook needs stride above zero"),
        ("aft", {"kernel_size": 4}, "aft needs an odd kernel_size"),
        ("emsa", {"subsample": 3}, "'emsa' needs subsample to be 1 or even, .* got 3"),
        ("emsa", {"subsample": 0}, "'emsa' needs subsample to be 1 or even, .* got 0"),
        ("bra", {"regions": 2, "topk": 5}, "'bra' cannot choose 5 of 2x2 regions"),
        ("deformable", {"heads": 4, "groups": 3}, "3 groups, which do not divide 4 heads"),
        ("cga", {"kernel_size": (3, 5)}, "'cga' has 4 heads, but kernel_size .3, 5."),
        ("irmb", {"expansion": 2**20}, "'irmb' would be 16777216 channels wide"),
        ("irmb", {"window": 0}, "irmb needs window above zero"),
        ("dilated", {"heads": 4, "dilations": (1, 2, 3)}, "'dilated' has 4 heads for 3 dilations"),
        ("dilated", {"dilations": (0, 1)}, "dilations from one up"),
        ("hilo", {"alpha": 1.5}, "alpha between zero and one, got 1.5"),
        ("agent", {"agents": 48}, "square number of agents, got 48"),
        ("shsa", {"attending": 17}, "'shsa' has 16 channels, so 17 cannot attend"),
        ("generalized", {"heads": 17}, "17 heads, more than its 16 channels"),
        ("generalized", {"terms": "1112"}, "four digits 0 or 1"),
        ("generalized", {"terms": "0000"}, "not all 0"),
        ("perceiver", {"heads": 3}, "3 heads, which do not divide 16 channels"),
        ("perceiver", {"latents": 0}, "perceiver needs latents above zero"),
        ("sasa", {"heads": 16}, "16 heads do not divide 16 channels into heads of a multiple of 2"),
        ("sasa", {"out_channels": 15}, "sasa needs a multiple of 2 channels, got 15"),
        ("sasa", {"kernel_size": 4}, "sasa needs an odd kernel_size, got 4"),
        ("halo", {"stride": 3}, "halo needs a stride that divides its blocks of 8 pixels, got 3"),
        ("halo", {"halo": -1}, "0 pixels or more, got -1"),
        ("halo", {"block": 0}, "halo needs block above zero"),
        ("acmix", {"heads": 3}, "3 heads do not divide 16"),
        ("acmix", {"stride": 0}, "acmix needs stride above zero"),
        ("cot", {"kernel_size": 2}, "cot needs an odd kernel_size"),
        ("cot", {"out_channels": -1}, "cot needs out_channels above zero"),
        ("lambda", {"key_channels": 0}, "lambda needs key_channels above zero"),
        ("aug", {"heads": 16}, "16 channels of attention leave none of 16"),
        ("aug", {"size": 0}, "aug needs size above zero"),
        ("axial", {"heads": 5}, "5 heads do not divide 16"),
        ("criss_cross", {"recurrence": 0}, "criss_cross needs recurrence above zero"),
        ("efficient", {"heads": 3}, "3 heads do not divide"),
        ("performer", {"features": 0}, "performer needs features above zero"),
        ("focused_linear", {"power": 0}, "focused_linear needs power above zero"),
        ("external", {"slots": 0}, "external needs slots above zero"),
    ],
)
def test_bad_settings_are_explained(name, options, message):
    with pytest.raises(ValueError, match=message):
        visattn.create_block(name, 16, **options)


def test_a_map_smaller_than_a_global_kernel_is_explained():
    with pytest.raises(ValueError, match=r"built for maps of \(8, 8\) or larger, got \(7, 5\)"):
        visattn.create_block("ge_theta", 16, size=8)(torch.randn(2, 16, 7, 5))
