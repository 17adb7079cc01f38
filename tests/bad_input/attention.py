"""Wrong energies, tokens, biases and scopes of attention."""

import torch

from tests.bad_input.case import Call
from visattn.core import (
    AlternatingCoAttention,
    Attention,
    AttentionPool,
    MultiDimensionalAttention,
    MultiHeadAttention,
    ParallelCoAttention,
    entmax15,
    hard,
    scopes,
    scores,
    sigmoid,
    softmax,
    sparsemax,
)
from visattn.hard import RAM, glimpse

TOKENS = torch.randn(2, 5, 8)
SPLIT = TOKENS[:, None]
ENERGIES = torch.zeros(2, 3)


def attend(*tokens, **options):
    return lambda: Attention(8, **options)(*tokens)


CASES = [
    *(Call(f"{name} of narrow {what}", lambda name=name, q=q, k=k: scores.SCORES[name](8)(q, k), says)
      for name in ("dot", "cosine", "general", "biased_general", "additive", "concat", "gaussian", "boxcar")
      for what, q, k, says in [
          ("queries", TOKENS[..., :7], TOKENS, "was built for queries of 8 and keys of 8 features, got 7 and 8"),
          ("keys", TOKENS, TOKENS[..., :7], "was built for queries of 8 and keys of 8 features, got 8 and 7"),
      ]),
    Call("a scope for all heads", lambda: Attention(8, heads=2, scope=scopes.LocalPredictive(8)),
         "the scope was built for queries of 8 features, but a head has 4"),
    *(Call(f"every feature of {name}", lambda tokens=tokens: MultiDimensionalAttention(8, 6)(*tokens), says, error)
      for name, tokens, says, error in [
          ("queries alone", (TOKENS,), "built for queries of 8 and keys of 6 features, got 8 and 8", ValueError),
          ("a list", ([1.0],), "query is a tensor (..., tokens, features), got list", TypeError),
          ("wide values", (TOKENS, TOKENS[..., :6], TOKENS), "got values 5 x 8 for keys 5 x 6", ValueError),
          ("few values", (TOKENS, TOKENS[..., :6], TOKENS[:, :4, :6]), "got values 4 x 6 for keys 5 x 6", ValueError),
      ]),
    Call("a pool of nothing", lambda: AttentionPool(8)(None), "got NoneType", TypeError),
    Call("a pool of others", lambda: AttentionPool(8)(TOKENS[..., :6]), "keys of 8 features, got 6 and 6"),
    Call("in turn with a list", lambda: AlternatingCoAttention(8)([1.0], TOKENS), "got list", TypeError),
    Call("keys too wide for heads", lambda: MultiHeadAttention(8, heads=2)(TOKENS, torch.rand(2, 4, 9)), "got 8 and 9"),
    Call("other images", lambda: ParallelCoAttention(8, 6)(TOKENS, torch.rand(3, 4, 6)), "the batches do not fit"),
    Call("too many scales", lambda: glimpse(torch.rand(1, 1, 8, 8), torch.zeros(1, 1, 2), size=4, scales=100), "wide"),
    Call("a glimpse for other images", lambda: glimpse(torch.rand(2, 1, 8, 8), torch.zeros(3, 2), size=4),
         "locations (B, G, 2), got (2, 1, 8, 8) and (3, 2)"),
    Call("RAM of too many scales", lambda: RAM(scales=60, size=4), "60 scales is wider than 8192 pixels"),
    Call("RAM of large glimpses", lambda: RAM(size=10**6), "is wider than 8192 pixels"),
    Call("a distribution of another shape", attend(TOKENS, distribution=lambda e: e.sum(-1)), "must keep the shape of"),
    Call("a distribution of nothing", attend(TOKENS, distribution=lambda e: None), "got NoneType"),
    *(Call(f"{each.__name__} along {dim}", lambda each=each, dim=dim: each(ENERGIES, dim), f"have no axis {dim}")
      for each in (softmax, sigmoid, sparsemax, entmax15, hard) for dim in (2, -3)),
    *(Call(f"{each.__name__} along {dim!r}", lambda each=each, dim=dim: each(ENERGIES, dim), "number of an axis",
           TypeError)
      for each in (softmax, sigmoid, sparsemax, entmax15, hard) for dim in ("x", 1.0, None, True)),
    *(Call(f"{name}, {options}", attend(*tokens, **options), says, error)
      for options in ({}, {"heads": 2}, {"score": "additive"}, {"distribution": "sparsemax"})
      for name, tokens, says, error in [
          ("sparse tokens", (TOKENS.to_sparse(),), "query is a tensor (..., tokens, features)", TypeError),
          ("keys elsewhere", (TOKENS, TOKENS.to("meta")), "the query is on cpu, but the key on meta", ValueError),
          ("values elsewhere", (TOKENS, TOKENS, TOKENS.to("meta")), "but the value on meta", ValueError),
          ("keys of another type", (TOKENS, TOKENS.double()), "but the key of torch.float64", TypeError),
          ("values of another type", (TOKENS, TOKENS, TOKENS.half()), "but the value of torch.float16", TypeError),
          ("keys of other images", (TOKENS, torch.randn(3, 5, 8)), "the batches do not fit: query (2, 5, 8), key (3,",
           ValueError),
      ]),
    Call("a score of all heads", lambda: Attention(8, heads=2, score=scores.ScaledDot(8)),
         "built for queries of 8 and keys of 8 features, but a head has 4 and 4"),
    *(Call(f"a bias of {bias!r:.20}", do, "a bias is added to the energies", TypeError)
      for bias in ("x", torch.ones(5, 5, dtype=torch.bool), torch.ones(5, 5, dtype=torch.long),
                   torch.ones(5, 5, dtype=torch.complex64))
      for do in (lambda bias=bias: Attention(8).head_weights(SPLIT, SPLIT, bias),
                 lambda bias=bias: Attention(8).head_context(SPLIT, SPLIT, SPLIT, bias))),
    Call("near in a negative way", lambda: scopes.local(3, 3, -1), "a radius cannot be negative, got -1"),
    Call("near in two negative ways", lambda: scopes.local_2d(3, 3, -1), "a radius cannot be negative, got -1"),
    *(Call(f"near by {value!r}", lambda value=value: scopes.local(3, 3, value), "a radius is a whole number", TypeError)
      for value in (float("nan"), "a", 1.5, True)),
    *(Call(f"tiles of {value!r}", lambda value=value: scopes.window_2d(4, 4, value), "the side of a tile is a whole")
      for value in (0, -2, 1.5, "a", True)),
    *(Call(f"{scope.__name__} on {grid!r}", lambda scope=scope, grid=grid: scope(2, grid), "grid is (height, width)")
      for scope in (scopes.Local2d, scopes.Window2d)
      for grid in ((-2, -2), (0, 4), (2, 2, 1), (2.0, 2), "22", 4, ())),
]  # fmt: skip
