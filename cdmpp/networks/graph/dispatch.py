"""Account of any torch operator from the aten operators that it dispatches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from cdmpp.networks.account import (
    Account,
    Product,
    attention_account,
    convolution_account,
)

#: Untagged aten operators that are element-wise or copies.
_MOVES = frozenset(
    {"_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "_embedding_bag",
     "_embedding_bag_forward_only", "_linalg_check_errors", "_log_softmax",
     "_native_batch_norm_legit_no_training", "_pack_padded_sequence", "_safe_softmax",
     "_softmax", "_to_copy", "_unsafe_index", "_unsafe_view", "adaptive_avg_pool1d",
     "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool2d", "adaptive_max_pool3d",
     "affine_grid_generator", "arange", "avg_pool1d", "avg_pool2d", "avg_pool3d", "batch_norm",
     "bernoulli", "bincount", "cat", "channel_shuffle", "clone", "col2im", "constant_pad_nd",
     "copy", "count_nonzero", "cross", "detach", "diag_embed", "embedding", "embedding_bag",
     "empty", "empty_like", "empty_permuted", "empty_strided", "eye", "fill", "flip", "frac",
     "full", "full_like", "gather", "glu", "grid_sampler_2d", "grid_sampler_3d", "group_norm",
     "im2col", "index", "index_add", "index_copy", "index_fill", "index_put", "index_reduce",
     "index_select", "instance_norm", "layer_norm", "linalg_cross", "linalg_vector_norm",
     "linspace", "local_scalar_dense", "log_softmax", "logspace", "logsumexp", "masked_fill",
     "masked_scatter", "max_pool1d", "max_pool2d_with_indices", "max_pool3d_with_indices",
     "native_batch_norm", "native_dropout", "native_group_norm", "native_layer_norm",
     "new_empty", "new_full", "new_ones", "new_zeros", "nll_loss2d_forward", "nll_loss_forward",
     "norm", "normal", "one_hot", "ones", "ones_like", "pixel_shuffle", "pixel_unshuffle", "put",
     "rand", "rand_like", "randint", "randn", "randn_like", "reflection_pad1d",
     "reflection_pad2d", "reflection_pad3d", "renorm", "repeat", "repeat_interleave",
     "replication_pad1d", "replication_pad2d", "replication_pad3d", "resize", "rms_norm",
     "_fused_rms_norm", "roll", "rot90", "scalar_tensor", "scatter", "scatter_add",
     "scatter_reduce", "select_scatter", "set_", "slice_scatter", "softmax",
     "split_with_sizes_copy", "stack", "std_mean", "take", "trace", "tril", "tril_indices",
     "triu", "triu_indices", "unfold", "uniform", "unsafe_split", "unsafe_split_with_sizes",
     "unsafe_chunk", "upsample_bicubic2d", "upsample_bilinear2d", "upsample_linear1d",
     "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_trilinear3d",
     "_upsample_bicubic2d_aa", "_upsample_bilinear2d_aa", "var_mean", "vander", "zero", "zeros",
     "zeros_like"}
)  # fmt: skip
#: Log2 of the length of a Fourier transform that fits the shared memory of a thread block: 4,096
#: complex numbers, 32 KB.
_BLOCK_DOUBLINGS = 12
_Count = Callable[[Sequence[Any], Any], Account]


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the accounts of the operators dispatched while it is active."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._found: list[Account] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Runs and records an aten operator."""
        del types
        out = func(*args, **(kwargs or {}))
        found = account_of(func, args, out)
        if found is not None:
            self._found.append(found)
        return out

    def account(self) -> Account:
        """Returns the account of all recorded operators."""
        if not self._found:
            return Account(form="view")
        products = tuple(product for one in self._found for product in one.products)
        flop = sum(product.flop for product in products)
        kept = sum(one.least_share * one.product_flop for one in self._found)
        forms = {one.form for one in self._found if one.products}
        return Account(
            products,
            other_flop=sum(one.other_flop for one in self._found),
            form=forms.pop() if len(forms) == 1 else "plain",
            least_share=kept / flop if flop else 1.0,
            is_covered=all(one.is_covered for one in self._found),
            passes=max(one.passes for one in self._found),
            transforms=sum(one.transforms for one in self._found),
        )


def recorded(function: Callable[..., Any], args: Sequence[Any], kwargs: Any) -> Account:
    """Returns the account of a call on the meta device; not covered if the call fails there.

    Args:
        args, kwargs: tensors on any device, or other values.
    """
    moved, named = torch.utils._pytree.tree_map_only(
        torch.Tensor,
        lambda one: torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device="meta"),
        (tuple(args), dict(kwargs)),
    )
    recorder = Recorder()
    try:
        with recorder:
            function(*moved, **named)
    except Exception:  # a kernel without shapes on the meta device, whatever it raises
        return Account(is_covered=False)
    return recorder.account()


def account_of(func: Any, args: Sequence[Any], out: Any) -> Account | None:
    """Returns the account of one aten operator; None for a view.

    Args:
        out: output of the operator.
    """
    packet = getattr(func, "overloadpacket", func)
    name = packet.__name__
    tags = getattr(func, "tags", ())
    if getattr(func, "is_view", False) or name in ("detach", "lift_fresh", "alias", "empty"):
        return None
    count = _COUNTS.get(name) or _COUNTS.get(name.rstrip("_"))
    if getattr(func, "namespace", "") != "aten":
        return Account(is_covered=False)
    if count is not None:
        return count(args, out)
    is_simple = torch.Tag.pointwise in tags or torch.Tag.reduction in tags
    is_known = is_simple or name in _MOVES or name.rstrip("_") in _MOVES
    return Account(is_covered=is_known or _is_in_place_of_pointwise(func))


def _is_in_place_of_pointwise(func: Any) -> bool:
    """Returns whether an operator such as `add_` is the in-place form of a pointwise operator."""
    name = func.overloadpacket.__name__
    other = getattr(torch.ops.aten, name.rstrip("_"), None) if name.endswith("_") else None
    if other is None:
        return False
    return any(torch.Tag.pointwise in getattr(other, one).tags for one in other.overloads())


def _mm(left: torch.Tensor, right: torch.Tensor) -> Account:
    """Returns the account of a product of tensors with one to three axes."""
    batch = left.shape[0] if left.dim() == 3 else 1
    m = left.shape[-2] if left.dim() > 1 else 1
    n = right.shape[-1] if right.dim() > 1 else 1
    return Account((Product(batch, m, n, left.shape[-1]),))


def _added(args: Sequence[Any], out: Any) -> Account:
    del out
    return _mm(args[1], args[2])


def _plain(args: Sequence[Any], out: Any) -> Account:
    del out
    return _mm(args[0], args[1])


def _convolution(args: Sequence[Any], out: Any) -> Account:
    data, weight, _, stride, _, _, is_transposed, _, groups = args[:9]
    mean = sum(stride) / max(len(stride), 1)
    return convolution_account(
        data.shape, weight.shape, out.numel(), groups=groups, stride=mean,
        is_transposed=is_transposed,
    )  # fmt: skip


def _attention(args: Sequence[Any], out: Any) -> Account:
    query, key, value = args[:3]
    del out
    return attention_account(query.shape, key.shape, value.shape[-1], is_causal=False)


def _trilinear(args: Sequence[Any], out: Any) -> Account:
    """`out[b, o] = sum over i and j of x[b, i] w[o, i, j] y[b, j]`, with expanded axes."""
    sides: list[int] = []
    for tensor, axes in zip(args[:3], args[3:6], strict=True):
        shape = list(tensor.shape)
        for axis in sorted(axes):
            shape.insert(axis, 1)
        sides = [max(a, b) for a, b in zip(sides or shape, shape, strict=True)]
    depth = math.prod(sides[axis] for axis in args[6])
    rows = sides[0]
    return Account((Product(1, rows, max(1, out.numel() // max(rows, 1)), depth),))


def _distances(args: Sequence[Any], out: Any) -> Account:
    """Differences, powers and sums: three operations per pair and column."""
    left, depth = args[0], args[0].shape[-1]
    rows, columns = left.shape[-2], out.shape[-1]
    batch = out.numel() // max(rows * columns, 1)
    product = Product(batch, rows, columns, depth)
    return Account((product,), other_flop=product.flop / 2)


def _pair_distances(args: Sequence[Any], out: Any) -> Account:
    return Account(other_flop=3.0 * out.numel() * args[0].shape[-1])


def _fourier(args: Sequence[Any], out: Any) -> Account:
    """5 n log2 n operations per complex transform of n elements, half of that if one side is real.
    A GPU kernel transforms along one axis, up to the length that fits a thread block.
    """
    whole = args[0] if args[0].is_complex() is False or out.is_complex() else out
    length = math.prod(whole.shape[axis] for axis in args[1])
    is_real = not (args[0].is_complex() and out.is_complex())
    factor = 2.5 if is_real else 5.0
    return Account(
        other_flop=factor * whole.numel() * math.log2(max(length, 2)),
        transforms=sum(
            max(1, math.ceil(math.log2(max(whole.shape[axis], 1)) / _BLOCK_DOUBLINGS))
            for axis in args[1]
        ),
    )


def _of_matrix(flop: Callable[[int, int], float]) -> _Count:
    """Returns a function for the account of a decomposition.

    Args:
        flop: number of operations from the sides m >= n of the matrix.
    """

    def count(args: Sequence[Any], out: Any) -> Account:
        del out
        *batch, rows, columns = args[0].shape
        m, n = max(rows, columns), min(rows, columns)
        return Account(other_flop=math.prod(batch) * flop(m, n))

    return count


def _solved(args: Sequence[Any], out: Any) -> Account:
    """A factorisation, then two triangular systems per column."""
    n, columns = args[0].shape[-1], _columns(args[0], args[1])
    batch = math.prod(args[0].shape[:-2])
    del out
    return Account(other_flop=batch * (2.0 * n**3 / 3.0 + 2.0 * n * n * columns))


def _triangular(args: Sequence[Any], out: Any) -> Account:
    n, columns = args[0].shape[-1], _columns(args[0], args[1])
    del out
    return Account(other_flop=math.prod(args[0].shape[:-2]) * float(n * n * columns))


def _sorted(args: Sequence[Any], out: Any) -> Account:
    """log2(length) passes, as of a merge sort."""
    del out
    first = args[0]
    if not isinstance(first, torch.Tensor):  # randperm
        return _in_passes(math.log2(max(int(first), 2)))
    axis = next((one for one in reversed(args[1:]) if type(one) is int), -1)
    length = first.shape[axis] if -first.dim() <= axis < first.dim() else first.numel()
    return _in_passes(math.log2(max(length, 2)))


def _largest(args: Sequence[Any], out: Any) -> Account:
    del out
    return _in_passes(math.log2(max(int(args[1]), 4)))


def _searched(place: int) -> _Count:
    """Returns a function for the account of binary searches in the argument at an index."""

    def count(args: Sequence[Any], out: Any) -> Account:
        del out
        where = args[place]
        length = where.shape[-1] if isinstance(where, torch.Tensor) and where.dim() else 2
        return _in_passes(math.log2(max(length, 2)))

    return count


def _scanned(args: Sequence[Any], out: Any) -> Account:
    """Two passes: one for the sums of blocks, one to add them."""
    del args, out
    return _in_passes(2.0)


def _in_passes(passes: float) -> Account:
    return Account(passes=max(passes, 2.0))


def _columns(matrix: torch.Tensor, right: torch.Tensor) -> int:
    return right.shape[-1] if right.dim() >= matrix.dim() else 1


def _lu(m: int, n: int) -> float:
    return m * n * n - n**3 / 3.0


#: Aten operator -> function for its account. Source of the operations of decompositions: Golub and
#: Van Loan, Matrix Computations; iterative ones (SVD, eigenvalues) with typical convergence.
_COUNTS: dict[str, _Count] = {
    **dict.fromkeys(("mm", "bmm", "mv", "dot", "vdot"), _plain),
    **dict.fromkeys(("addmm", "baddbmm", "addmv", "addbmm", "_addmm_activation"), _added),
    **dict.fromkeys(("convolution", "_convolution", "convolution_overrideable"), _convolution),
    **dict.fromkeys(
        (
            "scaled_dot_product_attention", "_scaled_dot_product_efficient_attention",
            "_scaled_dot_product_flash_attention", "_scaled_dot_product_cudnn_attention",
            "_scaled_dot_product_flash_attention_for_cpu",
            "_scaled_dot_product_fused_attention_overrideable",
        ), _attention,
    ),
    "_trilinear": _trilinear,
    **dict.fromkeys(("_cdist_forward", "_euclidean_dist"), _distances),
    "_pdist_forward": _pair_distances,
    **dict.fromkeys(("_fft_r2c", "_fft_c2c", "_fft_c2r"), _fourier),
    "linalg_cholesky_ex": _of_matrix(lambda m, n: n**3 / 3.0),
    "linalg_qr": _of_matrix(lambda m, n: 4.0 * m * n * n - 4.0 * n**3 / 3.0),
    "linalg_lu_factor_ex": _of_matrix(_lu),
    "linalg_lu": _of_matrix(_lu),
    "_linalg_det": _of_matrix(_lu),
    "_linalg_slogdet": _of_matrix(_lu),
    "linalg_inv_ex": _of_matrix(lambda m, n: 2.0 * n**3),
    "_linalg_svd": _of_matrix(lambda m, n: 14.0 * m * n * n + 8.0 * n**3),
    "_linalg_eigh": _of_matrix(lambda m, n: 9.0 * n**3),
    **dict.fromkeys(
        (
            "argsort", "median", "mode", "randperm", "sort", "unique_consecutive",
            "unique_dim", "_unique2",
        ), _sorted,
    ),
    "kthvalue": lambda args, out: _sorted((args[0], *args[2:]), out),  # without k
    "topk": _largest,
    "searchsorted": _searched(0),
    "bucketize": _searched(1),
    **dict.fromkeys(
        (
            "cummax", "cummin", "cumprod", "cumsum", "histc", "logcumsumexp", "nonzero",
            "segment_reduce",
        ), _scanned,
    ),
    "_linalg_solve_ex": _solved,
    "linalg_solve_triangular": _triangular,
}  # fmt: skip
