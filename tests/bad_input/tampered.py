"""Checkpoints of a run whose numbers were changed: each of them would be resumed with a result that is wrong."""

import torch

from tests.bad_input.trials import optimizer, state

COUNTS = "its step and epoch counts do not agree"
TABLE = "the checkpoint's table of epochs is malformed"
OTHER = "the optimiser state"
EMPTY = "but the state of its optimiser is empty"
BROKEN = "an optimiser state that is not of finite numbers"
MALFORMED = "the optimiser state in the checkpoint"
GROWS = "it would grow when it is used"
NAN = float("nan")


def loop(says, change):
    return state(says, lambda content: change(content["loops"]["fit_loop"]))


def schedule(says, **changes):
    return state(says, lambda content: content["lr_schedulers"][0].update(changes))


def row(says, **changes):
    return state(says, lambda content: content["callbacks"]["Record"]["rows"][0].update(changes))


def group(says, **changes):
    return optimizer(says, lambda saved: saved["param_groups"][0].update(changes))


def laughs():
    """A small list whose lists are the same ones, all the way down."""
    found = [1] * 10
    for _ in range(12):
        found = [found] * 10
    return found


def steps(progress):
    return progress["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]["step"]["total"]


def broken(content):
    content["state_dict"]["model.fc.bias"] = content["state_dict"]["model.fc.bias"] * NAN


CASES = [
    *(state(COUNTS, lambda content, number=number: content.update(global_step=number)) for number in (10**6, -3, 0)),
    state(COUNTS, lambda content: content.update(epoch=5)),
    loop(COUNTS, lambda progress: steps(progress).update(completed=10**6)),
    loop(COUNTS, lambda progress: steps(progress).update(completed=-5)),
    loop(COUNTS, lambda progress: progress["epoch_progress"]["current"].update(processed=1.5)),
    loop(COUNTS, lambda progress: progress["epoch_progress"]["current"].update(processed="x")),
    loop(COUNTS, lambda progress: progress["epoch_progress"]["current"].update(processed=100)),
    loop(COUNTS, lambda progress: progress["epoch_progress"].pop("current")),
    schedule(COUNTS, last_epoch=10**6),
    schedule(COUNTS, last_epoch="x"),
    schedule("its state is malformed", step=5),
    schedule("its state is malformed", optimizer=3),
    state("its state is malformed", lambda content: content.update(sums=3)),
    state("its state is malformed", lambda content: content["sums"].update(other={})),
    state("its state is malformed", lambda content: content["sums"]["train_loss"].update(total=NAN)),
    state("its state is malformed", lambda content: content["sums"]["train_top1"].update(right="x")),
    state(TABLE, lambda content: content["callbacks"].clear()),
    state(TABLE, lambda content: content["callbacks"].update(Record={})),
    state(COUNTS, lambda content: content["callbacks"]["Record"]["rows"].clear()),
    row(COUNTS, epoch=77),
    row(TABLE, val_top1="x"),
    row(TABLE, val_top1=5.0),
    row(TABLE, step=None),
    group(OTHER, betas=(2.0, -1.0)),
    group(OTHER, eps=NAN),
    group(OTHER, maximize=True),
    optimizer("does not contain the state of a run (KeyError: 'exp_avg')",
              lambda saved: [each.pop("exp_avg") for each in saved["state"].values()]),
    optimizer(EMPTY, lambda saved: saved["state"].clear()),
    optimizer(EMPTY, lambda saved: saved.update(state={key: {} for key in saved["state"]})),
    optimizer(BROKEN, lambda saved: saved["state"][0].update(exp_avg=saved["state"][0]["exp_avg"] * NAN)),
    optimizer(BROKEN, lambda saved: saved["state"][0].update(step=torch.tensor(NAN))),
    group(MALFORMED, params=5),
    group(OTHER, params=[]),
    group(MALFORMED, params=[[1]] * 100),
    group(MALFORMED, betas=torch.zeros(2)),
    group(MALFORMED, eps={}),
    group(MALFORMED, lr="x"),
    optimizer(MALFORMED, lambda saved: saved.update(param_groups=[3, 4])),
    optimizer(MALFORMED, lambda saved: saved["param_groups"][0].pop("params")),
    optimizer(OTHER, lambda saved: saved["param_groups"].clear()),
    optimizer(OTHER, lambda saved: saved["state"].update({0: 3})),
    optimizer(OTHER, lambda saved: saved["state"].update({"x": []})),
    optimizer(MALFORMED, lambda saved: saved["state"].update({(1, 2): {"exp_avg": torch.ones(3)}})),
    optimizer("does not contain the state of a run", lambda saved: saved["state"][0].update(step=None)),
    optimizer(MALFORMED, lambda saved: saved["state"][0].update(exp_avg=3)),
    optimizer(MALFORMED, lambda saved: saved["state"][0].update(exp_avg_sq=[1])),
    optimizer(GROWS, lambda saved: saved["state"][0].update(more=torch.zeros(1).expand(10**11))),
    optimizer(GROWS, lambda saved: saved["state"][0].update(exp_avg=saved["state"][0]["exp_avg"].to_sparse())),
    loop(GROWS, lambda progress: progress["epoch_progress"].update(more=laughs())),
    loop(GROWS, lambda progress: progress["epoch_progress"].update(more=[[1] * 10**6] * 10**6)),
    state("it has no model card", lambda content: content.pop("card")),
    state("it has no model card", lambda content: content.update(card=None)),
    state("does not say which classes", lambda content: content["card"].pop("classes")),
    state("does not say which classes", lambda content: content["card"].update(classes=[])),
    state("is not of the model", lambda content: content["card"].pop("attachments")),
    state("weights that are not finite numbers (fc.bias)", broken),
    state("weights that are not finite numbers (fc.bias)", broken, "best"),
]  # fmt: skip
