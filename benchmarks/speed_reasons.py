"""Why blocks take longer than timm's, or more than twice the floor of docs/speed.md."""

# Blocks that take longer than timm's somewhere.
LONGER: dict[tuple[str, ...], str] = {
    ("eca", "ceca", "ecam", "spatial"): (
        "in training, a forward pass also records a backward pass written in Python, in 10 to 50 microseconds; "
        "the backward pass saves many times that"
    ),
    ("sk", "splat"): "nearly all of the time is that of the convolutions, which are the same",
    ("nonlocal", "mhsa"): (
        "on small maps the fused kernel, which never holds N x N weights, is no faster than two products of matrices"
    ),
}

# Blocks that take more than twice the floor.
REASONS: dict[str, str] = {}
