"""The oracle tests can fail: each row changes one line of a block, and the comparison with the paper must turn red.

The mutations are mistakes seen in widely used attention collections, or ones that are easy to make.
"""

import inspect
import sys
import types

import pytest

import visattn
from tests.blocks import Case
from tests.test_block_oracles import check_against_oracle
from visattn.blocks import base, block_info
from visattn.registry import Registry

# block, options, line as it is, line with the mistake
MUTATIONS = [
    ("se", {}, "torch.sigmoid(self.fc2(F.relu(self.fc1(z))))", "self.fc2(F.relu(self.fc1(z)))"),
    ("se", {}, "torch.sigmoid(self.fc2(F.relu(self.fc1(z))))", "torch.sigmoid(F.relu(self.fc2(F.relu(self.fc1(z)))))"),
    ("se", {}, "x.mean((2, 3), keepdim=True)", "x.amax((2, 3), keepdim=True)"),
    ("ese", {}, "F.hardsigmoid(", "F.sigmoid("),
    ("cse", {}, "F.relu(self.fc1(z))", "self.fc1(z)"),
    ("sse", {}, "return torch.sigmoid(self.conv(x))", "return torch.softmax(self.conv(x), 0)"),
    ("scse", {}, "return torch.maximum(self.channel(x)", "return torch.add(self.channel(x)"),
    ("scse", {}, "torch.where(x >= 0, torch.maximum", "torch.where(x >= 0, torch.minimum"),
    ("eca", {"kernel_size": 5}, "padding=kernel_size // 2", "padding=kernel_size // 2, padding_mode='circular'"),
    ("ge", {"extent": 2}, "count_include_pad=False", "count_include_pad=True"),
    ("ge", {}, "torch.sigmoid(x.mean((2, 3), keepdim=True))", "torch.sigmoid(x.mean(1, keepdim=True))"),
    ("ge_theta", {}, "layers.pop()", "pass"),
    ("ge_theta_plus", {}, "F.relu(self._gathered(x))", "self._gathered(x)"),
    ("gc", {}, "return x + self.fc2(", "return x * self.fc2("),
    ("gc", {}, "F.softmax(self.key(x).flatten(2), dim=-1)", "F.softmax(self.key(x).flatten(2), dim=0)"),
    ("srm", {}, "correction=min(1, pixels.shape[-1] - 1)", "correction=0"),
    ("fca", {}, "(1 + (frequency > 0).to(frequency.dtype)) / size", "1.0 / size + 0 * frequency"),
    ("fca", {}, "u, v = frequency", "v, u = frequency"),
    ("gct", {}, "s.square().mean(1, keepdim=True)", "s.square().sum(1, keepdim=True)"),
    ("sk", {}, "F.softmax(energies, dim=1)", "F.softmax(energies, dim=2)"),
    ("sk", {}, "for d in (1, 2)", "for d in (1, 1)"),
    ("splat", {"groups": 2}, "(self.groups, self.radix, -1)).transpose(1, 2)", "(self.radix, self.groups, -1))"),
    ("splat", {}, "F.softmax(energies, dim=1)", "torch.sigmoid(energies)"),
    ("spatial", {}, "[x.amax(dim), x.mean(dim)]", "[x.mean(dim), x.amax(dim)]"),
    ("cbam", {"rd_ratio": 0.25}, "torch.sigmoid(mean + peak)", "torch.sigmoid(mean) + torch.sigmoid(peak)"),
    ("cbam", {}, "self.spatial(self.channel(x))", "x * self.channel.attention(x) * self.spatial.attention(x)"),
    ("residual", {}, "return 1 + self.mask(x)", "return self.mask(x)"),
    ("residual", {}, "align_corners=True", "align_corners=False"),
    ("residual", {}, "_resize(y, level) + skip(level)", "_resize(y, level) + skip(level) + level"),
    ("lka", {}, "padding=9, dilation=3", "padding=3, dilation=1"),
    ("bam", {}, "torch.sigmoid(channel * self.spatial(x))", "torch.sigmoid(channel + self.spatial(x))"),
    ("bam", {}, "return 1 + torch.sigmoid", "return torch.sigmoid"),
    ("coord", {}, "F.hardswish", "F.relu"),
    ("coord", {}, "self.row(along_h)", "self.column(along_h)"),
    ("simam", {}, "max(1, x.shape[2] * x.shape[3] - 1)", "x.shape[2] * x.shape[3]"),
    ("triplet", {}, ") / 3", ")"),
    ("triplet", {}, "self.height_width(x)", "self.channel_width(x)"),
    ("nonlocal", {}, 'Attention(self.inner, score="scaled_dot")', 'Attention(self.inner, score="dot")'),
    ("nonlocal", {}, "return x + self.bn(self.out(y))", "return self.bn(self.out(y))"),
    ("nonlocal", {"subsample": 2}, "tokens(self.phi(self._pooled(x)))", "tokens(self._pooled(self.phi(x)))"),
    ("nonlocal_gaussian", {}, 'Attention(self.channels, score="dot")', 'Attention(self.channels, score="scaled_dot")'),
    ("nonlocal_dot", {}, "return a * share, keys * share", "return a, keys * share"),
    ("nonlocal_concat", {}, "return F.relu(F.linear(", "return abs(F.linear("),
    ("mhsa", {}, "position - position[:, None] + length - 1", "position[:, None] - position + length - 1"),
    ("mhsa", {}, "scale=self.head_dim**-0.5", "scale=(self.heads * self.head_dim) ** -0.5"),
    ("double", {}, "self.distribute(x).flatten(-2), dim=-2", "self.distribute(x).flatten(-2), dim=-1"),
    ("hard", {"glimpses": 3, "window": 2}, "F.avg_pool2d(e, self.window, stride=1)", "e[..., 1:, 1:]"),
    ("hard", {"glimpses": 3, "window": 2}, "total.clamp(max=1)", "total"),
    ("hard", {"fill": "mean"}, "x.mean((2, 3), keepdim=True)", "x.mean((0, 2, 3), keepdim=True)"),
    ("hard_topk", {}, "return super().choose(x, energies, k)", "return super().choose(x, -energies, k)"),
]  # fmt: skip


SHARED = ("visattn.blocks.se", "visattn.blocks.spatial")  # lines that other blocks are built from


def execute(source):
    module = types.ModuleType("mutant")
    exec(compile(source, "mutant.py", "exec"), vars(module))
    return module


def mutated_factory(name, line, mistake, monkeypatch):
    """The block's class, made anew from its source with one change, outside of the real registry."""
    info = block_info(name)
    own = info.factory.__module__
    sources = {module: inspect.getsource(sys.modules[module]) for module in dict.fromkeys((own, *SHARED))}
    changed = next((module for module, source in sources.items() if line in source), None)
    assert changed is not None, f"no longer in the code of {name}: {line}"
    monkeypatch.setattr(base, "BLOCKS", Registry("block"))
    monkeypatch.setitem(sys.modules, changed, execute(sources[changed].replace(line, mistake)))
    module = sys.modules[own] if changed == own else execute(sources[own])
    return getattr(module, info.factory.__name__)


def test_every_block_has_a_mutation():
    assert {name for name, *_ in MUTATIONS} == set(visattn.list_blocks())


@pytest.mark.parametrize(
    ("name", "options", "line", "mistake"), MUTATIONS, ids=[f"{m[0]}: {m[3].strip()[:40]}" for m in MUTATIONS]
)
def test_a_mistake_turns_the_oracle_test_red(name, options, line, mistake, monkeypatch):
    factory = mutated_factory(name, line, mistake, monkeypatch)
    case = Case(name, options, channels=32, sizes=((7, 5), (33, 17)))
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        check_against_oracle(case, case.build(factory=factory))
