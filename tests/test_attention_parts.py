"""One distribution that is multiplied by values several times, as a whole or part by part: no map is partial."""

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import visattn
from tests.test_attention_forms import Function, everything, rewrite
from tests.test_capture import small_vit
from visattn.heatmaps import MissedAttention


def softmax(q, k):
    return (q @ k.mT).softmax(-1)


def two_kinds_of_values(q, k, v):
    weights = softmax(q, k)
    return torch.cat([weights @ v[..., :2], weights @ v[..., 2:]], -1)


def views_of_the_same(q, k, v):
    weights = softmax(q, k)
    flat = weights.flatten(0, 1)
    return torch.cat([weights @ v[..., :2], (flat @ v[..., 2:].flatten(0, 1)).unflatten(0, (-1, 2))], -1)


def weights_relative_to_places(q, k, v):
    """Shaw et al. 2018: values have a part that depends on places only (here it is nothing)."""
    weights = softmax(q, k)
    places = v.new_zeros(*weights.shape[-2:], v.shape[-1])
    by_query = weights.permute(2, 0, 1, 3).flatten(1, 2)  # (Nq, B * heads, Nk)
    return weights @ v + torch.bmm(by_query, places).unflatten(1, (-1, 2)).permute(1, 2, 0, 3)


def queries_one_part_after_another(q, k, v):
    return torch.cat([part @ v for part in softmax(q, k).split(3, -2)], -2)


def queries_in_chunks_before_the_softmax(q, k, v):
    return torch.cat([softmax(part, k) @ v for part in q.split(3, -2)], -2)


def heads_one_after_another(q, k, v):
    parts = zip(softmax(q, k).chunk(2, 1), v.chunk(2, 1), strict=True)
    return torch.cat([torch.einsum("bhij,bhjd->bhid", part, values) for part, values in parts], 1)


def heads_one_after_another_before_the_softmax(q, k, v):
    return torch.cat(
        [softmax(*each[:2]) @ each[2] for each in zip(*(x.split(1, 1) for x in (q, k, v)), strict=True)], 1
    )


def image_by_image(q, k, v):
    return torch.stack([part @ values for part, values in zip(softmax(q, k), v, strict=True)])


def divided_later(q, k, v):
    e = (q @ k.mT).exp()
    total = e.sum(-1, keepdim=True)
    return torch.cat([e @ v[..., :2] / total, e @ v[..., 2:] / total], -1)


WHOLE = [two_kinds_of_values, views_of_the_same, weights_relative_to_places]
PARTS = {  # how to put the parts together
    queries_one_part_after_another: lambda parts: torch.cat(parts, -2),
    queries_in_chunks_before_the_softmax: lambda parts: torch.cat(parts, -2),
    heads_one_after_another: lambda parts: torch.cat(parts, 1),
    heads_one_after_another_before_the_softmax: lambda parts: torch.cat(parts, 1),
    image_by_image: torch.stack,
}


@pytest.fixture(scope="module")
def images():
    torch.manual_seed(1)
    return torch.rand(2, 3, 32, 32).double()


@pytest.fixture(scope="module")
def expected(images):
    return everything(small_vit(), images)


def check_the_same(found, expected):
    """Maps, gradients and, as far as there are any, heatmaps."""
    for tables in zip(found[1:3], expected[1:3], strict=True):
        assert list(tables[0]) == list(tables[1])
        for layer in tables[0]:
            torch.testing.assert_close(tables[0][layer], tables[1][layer], atol=1e-8, rtol=0)
    for heatmaps in zip(found[3], expected[3], strict=False):
        torch.testing.assert_close(*heatmaps, atol=1e-8, rtol=0)


@pytest.mark.parametrize("form", WHOLE, ids=lambda form: form.__name__)
def test_a_map_that_is_used_again_is_there_once(form, images, expected):
    check_the_same(everything(rewrite(small_vit(), form), images), expected)


@pytest.mark.parametrize("form", PARTS, ids=lambda form: form.__name__)
def test_every_part_is_there(form, images, expected):
    model = rewrite(small_vit(), form)
    _, maps, gradients, _ = everything(model, images, methods=())
    assert list(maps) == [f"blocks.{i}.attn{number}" for i in range(3) for number in ("", "#2")]
    for found, true in ((maps, expected[1]), (gradients, expected[2])):
        for layer in true:
            whole = PARTS[form]([found[layer], found[f"{layer}#2"]])
            torch.testing.assert_close(whole, true[layer], atol=1e-8, rtol=0)


def test_exponentials_that_are_used_again_have_both_gradients(images, expected):
    _, maps, gradients, _ = everything(rewrite(small_vit(), divided_later), images, methods=())
    for layer, true in expected[2].items():
        torch.testing.assert_close(maps[layer], maps[f"{layer}#2"])
        torch.testing.assert_close(gradients[layer] + gradients[f"{layer}#2"], true, atol=1e-8, rtol=0)


@pytest.mark.parametrize("form", [*PARTS, divided_later], ids=lambda form: form.__name__)
def test_parts_beside_each_other_are_not_taken_for_layers(form, images):
    model = rewrite(small_vit(), form)
    for method in ("attention", "rollout", "chefer", "legrad"):
        with pytest.raises(ValueError, match=r"'blocks\.0\.attn' computes its attention in parts"):
            visattn.explain(model, images, method)


def seen(function, *args):
    model = Function(function)
    with visattn.capture(model) as maps:
        model(*args)
    return [*maps.values()]


S = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))  # (B, heads, Nq, Nk)
V = torch.randn(2, 3, 5, 6, generator=torch.Generator().manual_seed(1))


def test_keys_in_parts_are_missed():
    def of_some_keys():
        a = S.softmax(-1)
        return a[..., :2] @ V[..., :2, :] + a[..., 2:] @ V[..., 2:, :]

    model = nn.ModuleDict({"layer": Function(of_some_keys)})
    with pytest.raises(MissedAttention, match=r"'layer' multiplies .* 2 of 5 keys"), visattn.capture(model):
        model["layer"]()


def test_a_copy_and_the_original():
    weights = S.softmax(-1)
    found = seen(lambda: (a := S.softmax(-1), a.clone() @ V, a.double() @ V.double()))
    assert len(found) == 2
    for each in found:
        torch.testing.assert_close(each.float(), weights)


def test_parts_behind_dropout_have_the_whole_distribution():
    (found,) = seen(lambda: [part @ V for part in F.dropout(S.softmax(-1), 0.5).split(2, -2)])
    torch.testing.assert_close(found, S.softmax(-1))


def test_a_map_that_is_read_and_then_mixed_with_another():
    def function():
        a, b = S.softmax(-1), (2 * S).softmax(-1)
        return a @ V, (0.5 * a + 0.5 * b) @ V

    first, second = seen(function)
    torch.testing.assert_close(first, S.softmax(-1))
    assert not torch.equal(first, second)


def test_tokens_that_are_chosen_by_their_weights_are_no_map():
    def function(x):
        a = (x @ x.mT).softmax(-1)
        kept = x[torch.arange(2)[:, None], F.dropout(a, 0.5)[:, 0].topk(3).indices]
        return a @ x, kept @ kept.mT

    (found,) = seen(function, x := torch.rand(2, 5, 8))
    torch.testing.assert_close(found, (x @ x.mT).softmax(-1))


def test_distributions_do_not_outlive_their_use():
    born = []

    def function(x):
        for _ in range(3):
            a = (x @ x.mT).softmax(-1)
            born.append(weakref.ref(a))
            kept = a.mean(-1)  # something of it lives on
            x = a @ x + a @ (2 * x)
            del a
            gc.collect()
            assert born[-1]() is None
        return x, kept

    model = nn.ModuleDict({"layer": Function(function), "other": nn.MultiheadAttention(8, 2)})
    with torch.no_grad(), visattn.capture(model, layers="other") as maps:
        model["layer"](torch.rand(2, 5, 8))
        model["other"](*3 * [torch.rand(2, 5, 8)])
    assert list(maps) == ["other"]
    assert len(born) == 3


def joined(q, k, v):
    return torch.cat([softmax(part, k) for part in q.split(3, -2)], -2) @ v


def stacked(q, k, v):
    return torch.stack([softmax(*each) for each in zip(q.unbind(1), k.unbind(1), strict=True)], dim=1) @ v


def written(q, k, v):
    weights = q.new_zeros(*q.shape[:-1], k.shape[-2])
    for rows in (slice(0, 3), slice(3, None)):
        weights[..., rows, :] = softmax(q[..., rows, :], k)
    return weights @ v


@pytest.mark.parametrize("form", [joined, stacked, written], ids=lambda form: form.__name__)
def test_parts_that_are_put_together_before_the_product(form, images, expected):
    methods = {"methods": ()} if form is written else {}  # the trace does not see what is written into a part
    check_the_same(everything(rewrite(small_vit(), form), images, **methods), expected)


def test_parts_of_different_kinds_are_no_weights():
    assert seen(lambda: torch.cat([S.softmax(-1), S], -1) @ torch.cat([V, V], -2)) == []
