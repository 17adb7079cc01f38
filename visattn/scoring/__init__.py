"""Is a heatmap true? Scores of explanations."""

from visattn.scoring.evaluation import evaluate
from visattn.scoring.quantus_adapter import for_quantus
from visattn.scoring.result import Evaluation
from visattn.scoring.words import PictureScore, score

__all__ = ["Evaluation", "PictureScore", "evaluate", "for_quantus", "score"]
