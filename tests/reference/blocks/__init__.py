"""Independent NumPy float64 oracles for attention blocks, one file per block, from the papers' equations."""
