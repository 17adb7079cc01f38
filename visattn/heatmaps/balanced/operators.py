"""What is known of torch functions: which of them are linear, and what kind of rule the others need.

Names are those of torch functions and tensor methods, without the underscore of what works in place.
"""

from __future__ import annotations

# Operators and other names of the same thing; what works in place ends with an underscore.
SPELLED = {
    **{
        f"__{name}__": name for name in ("add", "sub", "mul", "matmul", "pow", "div", "rsub", "rpow", "rmatmul", "rdiv")
    },
    **{f"__i{name}__": f"{name}_" for name in ("add", "sub", "mul", "pow", "div")},
    "__radd__": "add",
    "__rmul__": "mul",
    "__truediv__": "div",
    "__itruediv__": "div_",
    "__rtruediv__": "rdiv",
    "multiply": "mul",
    "subtract": "sub",
    "divide": "div",
    "true_divide": "div",
    "clip": "clamp",
    "linalg_matmul": "matmul",
    "concat": "cat",
    "concatenate": "cat",
    "special_expit": "sigmoid",
}


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Inputs times gradients add up to the output already: what is linear, a choice among numbers, or a length.
HOMOGENEOUS = _names(
    """
    __get__ __getitem__ __neg__ abs absolute adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d
    adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d alpha_dropout amax amin as_strided avg_pool1d avg_pool2d
    avg_pool3d bfloat16 block_diag broadcast_tensors broadcast_to channel_shuffle chunk clone column_stack complex conj
    contiguous cpu cuda cumsum diag diag_embed diagonal diff double dropout dropout1d dropout2d dropout3d dsplit dstack
    expand expand_as feature_alpha_dropout fft_fft fft_fft2 fft_fftn fft_fftshift fft_ifft fft_ifft2 fft_ifftn
    fft_ifftshift fft_irfft fft_irfft2 fft_irfftn fft_rfft fft_rfft2 fft_rfftn flatten flip fliplr flipud float fold
    gather half hsplit hstack hypot imag index_select interpolate kthvalue leaky_relu linalg_norm linalg_vector_norm
    lp_pool1d lp_pool2d masked_select max_pool1d max_pool1d_with_indices max_pool2d max_pool2d_with_indices max_pool3d
    max_pool3d_with_indices mean median moveaxis movedim nanmean nansum narrow narrow_copy neg negative norm permute
    pixel_shuffle pixel_unshuffle positive prelu quantile ravel real relu repeat repeat_interleave requires_grad_
    reshape reshape_as resolve_conj resolve_neg roll rot90 rrelu select sort split split_with_sizes squeeze std sum
    swapaxes swapdims t take take_along_dim tensor_split tile to topk trace transpose tril triu type type_as unbind
    unflatten unfold unsqueeze view view_as view_as_complex view_as_real vsplit vstack
    """
)

# Elementwise: the line from the value at zero takes the place of the tangent.
ELEMENTWISE = _names(
    """
    arctan asinh atan celu clamp clamp_max clamp_min cos elu erf expm1 gelu hardshrink hardsigmoid hardswish hardtanh
    log1p logsigmoid mish relu6 selu sigmoid silu sin sinh softplus softshrink softsign special_erf tanh tanhshrink
    threshold
    """
)

# Weights, and what norms divide by: constants.
CONSTANT = _names(
    "_softmax exp exp2 gumbel_softmax rdiv reciprocal rpow rsqrt softmax softmin special_exp2 special_softmax var"
)

# Sums of products of all their operands.
PRODUCTS = _names("bmm dot einsum inner matmul mm mv outer rmatmul tensordot")

# Linear in an input and in a weight, with a bias as the third argument, along this axis of the output.
BIASED = {
    "linear": -1,
    **{f"conv{n}d": -n - 1 for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": -n - 1 for n in (1, 2, 3)},
}

# Affine: with zeros in the place of what depends on the image, the constant is left.
AFFINE = _names(
    "__setitem__ add cat copy fill index_add index_copy index_put masked_fill masked_scatter pad rsub scatter "
    "scatter_add stack sub where"
)

# The arguments are an addend and two factors.
ADDED_PRODUCTS = _names("addbmm addcmul addmm addmv baddbmm")
