"""Non-local attention on a large map never holds the N x N matrix."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import visattn
from tests.blocks import Case
from tests.tensors import LargestTensor

# Peak resident memory of one forward and backward pass above the level before it, in MiB.
MEASURE = """
import re, torch, visattn
torch.manual_seed(0)
torch.set_num_threads(1)

class Explicit(visattn.blocks.NonLocal):
    def _context(self, query, key, value):
        return torch.bmm(torch.softmax(torch.bmm(query, key.mT) * query.shape[-1] ** -0.5, -1), value)

def step(kind, side, batch):
    block = kind(64)
    x = torch.randn(batch, 64, side, side, requires_grad=True)
    block(x).square().sum().backward()

peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) / 1024
kind = {"fused": visattn.blocks.NonLocal, "explicit": Explicit}["%s"]
step(kind, 8, 1)  # load kernels
before = peak()
step(kind, 56, 4)
print(peak() - before)
"""


def peak_memory(kind):
    result = subprocess.run([sys.executable, "-c", MEASURE % kind], capture_output=True, text=True, check=True)
    return float(result.stdout)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak from Linux's /proc")
def test_a_quarter_of_the_explicit_form():
    explicit, fused = peak_memory("explicit"), peak_memory("fused")
    assert explicit > 150  # one matrix of 3136 x 3136 floats for each of four images: the measure sees them
    assert fused <= explicit / 4, f"{fused:.0f} MiB against {explicit:.0f} MiB"


LEAN = [
    *("nonlocal", "nonlocal_gaussian", "nonlocal_dot", "mhsa", "double", "sasa", "halo", "acmix", "cot", "lambda"),
    *("aug", "axial", "criss_cross", "efficient", "linear", "performer", "focused_linear", "outlook", "aft", "bra"),
    *("cga", "irmb", "dilated", "hilo", "agent", "shsa", "generalized", "perceiver"),
    *("nonlocal_concat", "deformable", "emsa"),
]


@pytest.mark.parametrize("name", LEAN)
def test_no_matrix_of_all_pairs(name):
    few = {"axial": {"heads": 2}, "performer": {"features": 32}}
    block = Case(name, few.get(name, {})).build(dtype=torch.float32)
    x = torch.randn(1, 16, 48, 48, requires_grad=True)
    pairs = (48 * 48) ** 2
    with LargestTensor() as largest:
        block(x).sum().backward()
    assert largest.elements < pairs / 2
    with LargestTensor() as largest, torch.no_grad():
        block.attention(x)
    assert largest.elements >= pairs


def test_the_measure_can_fail():
    block = visattn.create_block("nonlocal", 16)
    with LargestTensor() as largest:
        block.attention(torch.randn(1, 16, 48, 48))
    assert largest.elements >= (48 * 48) ** 2
