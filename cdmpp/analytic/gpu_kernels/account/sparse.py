"""Work of whole blocks of sparse attention: products, an index of the cache, and attention to the
selected tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cdmpp.analytic.gpu_kernels.account.attention import pairs_looked_at
from cdmpp.analytic.gpu_kernels.account.work import (
    ChipRows,
    Columns,
    KernelWork,
    flags,
    is_word,
    logs,
    memory_limits,
    number,
)
from cdmpp.analytic.gpu_kernels.serving_calls import SPARSE_DTYPES, SPARSE_KINDS, SPARSE_MODELS
from cdmpp.arrays import FloatArray

#: Elements per head of every index, and bytes per token of the index in 8 bits with a scale.
INDEX_HEAD, _INDEX_BYTES = 128, 132.0
#: Tokens per compressed entry.
RATIOS = {"dsa": 1.0, "msa": 1.0, "csa": 4.0, "hca": 128.0}
#: Kernels of a block with its own index, and those of the index, which other blocks do not launch.
_KERNELS = {"dsa": 24.0, "msa": 10.0, "csa": 24.0, "hca": 14.0}
_INDEX_KERNELS = {"dsa": 9.0, "msa": 3.0, "csa": 9.0, "hca": 0.0}
_KERNEL_S = 2.0e-6
_BYTES = {"bfloat16": 2.0, "fp8_block": 1.0, "nvfp4": 0.5625}
_ROWS = 64.0
#: Times that the scores of the index, 4 bytes each, are written or read.
_SCORES = 3.0
_PRIOR = {
    "products": 1.5, "weights": 1.2, "attention": 1.5, "index": 1.5, "gather": 1.0, "scores": 1.0,
    "tokens": 2.0, "kernels": 1.0,
}  # fmt: skip
_LAUNCH_S = 20.0e-6


@dataclass(frozen=True)
class SparseSizes:
    """Sizes of the blocks of a model.

    Attributes:
        width: elements per token.
        heads: number of heads of the queries.
        head, value: elements per head of queries, and of values.
        query_rank: elements of the queries' latent; 0 = queries come from the token itself.
        latent: elements per token in the cache, shared by all heads; 0 = the cache has `kv_heads`
            heads of keys and values instead.
        kv_heads: number of heads of keys and values; 0 if the cache has a latent.
        index_heads: number of heads of the index's queries.
        selected: entries that a token attends to.
        window: preceding tokens that it attends to in addition.
        out_rank, out_groups: low-rank output in groups of heads; 0 = one product.
    """

    width: int
    heads: int
    head: int
    value: int
    query_rank: int
    latent: int
    kv_heads: int
    index_heads: int
    selected: int
    window: int = 0
    out_rank: int = 0
    out_groups: int = 0


#: Sources: config.json of each model; the models' code in vLLM for DeepSeek-V4's compressors and
#: MiniMax-M3's index per group of heads.
SPARSE_SIZES: Mapping[str, SparseSizes] = {
    "deepseek-v3.2": SparseSizes(7168, 128, 192, 128, 1536, 576, 0, 64, 2048),
    "glm-5": SparseSizes(6144, 64, 256, 256, 2048, 576, 0, 32, 2048),
    "deepseek-v4-pro": SparseSizes(7168, 128, 512, 512, 1536, 512, 0, 64, 1024, 128, 1024, 16),
    "deepseek-v4-flash": SparseSizes(4096, 64, 512, 512, 1024, 512, 0, 64, 512, 128, 1024, 8),
    "minimax-m3": SparseSizes(6144, 64, 128, 128, 0, 0, 4, 4, 2048),
}


def sparse_weights(
    kind: str, model: str, heads: FloatArray | float, indexed: FloatArray | float
) -> FloatArray:
    """Returns float64 [N], elements of the matrices of a block on a rank with `heads` heads.

    Args:
        kind: one of `SPARSE_KINDS`, or `window` for a layer without compression.
        model: one of `SPARSE_MODELS`.
        indexed: 1 = the block has its own index, else 0.
    """
    one, heads = SPARSE_SIZES[model], np.asarray(heads, np.float64)
    index: FloatArray | float
    found = (one.query_rank or one.width) * heads * one.head + one.width * one.query_rank
    if kind == "msa":
        kv_heads = kv_heads_on(one, heads)
        found = found + one.width * heads * one.value + 2.0 * one.width * kv_heads * one.head
        index = one.width * INDEX_HEAD * (kv_heads + 1.0)
    elif kind == "dsa":
        up = 512.0 * (one.head - 64.0 + one.value)
        found = found + one.width * (one.latent + heads * one.value) + heads * up
        index = one.query_rank * one.index_heads * INDEX_HEAD + one.width * (
            INDEX_HEAD + one.index_heads
        )
    else:
        compressors = 2.0 * one.latent * {"csa": 2.0, "hca": 1.0}.get(kind, 0.0)
        found = found + one.width * (one.latent + compressors)
        out = one.latent + one.out_groups / one.heads * one.width
        found = found + heads * out * one.out_rank
        index = one.query_rank * one.index_heads * INDEX_HEAD + one.width * (
            4.0 * INDEX_HEAD + one.index_heads
        )
    has_index = indexed * (kind not in ("hca", "window"))
    return np.asarray(found + has_index * index, np.float64)


def sparse_work(columns: Columns, chip: ChipRows) -> KernelWork:
    """Returns the work of whole blocks (`SparseBlock`).

    The lower bound uses heads with the fewest operations, as in a prefill that computes keys and
    values of every head, and no index if the whole context is selected.
    """
    batch, length, past, heads, indexed = (
        number(columns, name) for name in ("batch", "length", "past", "heads", "indexed")
    )
    sizes = _Rows.of(columns)
    ratio, kv_heads = sizes.ratio, sizes.kv_heads
    tokens, context = batch * length, length + past
    element = np.where(is_word(columns, "kv_dtype", "fp8"), 1.0, 2.0)
    every = pairs_looked_at(length, past, np.full(len(past), 1e12)) / ratio
    near = pairs_looked_at(length, past, sizes.window)
    chosen = np.where(
        sizes.selected > 0, pairs_looked_at(length, past, ratio * sizes.selected) / ratio, every
    )
    pairs = batch * (chosen + near)
    has_index = indexed * (sizes.index_heads > 0)
    index_pairs = batch * every * has_index
    entry = np.where(kv_heads > 0, 2.0 * kv_heads * sizes.head, sizes.latent) * element
    weights = sizes.weights
    weight_bytes = weights * sizes.weight_bytes
    product_flop = 2.0 * tokens * weights
    pair_flop = np.where(kv_heads > 0, sizes.head + sizes.value, sizes.latent + sizes.shared)
    least_pair = np.minimum(pair_flop, sizes.head + sizes.value)
    index_flop = 2.0 * index_pairs * sizes.index_heads * INDEX_HEAD
    peak, peak_attention, peak_8 = _peaks(columns, chip)
    is_whole = context / ratio <= sizes.selected
    flops = (
        product_flop / peak + 2.0 * pairs * heads * least_pair / peak_attention
        + np.where(is_whole, 0.0, index_flop) / peak_8
    )  # fmt: skip
    read = batch * np.minimum(context / ratio + sizes.window, chosen + near) * entry
    index_read = batch * context / ratio * _INDEX_BYTES * has_index
    ends = 4.0 * tokens * sizes.width
    least = weight_bytes + read + ends
    limits = {"compute": flops, **memory_limits(least, chip), "launch": chip["least_s"]}
    padded = np.ceil(heads / _ROWS) * _ROWS
    dram = chip["dram_bytes_per_s"]
    gathered = pairs * entry / chip["l2_bytes_per_s"]
    inner = tokens * (4.0 * sizes.width + 3.0 * heads * (sizes.head + sizes.value))
    kernels = _KERNEL_S * (sizes.kernels - (1.0 - indexed) * sizes.index_kernels)
    return KernelWork(
        limits,
        terms={
            "products": product_flop / peak, "weights": weight_bytes / dram,
            "attention": 2.0 * pairs * heads * pair_flop / peak_attention,
            "index": index_flop / peak_8, "gather": gathered,
            "scores": (_SCORES * 4.0 * index_pairs + index_read) / dram,
            "tokens": 2.0 * inner / dram, "kernels": kernels,
        },
        prior=_PRIOR,
        launch_s=_LAUNCH_S,
        fade=0.5,
        times={
            "floor": np.maximum.reduce(list(limits.values())),
            "padded": 2.0 * pairs * padded * pair_flop / chip["bf16_flop_per_s"],
            "read": read / dram,
        },
        inputs={
            **logs(
                batch=batch, length=length, heads=heads, tokens=tokens, context=context,
                waves=tokens / chip["core_count"], fits=least / chip["l2_bytes"],
                reach=context / ratio / np.maximum(sizes.selected, 1.0),
            ),
            "cached": element,
            "indexed": indexed,
            "is_decode": np.asarray(is_word(columns, "phase", "decode"), np.float64),
            "is_grouped": chip["is_grouped"],
            "release": number(columns, "release"),
            **flags(columns["kind"], SPARSE_KINDS),
            **flags(columns["model"], SPARSE_MODELS[1:]),
            **flags(columns["dtype"], SPARSE_DTYPES),
        },
        size=product_flop + 2.0 * pairs * heads * pair_flop + index_flop,
    )  # fmt: skip


@dataclass(frozen=True)
class _Rows:
    """Sizes of N calls, float64 [N] each; see `SparseSizes`."""

    width: FloatArray
    head: FloatArray
    value: FloatArray
    latent: FloatArray
    shared: FloatArray
    kv_heads: FloatArray
    index_heads: FloatArray
    selected: FloatArray
    window: FloatArray
    ratio: FloatArray
    kernels: FloatArray
    index_kernels: FloatArray
    weights: FloatArray
    weight_bytes: FloatArray

    @classmethod
    def of(cls, columns: Columns) -> _Rows:
        heads, indexed = number(columns, "heads"), number(columns, "indexed")
        found = {name: np.zeros(len(heads)) for name in cls.__dataclass_fields__}
        kinds, models = (np.asarray(columns[name], np.str_) for name in ("kind", "model"))
        words = np.char.add(np.char.add(kinds, " "), models)
        for word in np.unique(words):
            own = words == word
            kind, model = str(word).split()
            one = SPARSE_SIZES[model]
            kv_heads = kv_heads_on(one, heads[own])
            values: dict[str, float | FloatArray] = {
                "width": one.width, "head": one.head, "value": one.value, "latent": one.latent,
                "shared": min(one.latent, 512), "kv_heads": kv_heads,
                "index_heads": kv_heads if kind == "msa" else one.index_heads * (kind != "hca"),
                "selected": 0.0 if kind == "hca" else one.selected, "window": one.window,
                "ratio": RATIOS[kind], "kernels": _KERNELS[kind],
                "index_kernels": _INDEX_KERNELS[kind],
                "weights": sparse_weights(kind, model, heads[own], indexed[own]),
            }  # fmt: skip
            for name, value in values.items():
                found[name][own] = value
        for dtype, size in _BYTES.items():
            found["weight_bytes"][columns["dtype"] == dtype] = size
        return cls(**found)


def kv_heads_on(one: SparseSizes, heads: FloatArray) -> FloatArray:
    """Returns float64 [N], heads of keys and values on a rank with `heads` heads of queries."""
    if not one.kv_heads:
        return np.zeros_like(heads)
    return np.maximum(1.0, np.ceil(heads * one.kv_heads / one.heads))


def _peaks(columns: Columns, chip: ChipRows) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Returns float64 [N] each, operations per second of products, attention and the index."""
    wide = chip["bf16_flop_per_s"]
    eight = np.where(chip["fp8_flop_per_s"] > 0, chip["fp8_flop_per_s"], wide)
    four = np.where(chip["fp4_flop_per_s"] > 0, chip["fp4_flop_per_s"], eight)
    products = np.where(is_word(columns, "dtype", "bfloat16"), wide, eight)
    products = np.where(is_word(columns, "dtype", "nvfp4"), four, products)
    return products, np.where(is_word(columns, "kv_dtype", "fp8"), eight, wide), eight
