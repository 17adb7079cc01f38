"""The exponential average of the weights, against torch's own."""

import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn

from visattn.training.averaging import Average, what_changes


@pytest.mark.parametrize("resumed", [False, True])
def test_it_equals_torchs_own(resumed):
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    device = torch.device("cpu")
    ours, theirs = Average(model, device, 0.9), AveragedModel(model, avg_fn=get_ema_avg_fn(0.9), use_buffers=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(6):
        model(torch.randn(8, 3)).square().sum().backward()
        optimizer.step()
        if resumed and step == 3:
            again = Average(model, device, 0.9)
            again.load_state_dict(ours.state_dict())
            ours = again
        ours.update_parameters(model)
        theirs.update_parameters(model)
        torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=0, atol=0)
    assert ours.n_averaged == 6


def test_a_callback_with_other_arguments_is_not_left_out():
    before = {each.state_key: {} for each in (ModelCheckpoint(every_n_epochs=1), EarlyStopping("val_loss"))}
    (said,) = what_changes({"callbacks": before}, [ModelCheckpoint(every_n_epochs=2)])
    assert said.startswith("note: the run goes on without EarlyStopping,")
