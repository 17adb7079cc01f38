"""Attention in chunks of queries is the same as all at once: output, gradients, and what watches."""

import pytest
import torch
from torch.overrides import TorchFunctionMode

from tests.blocks import Case
from visattn.blocks import chunks

in_every_block = pytest.mark.parametrize("name", ["deformable", "emsa"])


def build(name):
    torch.manual_seed(0)
    return Case(name).build().train(), torch.randn(2, 16, 7, 5, dtype=torch.float64, requires_grad=True)


def run(block, x):
    output = block(x)
    first = torch.autograd.grad(output.sin().sum(), [x, *block.parameters()], create_graph=True)
    second = torch.autograd.grad(sum(each.square().sum() for each in first), x)
    return [output, *first, *second]


@in_every_block
def test_chunks_change_nothing(name, monkeypatch):
    block, x = build(name)
    whole = run(block, x)
    rows = []
    plain = chunks.checkpoint
    monkeypatch.setattr(chunks, "PAIRS", 200)
    monkeypatch.setattr(chunks, "checkpoint", lambda f, q, *a, **k: rows.append(q.shape[-2]) or plain(f, q, *a, **k))
    torch.testing.assert_close(run(block, x), whole, rtol=1e-9, atol=1e-9)
    assert len(rows) > 1
    assert sum(rows) == 35


class Watching(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@in_every_block
def test_who_watches_sees_all_queries_at_once(name, monkeypatch):
    block, x = build(name)
    monkeypatch.setattr(chunks, "PAIRS", 200)
    expected = block(x)
    (gradient,) = torch.autograd.grad(expected.sum(), x)
    monkeypatch.setattr(chunks, "checkpoint", None)
    with Watching():
        torch.testing.assert_close(block(x), expected)
    torch.testing.assert_close(torch.func.grad(lambda x: block(x).sum())(x), gradient)


@in_every_block
def test_autocast_is_the_same_in_the_backward_pass(name, monkeypatch):
    block, x = build(name)
    block, x = block.float(), x.detach().float().requires_grad_()
    gradients = []
    for pairs in (chunks.PAIRS, 200):
        monkeypatch.setattr(chunks, "PAIRS", pairs)
        with torch.autocast("cpu", torch.bfloat16):
            output = block(x)
        gradients.append(torch.autograd.grad(output.float().square().sum(), x)[0])
    torch.testing.assert_close(*gradients, rtol=0.02, atol=0.02 * gradients[0].abs().max().item())
