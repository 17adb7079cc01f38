"""Reference oracles of the attention core: float64 NumPy, one example, no batch, plain loops."""
