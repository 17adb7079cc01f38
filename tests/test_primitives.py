"""The primitives compute what the plain formula does, with its gradients, and keep less."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import visattn
from visattn.blocks import primitives
from visattn.blocks.primitives import (
    Pointwise,
    attention_pool,
    blend,
    by_image,
    gate,
    gate_by_max_mean,
    gate_channels_places,
    gate_rows_columns,
    max_mean,
    max_mean_places,
    mean,
    mean_places,
    mix,
    pool_max_mean,
)

SHAPE = (5, 6, 4, 3)
KEY = nn.Conv2d(6, 1, 1).double().requires_grad_(False)


def pooled(x):
    """The output of a block that uses all three results."""
    same, weights, average = attention_pool(x, KEY)
    return same + average * weights


def plainly_pooled(x):
    weights = F.softmax(F.conv2d(x, KEY.weight, KEY.bias).flatten(2), -1).view(len(x), 1, *x.shape[2:])
    return x + (x * weights).sum((2, 3), keepdim=True) * weights


def weigh(peak, average):
    return torch.sigmoid(2 * peak - average)


def plain_max_mean(x, dims):
    return weigh(x.amax(dims, keepdim=True), x.mean(dims, keepdim=True))


def gated_twice(x):
    x = x * plain_max_mean(x, (2, 3))
    return x * plain_max_mean(x, (1,))


def weighed(x, peak, average):
    return x * weigh(peak, average)


def scaled_by_norm(x, y):
    """Different for every image, with two tensors of the image's own."""
    return x.square() * y / x.square().sum((1, 2, 3), keepdim=True).sqrt()


def size_of_channels(x):
    return x.square().mean((2, 3), keepdim=True).sqrt()


# name: (primitive, plain formula, shapes of what it takes besides x)
B, C, H, W = SHAPE
FORMS = {
    "channels": (gate, torch.mul, [(B, C, 1, 1)]),
    "places": (gate, torch.mul, [(B, 1, H, W)]),
    "rows": (gate, torch.mul, [(B, C, H, 1)]),
    "images": (gate, torch.mul, [(B, 1, 1, 1)]),
    "everything": (gate, torch.mul, [(B, C, H, W)]),
    "parameter": (gate, torch.mul, [(1, C, 1, 1)]),
    "rows and columns": (gate_rows_columns, lambda x, r, c: x * r * c, [(B, C, H, 1), (B, C, 1, W)]),
    "mean over places": (mean_places, lambda x: x.mean((2, 3), keepdim=True), []),
    **{
        f"mean over axis {dim}": (lambda x, d=dim: mean(x, d), lambda x, d=dim: x.mean(d, keepdim=True), [])
        for dim in (1, 2, 3)
    },
    "max and mean over places": (
        lambda x: torch.cat(max_mean_places(x)),
        lambda x: torch.cat([x.amax((2, 3), keepdim=True), x.mean((2, 3), keepdim=True)]),
        [],
    ),
    **{
        f"max and mean over axis {dim}": (
            lambda x, d=dim: torch.cat(max_mean(x, d)),
            lambda x, d=dim: torch.cat([x.amax(d, keepdim=True), x.mean(d, keepdim=True)]),
            [],
        )
        for dim in (1, 2, 3)
    },
    **{
        f"gate by max and mean over {dims}": (
            lambda x, d=dims: gate_by_max_mean(x, d, weigh),
            lambda x, d=dims: x * plain_max_mean(x, d),
            [],
        )
        for dims in ((1,), (2,), (3,), (2, 3))
    },
    "gate channels and places": (
        lambda x: gate_channels_places(x, weigh, weigh),
        lambda x: gated_twice(x),
        [],
    ),
    "mix by channel": (
        lambda w, *maps: mix(list(maps), w),
        lambda w, *maps: (torch.stack(maps, 1) * w).sum(1),
        [SHAPE, SHAPE, SHAPE],
    ),
    "blend": (blend, lambda x, y, gain: x + gain * (y - x), [SHAPE, (1,)]),
    "attention pool": (pooled, plainly_pooled, []),
    "pool and go on": (
        lambda x: weighed(*pool_max_mean(x, 2)),
        lambda x: weighed(x, x.amax(2, keepdim=True), x.mean(2, keepdim=True)),
        [],
    ),
    "every image by itself, with weights": (
        lambda x, y: by_image(scaled_by_norm, x, y),
        lambda x, y: scaled_by_norm(x, y),
        [(B, C, 1, 1)],
    ),
    "statistics of every image": (
        lambda x: by_image(size_of_channels, x),
        lambda x: size_of_channels(x),
        [],
    ),
}
LAYOUTS = {"contiguous": torch.contiguous_format, "channels last": torch.channels_last}


def inputs(name, layout, dtype=torch.float64):
    torch.manual_seed(0)
    shapes = [SHAPE, *FORMS[name][2]] if name != "mix by channel" else [(B, 3, C, 1, 1), *FORMS[name][2]]
    tensors = [torch.randn(shape, dtype=dtype) for shape in shapes]
    return [t.contiguous(memory_format=layout) if t.shape == SHAPE else t for t in tensors]


@pytest.fixture(params=["in pieces", "whole"])
def pieces(request, monkeypatch):
    if request.param == "in pieces":
        monkeypatch.setattr(primitives, "SMALL", 0)
        monkeypatch.setattr(primitives, "PIECE", 2 * 8 * C * H * W)  # two images, so that one is left at the end


def gradients(function, tensors):
    leaves = [t.clone(memory_format=torch.preserve_format).requires_grad_() for t in tensors]
    output = function(*leaves)
    torch.manual_seed(1)
    output.backward(torch.randn(output.shape, dtype=output.dtype))
    return output.detach(), [leaf.grad for leaf in leaves]


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("name", FORMS)
def test_same_numbers_and_gradients(name, layout):
    ours, plain, _ = FORMS[name]
    tensors = inputs(name, layout)
    output, found = gradients(ours, tensors)
    expected, right = gradients(plain, tensors)
    torch.testing.assert_close(output, expected)
    for grad, reference in zip(found, right, strict=True):
        torch.testing.assert_close(grad, reference)
    with torch.no_grad():
        torch.testing.assert_close(ours(*tensors), expected)


@pytest.mark.parametrize("name", FORMS)
def test_gradients_by_finite_differences(name):
    leaves = [t.requires_grad_() for t in inputs(name, torch.contiguous_format)]
    assert torch.autograd.gradcheck(FORMS[name][0], leaves, fast_mode=True)
    assert torch.autograd.gradgradcheck(FORMS[name][0], leaves, fast_mode=True)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
@pytest.mark.parametrize("name", FORMS)
def test_differentiated_by_torch_func(name):
    ours, plain, _ = FORMS[name]
    tensors = inputs(name, torch.contiguous_format)
    torch.manual_seed(1)
    tangents = tuple(torch.randn_like(t) for t in tensors)
    _, moved = torch.func.jvp(ours, tuple(tensors), tangents)
    torch.testing.assert_close(moved, torch.func.jvp(plain, tuple(tensors), tangents)[1])
    single = [t[:1] for t in tensors]
    rows = torch.func.jacrev(lambda x: ours(x, *single[1:]).flatten()[:3])(single[0])
    torch.testing.assert_close(rows, torch.func.jacrev(lambda x: plain(x, *single[1:]).flatten()[:3])(single[0]))


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("name", FORMS)
def test_several_gradients_at_once(name):
    leaves = [t.requires_grad_() for t in inputs(name, torch.contiguous_format)]
    output = FORMS[name][0](*leaves)
    directions = torch.randn(4, *output.shape, dtype=torch.float64)
    together = torch.autograd.grad(output, leaves, directions, is_grads_batched=True, retain_graph=True)
    apart = [torch.autograd.grad(output, leaves, direction, retain_graph=True) for direction in directions]
    for found, *right in zip(together, *apart, strict=True):
        torch.testing.assert_close(found, torch.stack(right))


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("shape", [(0, C, H, W), (2, C, 1, 1), (2, 1, 1, 1)], ids=str)
def test_odd_maps(name, shape):
    """No image, one pixel, one number."""
    if name == "attention pool" and shape[1] == 1:
        pytest.skip("its key has six channels")
    ours, plain, _ = FORMS[name]

    def cut(tensor):
        for dim, size in enumerate(shape if tensor.ndim == 4 else (shape[0], 3, *shape[1:2], 1, 1)):
            tensor = tensor.narrow(dim, 0, min(size, tensor.shape[dim])) if tensor.ndim > 1 else tensor
        return tensor

    tensors = [cut(t) for t in inputs(name, torch.contiguous_format)]
    if shape[0] == 0 and "parameter" not in name and name not in ("blend", "attention pool"):
        assert all(len(t) == 0 for t in tensors)
    output, found = gradients(ours, tensors)
    expected, right = gradients(plain, tensors)
    torch.testing.assert_close(output, expected)
    for grad, reference in zip(found, right, strict=True):
        torch.testing.assert_close(grad, reference)


def test_gradients_are_exact_inside_autocast():
    x, rows, columns = (torch.randn(shape, requires_grad=True) for shape in (SHAPE, (B, C, H, 1), (B, C, 1, W)))
    output = gate_rows_columns(x, rows, columns)
    expected = torch.autograd.grad(output.square().sum(), (x, rows, columns), retain_graph=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = torch.autograd.grad(output.square().sum(), (x, rows, columns))
    torch.testing.assert_close(found, expected)


def test_second_derivatives_of_a_pool_of_many_channels():
    key = nn.Conv2d(64, 1, 1).double()
    x = torch.randn(2, 64, 3, 3, dtype=torch.float64, requires_grad=True)
    given = torch.randn(2, 64, 1, 1, dtype=torch.float64)

    def curvature(pool):
        (slope,) = torch.autograd.grad((pool(x) * given).sum(), x, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), (x, key.weight))

    def plain(x):
        return (x.flatten(2) @ F.softmax(key(x).flatten(2), -1).mT).unsqueeze(-1)

    torch.testing.assert_close(curvature(lambda x: attention_pool(x, key)[2]), curvature(plain))


@pytest.mark.parametrize("dims", [(1,), (2, 3)])
def test_the_gradient_it_was_given_is_left_alone(dims):
    x = torch.randn(SHAPE, requires_grad=True)
    doubled = 2 * x
    output = gate_by_max_mean(doubled, dims, weigh)
    given = torch.randn(SHAPE)
    before = given.clone()
    (first,) = torch.autograd.grad(output, doubled, given, retain_graph=True)
    kept = first.clone()
    (second,) = torch.autograd.grad(output, doubled, given)
    assert torch.equal(given, before)
    assert torch.equal(first, kept)
    assert torch.equal(second, kept)


def test_another_use_of_the_input_adds_its_own_gradient():
    x = torch.randn(SHAPE, dtype=torch.float64, requires_grad=True)
    given = torch.randn(SHAPE, dtype=torch.float64)
    (found,) = torch.autograd.grad(x + gate_by_max_mean(x, (2, 3), weigh) + mean_places(x), x, given)
    plain = x + x * plain_max_mean(x, (2, 3)) + x.mean((2, 3), keepdim=True)
    torch.testing.assert_close(found, torch.autograd.grad(plain, x, given)[0])


@pytest.mark.parametrize("dims", [(1,), (2, 3)])
def test_places_that_share_a_maximum_share_its_gradient(dims):
    x = torch.randint(0, 3, SHAPE).double().requires_grad_()
    peak, _ = max_mean(x, 1) if dims == (1,) else max_mean_places(x)
    given = torch.randn_like(peak)
    (found,) = torch.autograd.grad(peak, x, given)
    (expected,) = torch.autograd.grad(x.amax(dims, keepdim=True), x, given)
    torch.testing.assert_close(found, expected)


def test_half_precision_counts_the_places_that_share_a_maximum():
    x = torch.zeros(1, 1, 300, 300, dtype=torch.float16, requires_grad=True)  # 90,000; float16 ends at 65,504
    peak, _ = max_mean_places(x)
    (found,) = torch.autograd.grad(peak, x, torch.full_like(peak, 9e3))
    torch.testing.assert_close(found, torch.full_like(x, 0.1))


def test_keys_of_a_pool_learn():
    x = torch.randn(SHAPE, dtype=torch.float64, requires_grad=True)
    ours = nn.Conv2d(C, 1, 1).double()
    theirs = copy.deepcopy(ours)
    _, _, average = attention_pool(x, ours)
    weights = F.softmax(theirs(x).flatten(2), -1)
    expected = (x.flatten(2) @ weights.mT).unsqueeze(-1)
    torch.testing.assert_close(average, expected)
    given = torch.randn_like(average)
    (average * given).sum().backward()
    found, x.grad = x.grad, None
    (expected * given).sum().backward()
    torch.testing.assert_close(found, x.grad)
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad)
    torch.testing.assert_close(ours.bias.grad, theirs.bias.grad)


class Doubled(nn.Conv2d):
    def forward(self, input):
        return 2 * super().forward(input)


def test_a_key_that_is_more_than_its_weights_is_called():
    x = torch.randn(SHAPE, requires_grad=True)
    key, called = nn.Conv2d(C, 1, 1), []
    key.register_forward_hook(lambda *_: called.append(True))
    attention_pool(x, key)
    key = nn.Conv2d(C, 1, 1)
    key.register_full_backward_hook(lambda *_: called.append(True))
    attention_pool(x, key)[2].sum().backward()
    assert len(called) == 2
    with nn.modules.module.register_module_forward_hook(lambda *_: called.append(True)):  # a hook of all modules
        attention_pool(x, nn.Conv2d(C, 1, 1))
    assert len(called) == 3
    key = Doubled(C, 1, 1)
    with torch.no_grad():
        expected = attention_pool(x, key)[1]
    torch.testing.assert_close(attention_pool(x, key)[1].detach(), expected)


@pytest.mark.parametrize("size", [1, 3])
def test_pointwise_is_a_convolution(size):
    layer, x = Pointwise(6, 4), torch.randn(2, 6, size, size)
    torch.testing.assert_close(layer(x), F.conv2d(x, layer.weight, layer.bias))
    assert isinstance(layer, nn.Conv2d)
    assert layer.state_dict().keys() == nn.Conv2d(6, 4, 1).state_dict().keys()


def kept(function, *tensors):
    """Numbers kept for the backward pass, besides those of the inputs."""
    given = {t.untyped_storage().data_ptr() for t in tensors}
    storages = {}

    def pack(tensor):
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = function(*tensors)
    own = {output.untyped_storage().data_ptr()}
    return sum(size for storage, size in storages.items() if storage not in given | own)


@pytest.mark.parametrize("dims", [(1,), (2, 3)])
def test_only_small_maps_are_kept(dims):
    x = torch.randn(4, 32, 16, 16, requires_grad=True)
    assert kept(lambda x: gate_by_max_mean(x, dims, weigh), x) < x.nbytes / 4
    assert kept(lambda x: gate(x, torch.sigmoid(mean_places(x))), x) < x.nbytes / 4
    assert kept(lambda x: gate_channels_places(x, weigh, weigh), x) < x.nbytes / 4


@pytest.mark.parametrize("part", ["channel", "spatial"])
def test_hooks_of_the_halves_of_cbam_are_called(part):
    """They are left out where nobody looks, with the same result."""
    block, x, seen = visattn.create_block("cbam", 6), torch.randn(SHAPE, requires_grad=True), []
    nn.init.ones_(block.spatial.gate.bn.weight)
    expected = block(x)
    (right,) = torch.autograd.grad(expected.square().sum(), x)
    block.get_submodule(part).register_forward_hook(lambda module, args, output: seen.append(output))
    output = block(x)
    assert [each.shape for each in seen] == [x.shape]
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(torch.autograd.grad(output.square().sum(), x)[0], right)


def test_watchers_see_the_plain_formula():
    seen = []

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(getattr(function, "__name__", ""))
            return function(*args, **(kwargs or {}))

    x = torch.randn(SHAPE, requires_grad=True)
    with Watch():
        gate(x, torch.sigmoid(mean_places(x)))
    assert {"mean", "mul"} <= set(seen)


def test_a_default_device_does_not_watch():
    x = torch.randn(SHAPE, requires_grad=True)
    with torch.device("cpu"):
        lean = gate(x, torch.sigmoid(mean_places(x)))
    assert lean.grad_fn.name() == "_GateBackward"


def keep_what_gate_returns(output, kept):
    output.grad_fn.register_hook(lambda inputs, outputs: kept.append((inputs[0], inputs[0].clone())))


def keep_what_pooling_gets(output, kept):
    pooling = output.grad_fn.next_functions[0][0]
    pooling.register_prehook(lambda grads: kept.append((grads[0], grads[0].clone())))


def keep_the_memory(output, kept):
    output.grad_fn.register_hook(lambda inputs, outputs: kept.append((inputs[0].detach(), inputs[0].clone())))


def keep_by_a_tensor(output, kept):
    output.grad_fn.saved_tensors[0].register_hook(lambda grad: kept.append((grad, grad.clone())))


KEEPING = [keep_what_gate_returns, keep_what_pooling_gets, keep_the_memory, keep_by_a_tensor]


@pytest.mark.parametrize("keep", KEEPING)
@pytest.mark.parametrize("dims", [(1,), (2, 3)])
def test_a_gradient_that_a_hook_keeps_stays_as_it_was(keep, dims):
    x, found = torch.randn(SHAPE, requires_grad=True), []
    output = gate_by_max_mean(x, dims, weigh)
    keep(output, found)
    output.pow(2).sum().backward()
    ((gradient, before),) = found
    assert torch.equal(gradient, before)
    assert not torch.equal(gradient, x.grad)


def test_a_gradient_that_was_asked_for_stays_as_it_was():
    x = torch.randn(SHAPE, requires_grad=True)
    output = gate_by_max_mean(x, (2, 3), weigh)
    same = output.grad_fn.saved_tensors[0]
    alone = torch.autograd.grad(output.sum(), same, retain_graph=True)[0]
    both = torch.autograd.grad(output.sum(), [same, x])[0]
    assert torch.equal(alone, both)


@pytest.mark.parametrize("dims", [(1,), (2, 3)])
def test_a_gradient_that_nobody_keeps_is_added_to_in_place(dims):
    x, places = torch.randn(SHAPE, requires_grad=True), []
    output = gate_by_max_mean(x, dims, weigh)
    output.grad_fn.register_hook(lambda inputs, outputs: places.append(inputs[0].data_ptr()))
    assert torch.autograd.grad(output.sum(), x)[0].data_ptr() == places[0]


def added(gated, other):
    return gated + other  # one gradient for both


def added_twice(gated, other):
    return (gated + other) + gated


def kept_by_a_view(gated, other):
    return torch.cat([gated, other]).pow(2)


@pytest.mark.parametrize("join", [added, added_twice, kept_by_a_view])
@pytest.mark.parametrize("gated_first", [True, False])
def test_gradients_of_gates_that_others_get_too(join, gated_first):
    def gradients(multiply):
        torch.manual_seed(0)
        x, weights, other = (torch.randn(*shape).requires_grad_() for shape in (SHAPE, (B, C, 1, 1), SHAPE))
        doubled = None if gated_first else 2 * other
        gated = multiply(3 * x, weights)
        doubled = 2 * other if gated_first else doubled
        gated.retain_grad()
        given = torch.randn_like(join(gated, doubled))
        before, kept = given.clone(), []
        gated.register_hook(kept.append)
        join(gated, doubled).backward(given)
        assert torch.equal(given, before)
        assert torch.equal(kept[0], gated.grad)
        return x.grad, weights.grad, other.grad, gated.grad

    for found, expected in zip(gradients(gate), gradients(torch.mul), strict=True):
        torch.testing.assert_close(found, expected)


def test_a_gate_changes_a_gradient_that_nobody_keeps_in_place():
    x, weights, places = torch.randn(SHAPE, requires_grad=True), torch.rand(B, C, 1, 1, requires_grad=True), []
    output = gate(x, weights)
    output.register_hook(lambda grad: places.append(grad.data_ptr()))
    (found,) = torch.autograd.grad(3 * output, x, torch.ones(SHAPE))
    assert found.data_ptr() == places[0]
    assert torch.equal(found, (3 * weights).expand(SHAPE))


@pytest.mark.parametrize("dims", [(1,), (2, 3)])
def test_a_hook_may_return_one_number_for_all(dims):
    x = torch.randn(SHAPE, requires_grad=True)
    output = gate_by_max_mean(x, dims, weigh)
    output.grad_fn.register_hook(lambda inputs, outputs: (torch.ones(1, 1, 1, 1).expand(SHAPE), None))
    assert torch.equal(torch.autograd.grad(output.sum(), x)[0], torch.ones(SHAPE))


@pytest.mark.usefixtures("pieces")
def test_a_blend_of_nothing_is_the_map_itself():
    x, gain = torch.randn(SHAPE), torch.zeros(1, requires_grad=True)
    changed = torch.where(torch.randn(SHAPE) > 1, torch.inf, 2 * x)
    output = blend(x, changed, gain)
    assert torch.equal(output, x)
    (grad,) = torch.autograd.grad(output, gain, torch.ones(SHAPE))
    torch.testing.assert_close(grad, x[changed.isfinite()].sum()[None])


def test_maps_in_groups():
    """Five axes, in whatever order."""
    x = torch.randn(2, 3, 4, 3, 2, dtype=torch.float64).permute(0, 2, 1, 4, 3).requires_grad_()
    weights = torch.rand(2, 4, 1, 2, 3, dtype=torch.float64, requires_grad=True)
    given = torch.randn(2, 4, 3, 2, 3, dtype=torch.float64)
    found = torch.autograd.grad(gate(x, weights), (x, weights), given)
    torch.testing.assert_close(found, torch.autograd.grad(x * weights, (x, weights), given))


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("name", ["simam", "scse", "triplet", "mlca"])
def test_blocks_that_are_computed_by_image_keep_their_formula(name, layout, monkeypatch):
    torch.manual_seed(0)
    block = visattn.create_block(name, C).double()
    for parameter in block.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(SHAPE, dtype=torch.float64).contiguous(memory_format=layout)
    output, found = gradients(lambda x, *_: block(x), [x])
    ours = [parameter.grad for parameter in block.parameters()]
    block.zero_grad()
    monkeypatch.setattr(torch, "is_grad_enabled", lambda: False)  # what primitives ask before they are used
    expected, right = gradients(lambda x, *_: x * block.attention(x), [x])
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(found, right)
    for parameter, grad in zip(block.parameters(), ours, strict=True):
        torch.testing.assert_close(grad, parameter.grad)
