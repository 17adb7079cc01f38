"""Wrong names and numbers of blocks and of attention."""

import numpy as np
import torch
from torch import nn

import visattn
from tests.bad_input.case import Call
from visattn.core import Attention, MultiHeadAttention, kernels, scopes, scores
from visattn.hard import RAM, Scout


def register(name, factory=nn.Identity, family="channel", paper="p"):
    return lambda: visattn.register_block(name, family=family, paper=paper)(factory)


def build(name, channels=16, **options):
    return lambda: visattn.create_block(name, channels, **options)


NAME = "letters, digits and single underscores"
NOT_CHANNELS = [0, -3, 8.0, "8", None, True, float("nan"), np.float64(8), np.bool_(True), [8]]
BAD_OPTIONS = [
    ("se", "rd_ratio", float("nan"), "needs rd_ratio to be a number, got nan"),
    ("se", "rd_ratio", "1/16", "needs rd_ratio to be a number, got '1/16'"),
    ("se", "rd_ratio", -1, "rd_ratio must be above zero"),
    ("cbam", "kernel_size", 9999, "a spatial gate needs kernel_size to be at most 255, got 9999"),
    ("perceiver", "latent_dim", 10**6, "block 'perceiver' of 16 channels needs more memory than there is"),
    ("sasa", "kernel_size", 99, "sasa needs kernel_size to be at most 63, got 99"),
    ("outlook", "kernel_size", 99, "outlook needs kernel_size to be at most 31, got 99"),
    ("halo", "block", 99, "halo needs a block and a halo of at most 64 pixels, got 99 and 3"),
    ("halo", "halo", 99, "halo needs a block and a halo of at most 64 pixels, got 8 and 99"),
    ("se", "rd_ratio", 1e5, "a bottleneck of 1.6e+06 channels"),
    ("se", "rd_ratio", 1e30, "needs rd_ratio to be at most 1048576, got 1e+30"),
    ("coord", "rd_min", 10**12, "needs rd_min to be at most 1048576"),
    ("mhsa", "size", 10**9, "needs size to be at most 1048576"),
    ("ge", "extent", 10**30, "needs extent to be at most 1048576"),
    ("gct", "eps", 1e300, "needs eps to be at most 1048576"),
    ("hard_topk", "samples", 10**12, "needs samples to be at most 1048576"),
    ("se", "bias", "no", "needs bias to be True or False, got 'no'"),
    ("eca", "kernel_size", 3.0, "needs kernel_size to be a whole number, got 3.0"),
    ("eca", "kernel_size", True, "needs kernel_size to be a whole number, got True"),
    ("bam", "dilation", 0, "bam needs dilation above zero, got 0"),
    ("residual", "depth", 0, "a depth of at least 1, got 0"),
    ("residual", "depth", 10**5, "a depth of at most 16, got 100000"),
    ("criss_cross", "recurrence", 10**6, "criss_cross needs a recurrence of at most 16, got 1000000"),
    ("mhca", "heads", 10**4, "mhca needs at most 32 heads, got 10000"),
    ("coord", "rd_min", 0, "rd_min must be at least one, got 0"),
    ("sk", "groups", 0, "0 groups do not divide 16 channels"),
    ("sk", "groups", 5, "5 groups do not divide 16 channels"),
    ("halo", "groups", 3, "halo: 3 groups do not divide 16 channels"),
    ("cot", "groups", 0, "cot: 0 groups do not divide 16 channels"),
    ("splat", "radix", 0, "splat needs radix above zero, got 0"),
    ("splat", "groups", -1, "splat needs groups above zero, got -1"),
    ("mhsa", "size", 0, "mhsa needs size above zero, got 0"),
    ("mhsa", "heads", "4", "needs heads to be a whole number, got '4'"),
    ("gct", "eps", -1.0, "gct needs eps above zero, got -1.0"),
    ("simam", "lam", float("inf"), "needs lam to be a number, got inf"),
    ("ge", "extent", 1.5, "needs extent to be a whole number, got 1.5"),
    ("ge_theta", "size", 0, "size is the height and width of a map, got 0"),
    ("ge_theta", "size", (7, 7, 7), "size is the height and width of a map"),
    ("ge_theta", "size", (7.5, 7), "needs size to be a whole number, got 7.5"),
    ("hard", "glimpses", float("nan"), "needs glimpses to be a whole number or a number, got nan"),
    ("hard", "glimpses", True, "needs glimpses to be a whole number or a number, got True"),
    ("hard", "window", 2.0, "needs window to be a whole number, got 2.0"),
    ("hard", "policy_weight", float("nan"), "needs policy_weight to be a number, got nan"),
    ("hard_topk", "samples", 10.5, "needs samples to be a whole number, got 10.5"),
]


def run(name, x, **options):
    return lambda: visattn.create_block(name, 16, **options)(x)


def train_on_one(name, side=1, **options):
    return lambda: visattn.create_block(name, 16, **options).train()(torch.randn(1, 16, side, side))


CASES = [
    *(
        Call(f"a block in {dtype}", build("se", dtype=dtype), "computes in torch.float32", TypeError)
        for dtype in (torch.int8, torch.float8_e4m3fn, torch.complex64, "float32")
    ),
    *(Call(f"block named {name!r}", register(name), NAME)
      for name in ("", 5, None, " ", "a b", "a.b", "a/b", "_a", "a_", "a__b", "ä", "a\n", nn.Identity)),
    Call("block named as a model", register("resnet50"), "cannot be named 'resnet50': timm has a model 'resnet50'"),
    Call("block named as an ending", register("gn"), "cannot be named 'gn': timm has a model"),
    Call("block named as patch attention", register("cosine"), "attention inside vision transformers"),
    Call("block named patch", register("patch"), "attention inside vision transformers"),
    *(Call(f"block named {word}", register(word), f"cannot be named {word!r}: that is a word of the commands")
      for word in ("all", "auto", "none")),
    Call("block of no family", register("new", family=None), "unknown block family None"),
    Call("block of a list of families", register("new", family=["channel"]), "unknown block family"),
    Call("block without paper", register("new", paper=""), "needs a paper"),
    Call("block with a number for a paper", register("new", paper=2017), "needs a paper"),
    Call("block that is a number", register("new", factory=5), "needs a class, or a function", TypeError),
    Call("block that is built", register("new", factory=nn.Identity()), "needs a class, or a function", TypeError),
    Call("no block's name", build(5), "unknown block 5"),
    Call("list of blocks", build(["se"]), "unknown block ['se']"),
    *(Call(f"{value!r} channels", build("se", value), "needs a positive number of channels") for value in NOT_CHANNELS),
    *(Call(f"{name} {option}={value!r}", build(name, **{option: value}), says)
      for name, option, value, says in BAD_OPTIONS),
    *(Call(f"one number for {name}", train_on_one(name), f"the batch norm of block {name!r} sees one number")
      for name in ("bam", "cbam", "ge_theta", "nonlocal_dot", "residual", "sk", "spatial", "splat", "srm", "triplet")),
    *(Call(f"one image for {name}", train_on_one(name, 7, **options), "batches of two or more")
      for name, options in [("bam", {}), ("sk", {}), ("splat", {}), ("srm", {}), ("ge_theta", {"size": 7})]),
    *(Call(f"{name} on {channels} channels", run(name, torch.rand(2, channels, 8, 8)),
           f"block {name!r} was built for maps (B, 16, H, W), got a tensor (2, {channels}, 8, 8)")
      for name in visattn.list_blocks() for channels in (8, 32)),
    *(Call(f"{name} on integers", run(name, torch.ones(2, 16, 8, 8, dtype=torch.long)),
           f"block {name!r} takes floating-point numbers, got torch.int64", TypeError)
      for name in visattn.list_blocks()),
    *(Call(f"a block on {tuple(shape)}", run(name, torch.rand(shape)), f"got a tensor {tuple(shape)}")
      for name in ("se", "simam") for shape in ([], [16], [16, 8, 8], [1, 2, 16, 8, 8], [2, 16, 0, 8], [2, 8, 8, 16])),
    *(Call(f"a block on {value!r}", run("se", value), "block 'se' takes a tensor (B, 16, H, W), got", TypeError)
      for value in (None, 3, "x", [[1.0]], np.zeros((2, 16, 8, 8), np.float32))),
    Call("a block on complex numbers", run("eca", torch.ones(2, 16, 8, 8, dtype=torch.complex64)),
         "block 'eca' takes floating-point numbers, got torch.complex64", TypeError),
    Call("attention without heads", lambda: Attention(8, heads=0), "Attention needs heads above zero, got 0"),
    Call("attention with half a head", lambda: Attention(8, heads=1.5), "needs heads to be a whole number, got 1.5"),
    Call("attention of nothing", lambda: Attention(0), "Attention needs query_dim above zero, got 0"),
    Call("attention of text", lambda: Attention("8"), "needs query_dim to be a whole number, got '8'"),
    Call("many heads", lambda: MultiHeadAttention(8.0, heads=2), "needs dim to be a whole number, got 8.0"),
    Call("a score of nothing", lambda: scores.Dot(-1), "Dot needs query_dim above zero, got -1"),
    Call("a kernel without width", lambda: kernels.Gaussian(4, width=float("nan")), "needs width to be a number"),
    Call("a narrow kernel", lambda: kernels.Boxcar(4, width=0), "a kernel needs width above zero, got 0"),
    Call("nothing hidden", lambda: scores.Additive(4, hidden=0), "Additive needs hidden above zero, got 0"),
    Call("no keys", lambda: scores.Location(4, num_keys=0), "Location needs num_keys above zero, got 0"),
    Call("a negative radius", lambda: scopes.Local(-1), "a radius cannot be negative, got -1"),
    Call("a window of nothing", lambda: scopes.Window2d(0), "Window2d needs size above zero, got 0"),
    Call("ram with half a glimpse", lambda: RAM(glimpses=2.5), "RAM needs glimpses to be a whole number, got 2.5"),
    *(Call(f"ram with a million {name}", lambda name=name: RAM(**{name: 10**6}), f"{name} must be at most 1000, got")
      for name in ("glimpses", "samples")),
    Call("scout of a million glimpses", lambda: Scout(size=8, glimpses=10**6), "glimpses must be at most 1000, got"),
    Call("ram with no sigma", lambda: RAM(sigma=float("nan")), "RAM needs sigma to be a number, got nan"),
    Call("ram with a truth for classes", lambda: RAM(True), "RAM needs num_classes to be a whole number, got True"),
    Call("scout of half a pixel", lambda: Scout(size=64.5), "Scout needs size to be a whole number, got 64.5"),
    Call("ram without channels", lambda: RAM(in_chans=0), "ram needs in_chans of at least one, got 0"),
]  # fmt: skip
