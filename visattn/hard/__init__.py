"""Location-wise hard attention: models that look at a few places of an image and never see the rest."""

from visattn.core.decisions import Decides, Decision, policy_loss, policy_term, take_decisions
from visattn.hard.glimpses import GlimpseNetwork
from visattn.hard.ram import RAM
from visattn.hard.scout import Scout
from visattn.hard.sensor import glimpse

__all__ = [
    "RAM",
    "Decides",
    "Decision",
    "GlimpseNetwork",
    "Scout",
    "glimpse",
    "policy_loss",
    "policy_term",
    "take_decisions",
]
