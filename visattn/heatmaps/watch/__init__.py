"""How methods see inside a model: which attention runs, what its rows and columns stand for, and a cache of both."""
