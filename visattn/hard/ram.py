r"""The recurrent attention model (RAM).

Mnih et al., *Recurrent Models of Visual Attention*, NeurIPS 2014, https://arxiv.org/abs/1406.6247

.. math::
    l_t \sim \mathcal N(\tanh(W_l h_{t-1}), \sigma^2), \qquad
    g_t = \mathrm{ReLU}(W_{g1}\, \mathrm{ReLU}(W_\rho\, \rho(x, l_t)) + W_{g2}\, \mathrm{ReLU}(W_\ell\, l_t)), \qquad
    h_t = \mathrm{ReLU}(W_h h_{t-1} + W_x g_t)

and the classes are read from the last state, :math:`W_a h_T`. Here ρ is the retina (:mod:`visattn.hard.sensor`), W_ρ
``what``, W_ℓ ``where``, W_g1 ``what_out``, W_g2 ``where_out``, W_h ``recur``, W_x ``update``, W_l ``locator``, W_a
``head``; ``baseline`` predicts the reward from :math:`h_{t-1}`.

The cross-entropy trains everything but the locator and the baseline, which read the state without passing gradients to
it: the locator learns by REINFORCE (:mod:`visattn.policy`), with reward one for a correct answer.

Differences from the paper: the first location is also learned (from :math:`h_0 = 0`), not drawn at random.

>>> import torch
>>> model = RAM(num_classes=10, glimpses=6, size=8)
>>> sum(p.numel() for p in model.parameters())
209677
>>> images = torch.rand(4, 1, 28, 28)
>>> model.eval()(images).shape, model.fixations(images)[0].shape
(torch.Size([4, 10]), torch.Size([4, 6, 2]))
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from visattn.core.arguments import at_least_one, checked
from visattn.core.precision import precise
from visattn.hard.sensor import check_glimpse, glimpse
from visattn.policy import Decision, DecisionModule
from visattn.registry import suggest

Policy: TypeAlias = Literal["learned", "random"]

MOST_GLIMPSES = 1000  # of an image, and paths through it
FEATURES = 128  # of what a glimpse shows, and of where it is


class RAM(DecisionModule):
    """Look at T places of an image, one after the other, then classify it.

    In evaluation mode it follows the mean of the policy or, with several samples, draws that many paths and averages
    the answers; the same images give the same answer.

    Args:
        num_classes: at least two.
        in_chans: channels of the images.
        glimpses: T.
        size: side of a glimpse in pixels.
        scales: patches per glimpse, each twice as wide as the one before.
        hidden: width of the state.
        sigma: standard deviation of a location around where the locator points.
        samples: paths per image in evaluation mode; one goes without noise.
        policy: ``learned``, or ``random`` for uniformly drawn locations, as a baseline.
        policy_weight: weight of REINFORCE in the loss.
    """

    @checked
    def __init__(
        self,
        num_classes: int = 10,
        in_chans: int = 1,
        *,
        glimpses: int = 6,
        size: int = 8,
        scales: int = 1,
        hidden: int = 256,
        sigma: float = 0.15,
        samples: int = 1,
        policy: Policy = "learned",
        policy_weight: float = 0.01,
    ) -> None:
        super().__init__()
        counts = {
            "in_chans": in_chans,
            "glimpses": glimpses,
            "size": size,
            "scales": scales,
            "hidden": hidden,
            "samples": samples,
        }
        for name, value in counts.items():
            if value < 1:
                raise ValueError(f"ram needs {name} of at least one, got {value}")
        for name in ("glimpses", "samples"):
            at_least_one(name, counts[name], MOST_GLIMPSES)
        check_glimpse(size, scales)
        if num_classes < 2:
            raise ValueError(f"ram needs two or more classes, got {num_classes}")
        if not sigma > 0:
            raise ValueError(f"ram needs sigma above zero, got {sigma}: without noise it never tries another place")
        if policy not in get_args(Policy):
            raise ValueError(f"unknown policy {policy!r}: {suggest(policy, get_args(Policy))}")
        self.num_classes, self.num_features, self.in_chans = num_classes, hidden, in_chans
        self.glimpses, self.size, self.scales = glimpses, size, scales
        self.sigma, self.samples, self.policy, self.policy_weight = sigma, samples, policy, policy_weight
        self.what = nn.Linear(scales * in_chans * size * size, FEATURES)
        self.where = nn.Linear(2, FEATURES)
        self.what_out = nn.Linear(FEATURES, hidden)
        self.where_out = nn.Linear(FEATURES, hidden)
        self.recur = nn.Linear(hidden, hidden)
        self.update = nn.Linear(hidden, hidden)
        if policy == "learned":
            self.locator = nn.Linear(hidden, 2)
            self.baseline = nn.Linear(hidden, 1)
        self.head = nn.Linear(hidden, num_classes)

    def get_classifier(self) -> nn.Linear:
        """Classification layer."""
        return self.head

    def reset_classifier(self, num_classes: int) -> None:
        """Replace the classifier for another number of classes."""
        self.num_classes = num_classes
        self.head = nn.Linear(self.num_features, num_classes).to(self.head.weight)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, classes)."""
        self._check(images)
        if self.training:
            state, _, self.decision = self._look(images, self._noise(images))
            return self.head(state)
        if self.samples == 1 and self.policy == "learned":
            return self.head(self._look(images, None)[0])
        state, *_ = self._look(images.repeat(self.samples, 1, 1, 1), self._noise(images, self.samples))
        answers = precise(self.head(state)).unflatten(0, (self.samples, -1)).log_softmax(2)
        return answers.logsumexp(0) - math.log(self.samples)

    def fixations(self, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Return where it looks without noise, (B, T, 2) as (x, y), and a glimpse's (height, width) in pixels."""
        self._check(images)
        noise = None if self.policy == "learned" else self._noise(images, 1)
        return self._look(images, noise)[1], (self.size, self.size)

    def along(self, images: Tensor, path: Tensor) -> Tensor:
        """Logits (B, classes) after looking at the given places (B, T, 2)."""
        state = images.new_zeros(len(images), self.num_features)
        for location in path.unbind(1):
            state = self._step(images, location, state)
        return self.head(state)

    def _check(self, images: Tensor) -> None:
        if images.ndim != 4 or images.shape[1] != self.in_chans or 0 in images.shape[2:]:
            raise ValueError(
                f"ram was built for images (B, {self.in_chans}, H, W), got {tuple(images.shape)}: see in_chans"
            )
        if not images.is_floating_point():
            raise TypeError(f"ram takes images of floating-point numbers, got {images.dtype}")

    def _noise(self, images: Tensor, samples: int | None = None) -> Tensor:
        """Noise (B, T, 2): drawn anew in training, fixed for a given number of samples in evaluation."""
        if samples is None:
            generator, count, device = None, len(images), images.device
        else:
            generator, count, device = torch.Generator().manual_seed(0), samples * len(images), torch.device("cpu")
        shape = (count, self.glimpses, 2)
        if self.policy == "random":
            noise = 2 * torch.rand(shape, generator=generator, device=device) - 1
        else:
            noise = self.sigma * torch.randn(shape, generator=generator, device=device)
        return noise.to(images.device, non_blocking=True)

    def _look(self, images: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor, Decision | None]:
        """Run all glimpses; returns the last state, the locations, and the decision."""
        state = images.new_zeros(len(images), self.num_features)
        path, log_probs, expected = [], [], []
        for step in range(self.glimpses):
            if self.policy == "random":
                assert noise is not None
                location = noise[:, step]
            else:
                mean = torch.tanh(precise(self.locator(state.detach())))
                location = mean.detach() if noise is None else mean.detach() + noise[:, step]
                log_probs.append(log_normal(location, mean, self.sigma))
                expected.append(precise(self.baseline(state.detach())).squeeze(1))
                location = location.clamp(-1, 1)
            path.append(location)
            state = self._step(images, location, state)
        decision = None
        if log_probs:
            spread = state.new_full((len(images), self.glimpses), 1 + math.log(2 * math.pi * self.sigma**2))
            decision = Decision(torch.stack(log_probs, 1), torch.stack(expected, 1), spread, self.policy_weight)
        return state, torch.stack(path, 1), decision

    def _step(self, images: Tensor, location: Tensor, state: Tensor) -> Tensor:
        """State after one more glimpse."""
        seen = glimpse(images, location[:, None], size=self.size, scales=self.scales).flatten(1)
        what = self.what_out(F.relu(self.what(seen)))
        where = self.where_out(F.relu(self.where(location.to(images.dtype))))
        return F.relu(self.recur(state) + self.update(F.relu(what + where)))


def log_normal(value: Tensor, mean: Tensor, sigma: float) -> Tensor:
    """(B,): log-density of points (B, 2) with equal deviation along both axes."""
    return -((value - mean) / sigma).square().sum(1) / 2 - math.log(2 * math.pi * sigma**2)
