"""Attention-flow oracle: plain NumPy, one image, float64, written from the definition.

S. Abnar, W. Zuidema. "Quantifying Attention Flow in Transformers". ACL 2020, pp. 4190-4197, arXiv:2005.00928.
Authors' code: github.com/samiraabnar/attention_flow (read; the paper's text was not at hand).

Graph: nodes (l, i) for l = 0..L (0 = input tokens) and i = 0..N-1. For each layer l = 1..L an edge from (l, i) to
(l-1, j) with capacity A'_l[i, j], where

    A'_l = 0.5 * mean_heads(A_l) + 0.5 * I

flow[j] = maximum flow from (L, source) to (0, j), computed on its own for each j. Each edge respects its capacity;
nodes have no capacity.

Ambiguities:

* Residual: the paper writes 0.5 W + 0.5 I; the authors' code adds I and divides by the row sum, which is the same for
  rows that sum to one.
* Heads: averaged first (the authors' graph code takes maps already reduced to one per layer).
* The authors' code divides the flows by their sum over j. The definition does not, and neither does this function; the
  ranking is the same.
* The flows to several targets are separate problems: they do not share capacity, so they need not sum to one.

Checks for a tester: with one layer flow = A'_1[source]; flow[j] <= min(1, column sum of A'_1 at j); the rollout
R[source, j] = (A'_L ... A'_1)[source, j] is a feasible flow, hence rollout <= flow everywhere (for rows that sum to
one); raising a capacity never lowers a flow.
"""

import numpy as np


def max_flow(capacity, source, sink):
    """Maximum flow by Edmonds-Karp (shortest augmenting paths, breadth first) on a dense capacity matrix.

    The textbook diamond: 0->1 (3), 0->2 (2), 1->2 (1), 1->3 (2), 2->3 (3); the cut around node 0 gives 5.

    >>> c = np.zeros((4, 4)); c[0, 1], c[0, 2], c[1, 2], c[1, 3], c[2, 3] = 3, 2, 1, 2, 3
    >>> max_flow(c, 0, 3)
    5.0

    A case that needs a reverse edge when the path 0-1-2-3 is taken first: all capacities one, answer two.

    >>> max_flow((c > 0).astype(float), 0, 3)
    2.0
    """
    residual = np.array(capacity, dtype=np.float64)
    nodes = residual.shape[0]
    if (residual < 0).any():
        raise ValueError("capacities must not be negative")
    total = 0.0
    while True:
        parent = [-1] * nodes
        parent[source] = source
        queue = [source]
        for u in queue:  # the list grows while it is read: breadth first
            for v in range(nodes):
                if parent[v] < 0 and residual[u, v] > 0.0:
                    parent[v] = u
                    queue.append(v)
            if parent[sink] >= 0:
                break
        if parent[sink] < 0:
            return float(total)
        path, v = [], sink
        while v != source:
            path.append((parent[v], v))
            v = parent[v]
        step = min(residual[u, v] for u, v in path)
        for u, v in path:
            residual[u, v] -= step  # the narrowest edge becomes exactly zero, so the search ends
            residual[v, u] += step
        total += step


def attention_flow(attentions, source):
    """Maximum flow from token `source` of the last layer to each input token, shape (N,), not normalised.

    attentions: list over layers, first layer first, of (heads, N, N) with rows = queries.

    By hand, two equal layers with A = [[.6, .4], [.2, .8]]: A' = [[.8, .2], [.1, .9]]. From token 0 of the top, paths
    to input 0 are 0-0-0 with min(.8, .8) = .8 and 0-1-0 with min(.2, .1) = .1: flow .9. To input 1: 0-0-1 with
    min(.8, .2) = .2 and 0-1-1 with min(.2, .9) = .2: flow .4. (Rollout would be .66 and .34.)

    >>> A = [[[0.6, 0.4], [0.2, 0.8]]]
    >>> attention_flow([A, A], 0).round(12).tolist()
    [0.9, 0.4]

    One layer: the row of A'. Two heads are averaged.

    >>> attention_flow([A], 1).round(12).tolist()
    [0.1, 0.9]
    >>> attention_flow([[[[0.0, 1.0], [0.0, 1.0]], [[1.0, 0.0], [1.0, 0.0]]]], 0).round(12).tolist()
    [0.75, 0.25]
    """
    maps = [np.asarray(a, dtype=np.float64) for a in attentions]
    n, layers = maps[0].shape[-1], len(maps)
    capacity = np.zeros(((layers + 1) * n, (layers + 1) * n))
    for layer, A in enumerate(maps, start=1):
        if A.ndim != 3 or A.shape[1:] != (n, n):
            raise ValueError("each layer must be (heads, N, N)")
        augmented = 0.5 * A.mean(axis=0) + 0.5 * np.eye(n)
        for i in range(n):
            for j in range(n):
                capacity[layer * n + i, (layer - 1) * n + j] = augmented[i, j]
    return np.array([max_flow(capacity, layers * n + source, j) for j in range(n)])
