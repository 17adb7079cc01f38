"""Reference oracles of the attention heatmaps: float64 NumPy, one image, no batch, plain loops."""
