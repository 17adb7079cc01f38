"""Every block can be compiled, exported and run by onnxruntime; a plain pytest tries a few, the slow tier all."""

import onnxruntime
import pytest
import torch

from tests.blocks import DEFAULTS, OF_EVERY_FAMILY, Case
from tests.tiers import mostly_slow
from visattn.blocks import FAMILIES, block_info, list_blocks

every_block = pytest.mark.parametrize(
    "case", mostly_slow(DEFAULTS, *OF_EVERY_FAMILY, key=lambda case: case.name), ids=lambda case: case.id
)
# TorchScript has no words for what the others do: lists of a size it cannot know, tuples with methods, contexts, and
# modules as arguments
NOT_SCRIPTED = {"fca", "gc", "ge_theta", "ge_theta_plus", "hard", "hard_topk", "mhsa", "nonlocal", "nonlocal_gaussian",
                "residual", "sasa", "halo", "acmix", "aug", "criss_cross", "external", "efficient", "linear",
                "performer", "focused_linear"}  # fmt: skip
NOT_SCRIPTED |= {"attention_gate", "danet", "gsop", "scsa", "involution"}
NOT_SCRIPTED |= {"aft", "agent", "bra", "cga", "deformable", "dilated", "emsa", "generalized", "hilo", "irmb",
                 "outlook", "perceiver", "shsa"}  # fmt: skip
# torch.fx has no numbers while it traces, and these ask for the size of the map, or look into a tensor
NOT_TRACED = {"aft", "agent", "attention_gate", "axial", "bra", "cga", "criss_cross", "danet", "deformable",
              "deformable_lka", "dilated", "efficient", "emsa", "external", "focused_linear", "ge_theta",
              "ge_theta_plus", "generalized", "gsop", "hard", "hard_topk", "hilo", "irmb", "linear", "mhca", "nonlocal",
              "nonlocal_gaussian", "perceiver", "performer", "scsa", "sge", "shsa", "simam", "srm"}  # fmt: skip


def test_the_sample_has_every_family():
    assert {block_info(name).family for name in OF_EVERY_FAMILY} == {*FAMILIES}


@pytest.fixture
def x():
    return torch.randn(2, 16, 7, 5)


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()


@every_block
def test_compiles_without_graph_breaks(case, x):
    block = case.build(dtype=torch.float32)
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), block(x), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["se", "cbam", "fca", "nonlocal", "mhsa", "residual", "eca", "ceca", "ecam", "coord", "gc", "lambda"]
)
def test_compiles_with_inductor(name, x):
    block = Case(name).build(dtype=torch.float32).train()
    compiled = torch.compile(block, fullgraph=True)
    x.requires_grad_()
    expected = torch.autograd.grad(block(x).square().sum(), x)[0]
    actual = torch.autograd.grad(compiled(x).square().sum(), x)[0]
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)


@every_block
def test_exports(case, x):
    block = case.build(dtype=torch.float32)
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(block, (x,), dynamic_shapes=({0: batch},), strict=False)
    other = torch.randn(5, 16, 7, 5)
    torch.testing.assert_close(program.module()(other), block(other), rtol=1e-4, atol=1e-5)


@every_block
def test_runs_in_onnxruntime(case, x, tmp_path):
    block = case.build(dtype=torch.float32)
    file = tmp_path / "block.onnx"
    torch.onnx.export(block, (x,), file, dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    (output,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(output), block(x), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["acmix", "aug", "cot", "halo", "lambda", "lka", "mhsa", "psa", "sasa", "sk", "splat"])
def test_grouped_blocks_export_and_run_in_onnxruntime(name, x, tmp_path):
    case = Case(name, {"groups": 4, "out_channels": 16 if name == "lka" else 32, "stride": 1 if name == "lka" else 2})
    test_exports(case, x)
    test_runs_in_onnxruntime(case, x, tmp_path)


@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.parametrize("name", sorted({*list_blocks()} - NOT_SCRIPTED))
def test_can_be_scripted(name, x):
    block = Case(name).build(dtype=torch.float32)
    torch.testing.assert_close(torch.jit.script(block)(x), block(x))


@pytest.mark.parametrize("name", sorted({*list_blocks()} - NOT_TRACED))
def test_can_be_traced_by_torch_fx(name, x):
    block = Case(name).build(dtype=torch.float32)
    torch.testing.assert_close(torch.fx.symbolic_trace(block)(x), block(x))


FIXED_IN_ONNX = {  # what torch.onnx cannot say of maps whose size it does not know
    "hard": "a share of the windows is rounded to a whole number",
    "hard_topk": "a share of the windows is rounded to a whole number",
}


@pytest.mark.slow
@pytest.mark.parametrize("case", DEFAULTS, ids=lambda case: case.id)
def test_runs_in_onnxruntime_at_other_sizes(case, tmp_path):
    """Exported at a size that position tables are stored for, and that many windows divide."""
    block = case.build(dtype=torch.float32)
    file = tmp_path / "block.onnx"
    free = torch.export.Dim.DYNAMIC

    def export():
        x = torch.randn(2, 16, 14, 28)
        torch.onnx.export(block, (x,), file, dynamo=True, dynamic_shapes=({0: free, 2: free, 3: free},), verbose=False)

    if case.name in FIXED_IN_ONNX:
        with pytest.raises(torch.onnx.OnnxExporterError):
            export()
        return
    export()
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    for shape in ((2, 16, 14, 28), (1, 16, 33, 17), (3, 16, 9, 13)):
        x = torch.randn(shape)
        (output,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        torch.testing.assert_close(torch.from_numpy(output), block(x), rtol=1e-4, atol=1e-4)
