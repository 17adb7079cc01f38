"""Networks in the wrappers of others, and checkpoints of such networks."""

import pytest
import timm
import torch
from torch import nn

import visattn


def network(**options):
    torch.manual_seed(0)
    return timm.create_model("test_resnet", num_classes=3, **options).eval()


def test_a_compiled_network_gets_the_block_and_loses_it():
    plain, x = network(), torch.randn(1, 3, 64, 64)
    before = plain(x)
    compiled = torch.compile(plain, backend="eager")
    assert torch.equal(compiled(x), before)
    assert visattn.attach(compiled, "se", at="layer1", init="paper") is compiled
    assert list(visattn.attachments(compiled)) == ["layer1"]
    after = compiled(x)
    assert not torch.equal(after, before)  # compiled anew, with the block
    assert torch.equal(after, plain(x))
    visattn.detach(compiled)
    assert torch.equal(compiled(x), before)


def test_a_compiled_network_is_saved(tmp_path):
    compiled = torch.compile(visattn.attach(network(), "se", at="layer1"), backend="eager")
    again, _ = visattn.load_model(visattn.save_model(compiled, tmp_path))
    assert list(visattn.attachments(again)) == ["layer1"]


def test_a_data_parallel_network_gets_the_block():
    parallel = nn.DataParallel(network())
    visattn.attach(parallel, "se", at="layer1", init="paper")
    assert list(visattn.attachments(parallel)) == ["layer1"]
    assert "layer1" in visattn.attachments(parallel.module)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "model.", "module._orig_mod.", "model._orig_mod."])
@pytest.mark.parametrize("below", [None, "state_dict", "model_state", "model"])
def test_prefixes_of_others_are_understood(prefix, below):
    source, target = network(), network()
    nn.init.ones_(source.fc.weight)
    state = {f"{prefix}{key}": value for key, value in source.state_dict().items()}
    report = visattn.load_state_dict(target, state if below is None else {"epoch": 3, below: state})
    assert torch.equal(target.fc.weight, source.fc.weight)
    assert report.stripped == prefix
    assert f"without {prefix!r}" in str(report)


def test_all_weights_are_loaded_or_none():
    target, source = network(), network()
    before = {key: value.clone() for key, value in target.state_dict().items()}
    for parameter in source.parameters():
        nn.init.ones_(parameter)
    for change in (
        lambda state: state.update({"fc.weight": torch.zeros(7, 7)}),
        lambda state: state.pop("fc.weight"),
        lambda state: state.update({"more": torch.zeros(1)}),
        lambda state: state.update({"fc.weight": "text"}),
    ):
        state = dict(source.state_dict())
        change(state)
        with pytest.raises(ValueError, match=r"stays as it was: (missing|unexpected|of another shape|no tensors): 1"):
            visattn.load_state_dict(target, state)
        torch.testing.assert_close(dict(target.state_dict()), before, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
def test_a_traced_network_is_refused():
    traced = torch.jit.trace(network(), torch.zeros(1, 3, 64, 64), check_trace=False)
    with pytest.raises(ValueError, match=r"attach before torch\.jit"):
        visattn.attach(traced, "se")


def test_after_distributed_data_parallel_it_is_too_late(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        parallel = nn.parallel.DistributedDataParallel(visattn.attach(network(), "se", at="layer1"))
        assert list(visattn.attachments(parallel)) == ["layer1"]
        with pytest.raises(ValueError, match="before DistributedDataParallel"):
            visattn.attach(parallel, "se", at="layer2")
        with pytest.raises(ValueError, match="before DistributedDataParallel"):
            visattn.detach(parallel)
    finally:
        torch.distributed.destroy_process_group()
