"""Why blocks take longer than timm's, or more than twice the floor of docs/speed.md."""

DEPTHWISE = "nearly all of the time is that of depthwise convolutions, which do little with every number that they read"
PASSES = "few operations, but each reads or writes the whole map, as does its gradient: "
WINDOWS = "the pixels of all windows are gathered, and their gradients scattered back, which the floor does not count"

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

# Blocks that take more than twice the floor, by what a profile of a training step shows.
REASONS: dict[str, str] = {
    "bam": "dilated convolutions and a gate for every number of the map",
    "cbam": PASSES + "two poolings with maxima and two gates",
    "coord": PASSES + "two poolings and a gate of rows and columns",
    "ela": PASSES + "two poolings and two gates",
    "ema": "its 1x1 and 3x3 convolutions work on groups of a few channels, far below the rate of the floor",
    "gct": PASSES + "a sum of squares, a gate and their gradients",
    "ge_theta": DEPTHWISE,
    "ge_theta_plus": DEPTHWISE,
    "lka": DEPTHWISE,
    "lsk": DEPTHWISE,
    "lska": DEPTHWISE,
    "msca": DEPTHWISE,
    "strip": DEPTHWISE,
    "irmb": DEPTHWISE,
    "mlca": "a gate for every number of the map, and adaptive pooling, which is slow on a CPU, above all backwards",
    "nam": PASSES + "a batch norm and a gate for every number of the map",
    "scsa": PASSES + "two stages, one by rows and columns, one by channels, and many small operations in between",
    "scse": PASSES + "the larger of two gated maps, and which of them it was",
    "sge": PASSES + "a similarity and a norm for every group, and a gate for every place of each",
    "shuffle": PASSES + "group norms, gates for every number of half of the map, and the shuffle",
    "simam": PASSES + "an energy and a gate for every number of the map, with divisions",
    "sk": "grouped convolutions, two norms and two maps of which one is made; timm's takes as long or longer",
    "srm": "most of the time is that of variances, which torch computes in two passes",
    "sse": PASSES + "a convolution to one channel, which reads the map once more in each direction",
    "triplet": "convolutions over two channels, of maps that are turned: far from the rate of the floor",
    "acmix": WINDOWS,
    "dilated": WINDOWS,
    "halo": WINDOWS,
    "sasa": WINDOWS,
    "bra": "the pixels of all chosen regions are gathered, and their gradients scattered back: not in the floor",
    "axial": "products of small matrices for every row and column, six norms, and copies between the two layouts",
    "deformable": "bilinear sampling of values, and of a table of distances for every pair",
    "deformable_lka": "nearly all of the time is that of torchvision's deformable convolution, which is slow on a CPU",
    "emsa": "convolutions of heads by heads over all pairs, and their instance norm, a few queries at a time",
    "involution": "a product and a sum for each of the 49 places of a window, which are no products of matrices",
    "lambda": "convolutions of one channel with kernels of 23 x 23, which have no such rate as 1x1 convolutions",
    "performer": "exponentials of as many features as there are, and products of thin matrices",
}
