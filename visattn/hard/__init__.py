"""Location-wise hard attention: models that look at a few places of an image and never see the rest."""

from visattn.hard.glimpses import GlimpseNetwork
from visattn.hard.ram import RAM
from visattn.hard.scout import Scout
from visattn.hard.sensor import glimpse
from visattn.policy import Decision, DecisionModule, policy_loss, policy_term, take_decisions

__all__ = [
    "RAM",
    "Decision",
    "DecisionModule",
    "GlimpseNetwork",
    "Scout",
    "glimpse",
    "policy_loss",
    "policy_term",
    "take_decisions",
]
