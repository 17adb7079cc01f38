"""Is a heatmap true? Scores of explanations."""

from visattn.scoring.evaluation import evaluate
from visattn.scoring.result import Evaluation

__all__ = ["Evaluation", "evaluate"]
