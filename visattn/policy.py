r"""Decisions taken at random, and how they are learned: REINFORCE (Williams 1992).

.. math:: \nabla E[R] = E\Big[\sum_t \nabla \log \pi(a_t)\, (R - b_t)\Big]

where :math:`a_t` is what was decided (``log_prob`` holds its log-probability), :math:`R` the reward for the answer, and
:math:`b_t` a guess of it that was made without knowing :math:`a_t` (``baseline``): it does not change the mean of the
estimate, and takes away variance.

A module that decides at random derives from :class:`DecisionModule` and keeps a :class:`Decision` whenever it decides
in training mode. Whoever trains a model adds the :func:`policy_term` of its decisions; ``train.py`` does so for any
model:

>>> import torch, visattn
>>> from torch import nn
>>> model = nn.Sequential(nn.Conv2d(3, 8, 3), visattn.create_block("hard", 8, signal="reinforce")).train()
>>> logits = model(torch.randn(2, 3, 9, 9)).mean((2, 3))
>>> loss = policy_term(model, reward=logits.argmax(1) == torch.tensor([1, 2]))
>>> loss.shape
torch.Size([])
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from typing import Any
from weakref import ReferenceType, ref

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from visattn.modules import in_backward


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


class DecisionModule(nn.Module):
    """A module that takes decisions at random when it runs in training mode.

    Its ``forward`` then sets ``self.decision``, once or several times; in evaluation mode it leaves nothing to chance.

    All decisions of one forward pass of the outermost model are kept, in order, until they are taken or the next such
    pass decides. What cannot be learned from is not kept: decisions in evaluation mode, without gradient, or of a pass
    that is only run again for the sake of memory (``torch.utils.checkpoint`` with ``use_reentrant=False``).
    """

    def __init__(self) -> None:
        super().__init__()
        self._kept: list[Decision] = []
        self._pass: ReferenceType[Pass] | None = None  # in which they were taken

    @property
    def decision(self) -> Decision | None:
        """The last one that nobody has taken yet."""
        return self._kept[-1] if self._kept else None

    @decision.setter
    def decision(self, decision: Decision | None) -> None:
        if decision is None:  # nothing was decided
            return
        if not isinstance(decision, Decision):
            raise TypeError(f"{type(self).__name__}.decision is a Decision, got {type(decision).__name__}")
        if not self.training or not torch.is_grad_enabled():
            return
        if not torch.compiler.is_compiling():  # a compiler sees no pass but its own, and runs nothing again in Python
            if in_backward():
                return
            now = _running_pass()
            if now is None or self._pass is None or self._pass() is not now:
                self._kept.clear()
                self._pass = None if now is None else ref(now)
        self._kept.append(decision)

    def take(self) -> list[Decision]:
        """The decisions of the last pass, in order, unless they were taken before."""
        decisions, self._kept, self._pass = self._kept, [], None
        return decisions

    def observe(self, reward: Tensor) -> None:
        """Learn what the last decisions were worth: the mean reward of the batch, over all processes."""

    def __getstate__(self) -> dict[str, Any]:
        # A decision is part of one step's graph, which cannot be copied.
        return {**self.__dict__, "_kept": [], "_pass": None}


class Pass:
    """A forward pass of the outermost model; lives as long as it runs."""


def _running_pass() -> Pass | None:
    """The pass that is running now: a call of a module that no other module made.

    PyTorch does not say so, hence a look at the stack. The pass is kept among the keyword arguments of that call, which
    are its own, handed on already, and gone when it ends.
    """
    frame, outermost = inspect.currentframe(), None
    while frame is not None:
        outermost = frame if frame.f_code is nn.Module.__call__.__code__ else outermost
        frame = frame.f_back
    handed_on = outermost and outermost.f_locals.get("kwargs")
    return None if handed_on is None else handed_on.setdefault("pass of visattn", Pass())


def take_decisions(model: nn.Module) -> list[Decision]:
    """The decisions of the last forward pass of a model in training mode; each can be taken once.

    If one loss is made of several passes, take the decisions of each before the next begins.
    """
    return [decision for module in model.modules() if isinstance(module, DecisionModule) for decision in module.take()]


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


def _by_image(decision: Decision, images: int) -> Decision:
    """The decisions for the parts of an image, which lie next to each other, as so many more steps of that image."""
    parts = (decision.log_prob, decision.baseline, decision.entropy)
    whole = all(part.ndim == 2 and images and len(part) % images == 0 for part in parts)
    if not whole or len(decision.log_prob) == images:
        return decision
    log_prob, baseline, entropy = (part.reshape(images, -1) for part in parts)
    return replace(decision, log_prob=log_prob, baseline=baseline, entropy=entropy)


def policy_term(model: nn.Module, reward: Tensor, *, mean: Tensor | None = None) -> Tensor:
    """What the loss lacks for a model that took decisions in its forward pass; zero if it took none.

    A module that saw several parts of every image, one after the other (the crops of a ``glimpse_`` model), has decided
    for each of them, and all of that earns the reward of the image.

    Args:
        model: with modules that decide anywhere in it.
        reward: (B,), for the answers; one for a right one, say.
        mean: of the reward over all processes, when there are several.
    """
    if not isinstance(reward, Tensor):
        raise TypeError(f"the reward is a tensor (B,), one number for every image, got {reward!r}")
    if not isinstance(model, nn.Module):
        raise TypeError(f"policy_term takes a network, got {type(model).__name__}")
    if reward.ndim != 1:
        raise ValueError(f"the reward must be (B,), one number for every image, got {tuple(reward.shape)}")
    reward = reward.detach().float()
    term = reward.new_zeros(())
    for decision in take_decisions(model):
        term = term + policy_loss(_by_image(decision, len(reward)), reward)
    for module in model.modules():
        if isinstance(module, DecisionModule):
            module.observe(reward.mean() if mean is None else mean)
    return term
