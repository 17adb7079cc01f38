r"""Random decisions and how they are learned: REINFORCE (Williams 1992).

.. math:: \nabla E[R] = E\Big[\sum_t \nabla \log \pi(a_t)\, (R - b_t)\Big]

where :math:`a_t` is what was decided (``log_prob`` holds its log-probability), :math:`R` the reward for the answer, and
:math:`b_t` a prediction of it made without knowing :math:`a_t` (``baseline``), which leaves the mean of the estimate
unchanged and reduces its variance.

A module that decides at random derives from :class:`DecisionModule` and keeps a :class:`Decision` whenever it decides
in training mode. The training loop adds the :func:`policy_term` of the decisions to the loss; ``train.py`` does so for
any model:

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

from visattn.listing import shown
from visattn.modules import in_backward


@dataclass(frozen=True)
class Decision:
    """What a module decided for every image of a batch, in T steps.

    Args:
        log_prob: (B, T), log-probability of what was decided; its gradient trains the policy.
        baseline: (B, T), the expected reward; learned if it has a gradient.
        entropy: (B, T), entropy of the sampled distribution, in nats.
        weight: weight of the policy gradient in the loss.
        entropy_weight: weight of the entropy: the larger, the longer the policy keeps exploring.
    """

    log_prob: Tensor
    baseline: Tensor
    entropy: Tensor
    weight: float = 1.0
    entropy_weight: float = 0.0


class DecisionModule(nn.Module):
    """A module that makes random decisions in training mode.

    Its ``forward`` then sets ``self.decision``, once or several times; in evaluation mode it is deterministic.

    All decisions of one forward pass of the outermost model are kept, in order, until they are taken or the next such
    pass decides. Decisions that cannot be learned from are not kept: those made in evaluation mode, without gradient,
    or in a pass that is only recomputed to save memory (``torch.utils.checkpoint`` with ``use_reentrant=False``).
    """

    def __init__(self) -> None:
        super().__init__()
        self._kept: list[Decision] = []
        self._pass: ReferenceType[Pass] | None = None  # in which they were made,
        self._images: int | None = None  # and of how many images, if that is known

    @property
    def decision(self) -> Decision | None:
        """Last decision that has not been taken yet."""
        return self._kept[-1] if self._kept else None

    @decision.setter
    def decision(self, decision: Decision | None) -> None:
        if decision is None:  # nothing was decided
            return
        if not isinstance(decision, Decision):
            raise TypeError(f"{type(self).__name__}.decision must be a Decision, got {type(decision).__name__}")
        if not self.training or not torch.is_grad_enabled():
            return
        if not torch.compiler.is_compiling():  # a compiler sees only its own pass, and recomputes nothing in Python
            if in_backward():
                return
            now = _running_pass()
            if now is None or self._pass is None or self._pass() is not now:
                self._kept.clear()
                self._pass = None if now is None else ref(now)
                self._images = None if now is None else now.images
        self._kept.append(decision)

    def take(self) -> list[Decision]:
        """Take the decisions of the last pass, in order; each can be taken once."""
        decisions, self._kept, self._pass, self._images = self._kept, [], None, None
        return decisions

    def check_reward(self, reward: Tensor) -> None:
        """Raise if there are decisions for another number of images than rewards."""
        if self._kept and self._images not in (None, len(reward)):
            raise ValueError(f"the reward must be (B,), one number per image: {len(reward)} for {self._images} images")

    def observe(self, reward: Tensor) -> None:
        """Receive the mean reward of the batch over all processes, for baselines that are not networks."""

    def __getstate__(self) -> dict[str, Any]:
        # A decision is part of one step's graph, which cannot be copied.
        return {**self.__dict__, "_kept": [], "_pass": None, "_images": None}


@dataclass(eq=False)
class Pass:
    """A forward pass of the outermost model; exists while it runs.

    Args:
        images: how many it was given, if that is known.
    """

    images: int | None


def _running_pass() -> Pass | None:
    """Pass that is running now: a module call that was not made by another module.

    PyTorch has no record of it, hence a look at the stack. The pass is kept in the keyword arguments of that call,
    which are private to it, already passed on, and gone when it ends.
    """
    frame, outermost = inspect.currentframe(), None
    while frame is not None:
        outermost = frame if frame.f_code is nn.Module.__call__.__code__ else outermost
        frame = frame.f_back
    given = {} if outermost is None else outermost.f_locals
    handed_on = given.get("kwargs")
    if handed_on is None:
        return None
    first = next((x for x in given["args"] if isinstance(x, Tensor) and x.ndim), None)
    return handed_on.setdefault("pass of visattn", Pass(None if first is None else len(first)))


def take_decisions(model: nn.Module) -> list[Decision]:
    """Take the decisions of a model's last forward pass in training mode; each can be taken once.

    If a loss combines several passes, take the decisions of each before the next begins.
    """
    return [decision for module in model.modules() if isinstance(module, DecisionModule) for decision in module.take()]


def policy_loss(decision: Decision, reward: Tensor) -> Tensor:
    """Loss whose gradient is the negative REINFORCE estimate, averaged over the batch.

    Args:
        decision: what was decided.
        reward: (B,), the reward for the resulting answer.
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
    """Turn decisions for the parts of an image, which are consecutive, into additional steps of that image."""
    parts = (decision.log_prob, decision.baseline, decision.entropy)
    whole = all(part.ndim == 2 and images and len(part) % images == 0 for part in parts)
    if not whole or len(decision.log_prob) == images:
        return decision
    log_prob, baseline, entropy = (part.reshape(images, -1) for part in parts)
    return replace(decision, log_prob=log_prob, baseline=baseline, entropy=entropy)


def policy_term(model: nn.Module, reward: Tensor, *, mean: Tensor | float | None = None) -> Tensor:
    """Additional loss term for a model that made decisions in its forward pass; zero if it made none.

    A module that saw several consecutive parts of every image (the crops of a ``glimpse_`` model) has decided for each
    of them, and all these decisions earn the reward of the image.

    Args:
        model: a model with decision modules anywhere in it.
        reward: (B,), the reward of each answer, for example one if it is correct.
        mean: mean reward over all processes, if there are several.
    """
    if not isinstance(reward, Tensor):
        raise TypeError(f"the reward must be a tensor (B,), one number per image, got {reward!r}")
    if not isinstance(model, nn.Module):
        raise TypeError(f"policy_term takes a network, got {type(model).__name__}")
    if reward.ndim != 1 or len(reward) == 0:
        raise ValueError(f"the reward must be (B,), one number per image, got {tuple(reward.shape)}")
    reward = _finite("reward", reward.detach().float())
    mean = reward.mean() if mean is None else _finite("mean", _number(mean))
    for module in model.modules():
        if isinstance(module, DecisionModule):
            module.check_reward(reward)
    term = reward.new_zeros(())
    for decision in take_decisions(model):
        term = term + policy_loss(_by_image(decision, len(reward)), reward)
    for module in model.modules():
        if isinstance(module, DecisionModule):
            module.observe(mean)
    return term


def _number(mean: Any) -> Tensor:
    """The mean reward as a tensor of one number."""
    number = mean if isinstance(mean, Tensor | int | float) and not isinstance(mean, bool) else None
    if number is None or (isinstance(number, Tensor) and number.ndim > 0):
        raise TypeError(f"mean must be one number, got {shown(mean)}")
    return torch.as_tensor(number).detach().float()


def _finite(what: str, values: Tensor) -> Tensor:
    """Raise for NaN or infinity, which a moving average would never forget."""
    if values.device.type == "cpu" and not values.isfinite().all():  # elsewhere a look would make the host wait
        raise ValueError(f"the {what} must be finite, got {shown(values)}")
    return values
