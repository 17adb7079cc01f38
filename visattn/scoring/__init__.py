"""Is a heatmap true? Scores of explanations."""
