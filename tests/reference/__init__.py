"""Oracles: every function is written from a paper, in NumPy, by somebody who had not seen visattn's code."""
