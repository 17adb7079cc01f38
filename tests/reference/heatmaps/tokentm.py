"""TokenTM oracle: plain NumPy, one image, float64, written from the equations.

J. Wu, B. Duan, W. Kang, H. Tang, Y. Yan. "Token Transformation Matters: Towards Faithful Post-hoc Explanation for
Vision Transformer". CVPR 2024, pp. 10926-10935, arXiv:2403.14552.

Quantities, for tokens E_1..E_N before and Et_1..Et_N after a transformation:

    L(x)    = ||x||_2                                                    length
    NECC_i  = exp(cos(E_i, Et_i)) / sum_k exp(cos(E_k, Et_k))            direction, softmax over the N tokens
    W       = diag_i( L(Et_i) / L(E_i) * NECC_i )                        transformation weights

Accumulation, with C of shape (N, N), rows = output tokens, columns = input tokens, first layer first:

    C^0     = diag_i( L(E_i^0) )                                         lengths of the tokens entering the first layer
    U_attn  = I + E_heads[ ReLU(dy_c/dA) * (A W_attn) ]                  * elementwise; the I is the residual connection
    U_mlp   = I + W_mlp                                                  diagonal: the MLP mixes no tokens
    C^l     = U_mlp^l  U_attn^l  C^(l-1)
    result  = row of the class token of C^L

A W scales COLUMN j (the key) of A by W_jj: the attention token j receives is weighted by how token j was transformed.

Standing of these equations: of the paper's text only the abstract and second-hand summaries could be read when this
was written. They confirm the two measures, the diagonal C^0 made of the original lengths, and the layer-wise
aggregation of attention weights and transformation weights. The softmax over tokens, the product of ratio and NECC,
U_attn, U_mlp and their order are as the authors of LibraGrad (Mehri et al., CVPR 2025) read the paper in their own
baseline (github.com/NightMachinery/decompv-libragrad-v1). No code of TokenTM's authors was found.

AMBIGUITIES, each with its choice here:

1. What the transformed token of the attention is. (a) The token after the value (and output) projection, before the
   mixing by A, possibly per head: what the derivation "output = A times transformed tokens" calls for, and the natural
   reading of the abstract (attention integrates transformed tokens). (b) LibraGrad takes the residual stream after the
   attention sub-block, residual INCLUDED. The caller passes it: (N, D), shared by the heads, or (heads, N, D).
2. What the original token is: the residual stream entering the block (LibraGrad) or its normalised version, which is
   what the projections see. The caller passes it. C^0 uses `inputs[0]` unless `initial` is given.
3. The same for the MLP. LibraGrad: before = stream after attention, after = block output, residual included, although
   U_mlp adds I again. The other reading is the output of the MLP branch alone. The caller passes both; leaving them out
   drops U_mlp (it becomes I).
4. Head average. "product": mean over heads of ReLU(grad) * (A W), as Chefer et al. 2021 (default).
   "separate": mean_heads(ReLU(grad)) * (mean_heads(A) W), as LibraGrad's code. The two agree for one head only.
   Where the ReLU stands does not matter within a head: A and W are not negative, so
   ReLU(grad * A W) = ReLU(grad) * A W. ReLU after the head mean would be another method.
5. Scale of NECC: a plain softmax sums to one over N tokens, so W shrinks like 1/N against the I of the residual
   connection. `mean_one=True` multiplies by N (sum N, mean one). It changes the ranking, not only the scale.
   Default: plain. No temperature.
6. Which tokens the softmax runs over: all N, the class token included.
7. Zero-length tokens: ratio and cosine are undefined, so ValueError here; LibraGrad adds 1e-8 to the denominator.
8. The row keeps its own entry (class token on itself): drop it outside. No row normalisation anywhere.
9. Gradients are of the class score with respect to the attention maps after softmax. Logit or probability is the
   caller's choice.
"""

import numpy as np


def length(x):
    """L2 length of each token: (..., N, D) -> (..., N)."""
    return np.sqrt((np.asarray(x, dtype=np.float64) ** 2).sum(axis=-1))


def transformation_weights(original, transformed, mean_one=False):
    """Diagonal of W: (N, D) and (..., N, D) -> (..., N).

    Cosines 1 and 0 give the softmax e/(e+1), 1/(e+1); the length ratios are 3 and 2.

    >>> w = transformation_weights([[1, 0], [2, 0]], [[3, 0], [0, 4]])
    >>> bool(np.allclose(w, [3 * np.e / (np.e + 1), 2 / (np.e + 1)]))
    True
    """
    E = np.asarray(original, dtype=np.float64)
    Et = np.asarray(transformed, dtype=np.float64)
    if E.ndim != 2 or Et.shape[-2:] != E.shape:
        raise ValueError("original must be (N, D) and transformed (N, D) or (heads, N, D)")
    before, after = length(E), length(Et)
    if (before == 0).any() or (after == 0).any():
        raise ValueError("a token of length zero has no direction")
    cosine = (E * Et).sum(axis=-1) / (before * after)
    necc = np.exp(cosine)
    necc = necc / necc.sum(axis=-1, keepdims=True)
    if mean_one:
        necc = necc * E.shape[0]
    return after / before * necc


def tokentm(
    attentions,
    gradients,
    inputs,
    transformed,
    mlp_inputs=None,
    mlp_transformed=None,
    *,
    initial=None,
    heads="product",
    mean_one=False,
    return_map=False,
):
    """Relevance of all tokens for token 0, shape (N,); the whole (N, N) map C^L with `return_map=True`.

    Lists over layers, first layer first. attentions, gradients: (heads, N, N), rows = queries. inputs: (N, D) original
    tokens; transformed: (N, D) or (heads, N, D). mlp_inputs, mlp_transformed: (N, D) before and after the MLP, or
    both None. initial: (N, D) tokens whose lengths start C^0; default inputs[0].

    By hand, one layer, one head: directions unchanged, so NECC = (1/2, 1/2); ratios 1/2 and 3; W = (1/4, 3/2).
    A W = [[.15, .6], [.125, .75]]; times ReLU(grad) = [[.15, 1.2], [0, .75]]; plus I; C^0 = diag(2, 1).
    Row 0: (1.15 * 2, 1.2 * 1).

    >>> A, dA = [[[[0.6, 0.4], [0.5, 0.5]]]], [[[[1, 2], [-1, 1]]]]
    >>> E, Et = [[[2, 0], [0, 1]]], [[[1, 0], [0, 3]]]
    >>> tokentm(A, dA, E, Et).round(12).tolist()
    [2.3, 1.2]
    >>> tokentm(A, dA, E, Et, return_map=True).round(12).tolist()
    [[2.3, 1.2], [0.0, 1.75]]

    An MLP that doubles token 0 and leaves token 1: W_mlp = (2/2, 1/2), U_mlp = diag(2, 1.5), so row 0 doubles.

    >>> tokentm(A, dA, E, Et, [[[1, 0], [0, 1]]], [[[2, 0], [0, 1]]]).round(12).tolist()
    [4.6, 2.4]

    Two layers, the second with a zero gradient, change nothing.

    >>> tokentm(A * 2, dA + [np.zeros((1, 2, 2))], E * 2, Et * 2).round(12).tolist()
    [2.3, 1.2]
    """
    if heads not in ("product", "separate"):
        raise ValueError("heads must be 'product' or 'separate'")
    if (mlp_inputs is None) != (mlp_transformed is None):
        raise ValueError("give both MLP lists or none")
    layers = len(attentions)
    given = [gradients, inputs, transformed] + ([] if mlp_inputs is None else [mlp_inputs, mlp_transformed])
    if any(len(x) != layers for x in given):
        raise ValueError("all lists must have one entry per layer")

    C = np.diag(length(inputs[0] if initial is None else initial))
    identity = np.eye(C.shape[0])
    for layer in range(layers):
        A = np.asarray(attentions[layer], dtype=np.float64)
        positive = np.maximum(np.asarray(gradients[layer], dtype=np.float64), 0.0)
        if A.shape != positive.shape or A.shape[1:] != C.shape:
            raise ValueError("attention and gradient must be (heads, N, N)")
        w = transformation_weights(inputs[layer], transformed[layer], mean_one)
        if w.ndim == 2 and (heads == "separate" or w.shape[0] != A.shape[0]):
            raise ValueError("transformed per head needs heads='product' and as many heads as the attention")
        if heads == "product":
            mixed = np.zeros_like(C)
            for head in range(A.shape[0]):
                w_head = w[head] if w.ndim == 2 else w
                mixed += positive[head] * (A[head] @ np.diag(w_head)) / A.shape[0]
        else:
            mixed = positive.mean(axis=0) * (A.mean(axis=0) @ np.diag(w))
        C = (identity + mixed) @ C
        if mlp_inputs is not None:
            w_mlp = transformation_weights(mlp_inputs[layer], mlp_transformed[layer], mean_one)
            C = (identity + np.diag(w_mlp)) @ C
    return C if return_map else C[0]
