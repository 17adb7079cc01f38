"""AttCAT oracle: plain NumPy, one image, float64, written from the equations.

Y. Qiang, D. Pan, C. Li, X. Li, R. Jang, D. Zhu. "AttCAT: Explaining Transformers via Attentive Class Activation
Tokens". NeurIPS 2022. Authors' code: github.com/qiangyao1988/AttCAT.

Equations, with h_i^l the feature of token i at the output of block l and y_c the class score:

    CAT_i^l    = (d y_c / d h_i^l) * h_i^l        elementwise over the channels, no ReLU
    AttCAT_i^l = E_H( alpha_i^l * CAT_i^l )       E_H is the mean over the heads
    impact_i   = sum_l sum_channels AttCAT_i^l    signed

What the paper fixes and what it leaves open:

* alpha_i^l is called the attention weights of token i in block l. One number per head and token is needed, but an
  attention map has a row (token i as query) and a column (token i as key) for each i, and the equation does not say
  which one, nor how it is reduced.
  CHOSEN: the column mean, i.e. the attention token i receives, averaged over all queries:
  alpha_i = (1/N) sum_q A[q, i]. Evidence: the authors' generate_TransCAM averages the map over its heads and then over
  its query axis; the independent LibraGrad code (CVPR 2025) averages over the same two axes.
  NOT chosen: the row of the class token (`queries="class"`), a row sum (identically one, so it carries nothing), a
  column sum (N times the column mean; the same ranking).
* Block pairing. The paper writes h^l as the output of block l, and LibraGrad pairs the output of block l with the
  attention of block l. The authors' code indexes the list of hidden states by the number of the block; in the usual
  convention for that list (its first entry is the embedding) this is the INPUT of block l. This function has no
  opinion: entry l of `features` and `gradients` is paired with entry l of `attentions`. The contract here is the
  output, as in the paper. With class-token pooling the last block then adds nothing to the patch tokens, because their
  gradient at its output is zero.
* The class token keeps its entry: drop it, and fold into a grid, outside.

The stored text of the paper was not available when this was written (abstract only); the three equations above are
from memory and agree with the authors' code and with a third party's summary of the algorithm.
"""

import numpy as np


def attcat(features, gradients, attentions, queries="all"):
    """Signed impact score of each token, shape (N,).

    features, gradients: lists over blocks of (N, D); attentions: list over blocks of (heads, N, N), rows = queries.
    queries: "all" (column mean, the authors' choice) or "class" (row of token 0, for comparison only).

    By hand, one block and one head: feature * gradient summed over channels is 1*3 + 2*1 = 5 for token 0 and
    -1*2 + 0*7 = -2 for token 1; the column means are (0.9 + 0.3)/2 = 0.6 and (0.1 + 0.7)/2 = 0.4, hence 3.0 and -0.8.

    >>> h, g = [[[1, 2], [-1, 0]]], [[[3, 1], [2, 7]]]
    >>> attcat(h, g, [[[[0.9, 0.1], [0.3, 0.7]]]]).round(12).tolist()
    [3.0, -0.8]

    The class-token row instead: 0.9 * 5 and 0.1 * -2.

    >>> attcat(h, g, [[[[0.9, 0.1], [0.3, 0.7]]]], queries="class").round(12).tolist()
    [4.5, -0.2]

    Blocks add up, and heads are averaged (a second head [[0.1, 0.9], [0.3, 0.7]] has column means 0.2 and 0.8, so the
    head means are 0.4 and 0.6: 2.0 and -1.2 per block).

    >>> a = [[[0.9, 0.1], [0.3, 0.7]], [[0.1, 0.9], [0.3, 0.7]]]
    >>> attcat(h * 2, g * 2, [a, a]).round(12).tolist()
    [4.0, -2.4]
    """
    if not len(features) == len(gradients) == len(attentions):
        raise ValueError("features, gradients and attentions must have one entry per block")
    if queries not in ("all", "class"):
        raise ValueError("queries must be 'all' or 'class'")
    impact = 0.0
    for feature, gradient, attention in zip(features, gradients, attentions, strict=True):
        h = np.asarray(feature, dtype=np.float64)
        dh = np.asarray(gradient, dtype=np.float64)
        A = np.asarray(attention, dtype=np.float64)
        n_heads, n = A.shape[:2]
        if A.shape != (n_heads, n, n) or h.shape != dh.shape or h.ndim != 2 or h.shape[0] != n:
            raise ValueError("expected (N, D), (N, D) and (heads, N, N)")
        layer = np.zeros(n)
        for i in range(n):
            cat = 0.0
            for channel in range(h.shape[1]):
                cat += dh[i, channel] * h[i, channel]
            for head in range(n_heads):
                received = [A[head, q, i] for q in (range(n) if queries == "all" else [0])]
                layer[i] += sum(received) / len(received) * cat / n_heads
        impact = impact + layer
    return impact
