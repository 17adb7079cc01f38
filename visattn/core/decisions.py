r"""Decisions taken at random, and how they are learned: REINFORCE (Williams 1992).

.. math:: \nabla E[R] = E\Big[\sum_t \nabla \log \pi(a_t)\, (R - b_t)\Big]

where :math:`a_t` is what was decided (``log_prob`` holds its log-probability), :math:`R` the reward for the answer, and
:math:`b_t` a guess of it that was made without knowing :math:`a_t` (``baseline``): it does not change the mean of the
estimate, and takes away variance.

A module that decides at random derives from :class:`Decides` and keeps a :class:`Decision` whenever it runs in training
mode. Whoever trains a model adds the :func:`policy_term` of the decisions it took; ``train.py`` does so for any model:

>>> import torch, visattn
>>> from torch import nn
>>> model = nn.Sequential(nn.Conv2d(3, 8, 3), visattn.create_block("hard", 8, signal="reinforce")).train()
>>> logits = model(torch.randn(2, 3, 9, 9)).mean((2, 3))
>>> loss = policy_term(model, reward=logits.argmax(1) == torch.tensor([1, 2]))
>>> loss.shape
torch.Size([])
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Decision:
    """What a module decided for every image of a batch, in T steps.

    Args:
        log_prob: (B, T), log-probability of what was decided; its gradient trains the policy.
        baseline: (B, T), the reward that was expected; learned if it has a gradient.
        entropy: (B, T), of the distribution that was drawn from, in nats.
        weight: of the policy's gradient in the loss.
        entropy_weight: of the entropy: the larger, the longer a policy goes on exploring.
    """

    log_prob: Tensor
    baseline: Tensor
    entropy: Tensor
    weight: float = 1.0
    entropy_weight: float = 0.0


class Decides(nn.Module):
    """A module that takes decisions at random when it runs in training mode.

    Its ``forward`` then sets ``self.decision``, once per pass; in evaluation mode it leaves nothing to chance.
    """

    decision: Decision | None = None  # the last one that nobody has taken yet

    def observe(self, reward: Tensor) -> None:
        """Learn what the last decision was worth: the mean reward of the batch, over all processes."""

    def __getstate__(self) -> dict[str, Any]:
        # A decision is part of one step's graph, which cannot be copied.
        return {key: value for key, value in self.__dict__.items() if key != "decision"}


def take_decisions(model: nn.Module) -> Iterator[Decision]:
    """The decisions of the last forward pass; each can be taken once."""
    for module in model.modules():
        if isinstance(module, Decides) and module.decision is not None:
            decision, module.decision = module.decision, None
            yield decision


def policy_loss(decision: Decision, reward: Tensor) -> Tensor:
    """A number whose gradient is the REINFORCE estimate, downhill; the mean over the batch.

    Args:
        decision: what was decided.
        reward: (B,), for the answer that followed.
    """
    shape = decision.log_prob.shape
    fits = len(shape) == 2 and decision.baseline.shape == shape and decision.entropy.shape[:1] == shape[:1]
    if not fits or decision.entropy.ndim != 2 or reward.shape != shape[:1]:
        shapes = [tuple(each.shape) for each in (decision.log_prob, decision.baseline, decision.entropy, reward)]
        raise ValueError(
            "log_prob and baseline of a decision must be (B, T), its entropy (B, T) or (B, 1) and the reward (B,); got "
            + ", ".join(map(str, shapes))
        )
    reward = reward.to(decision.baseline.dtype)[:, None].expand_as(decision.baseline)
    advantage = (reward - decision.baseline).detach()
    loss = -decision.weight * (decision.log_prob * advantage).sum(1).mean()
    if decision.baseline.requires_grad:
        loss = loss + F.mse_loss(decision.baseline, reward)
    return loss - decision.entropy_weight * decision.entropy.sum(1).mean()


def policy_term(model: nn.Module, reward: Tensor, *, mean: Tensor | None = None) -> Tensor:
    """What the loss lacks for a model that took decisions in its last forward pass; zero if it took none.

    Args:
        model: with modules that decide anywhere in it.
        reward: (B,), for the answers; one for a right one, say.
        mean: of the reward over all processes, when there are several.
    """
    reward = reward.detach().float()
    term = reward.new_zeros(())
    for decision in take_decisions(model):
        term = term + policy_loss(decision, reward)
    for module in model.modules():
        if isinstance(module, Decides):
            module.observe(reward.mean() if mean is None else mean)
    return term
