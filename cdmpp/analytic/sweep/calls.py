"""The list of reference kernels, and the JSON form of a call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import Any, Literal

from cdmpp.analytic.gpu_kernels.calls import (
    DecodeAttention,
    Gemm,
    GpuCall,
    PrefillAttention,
    family_of,
)
from cdmpp.analytic.operators.operators import (
    BINARY_KINDS,
    ELEMENTWISE_KINDS,
    OPERATOR_KINDS,
)
from cdmpp.errors import DataError

#: Families of a sweep: the single-GPU families of the kernel models, fp32 operators, and copies and
#: launches, which describe the device and have no correction.
SweepFamily = Literal["gemm", "prefill", "decode", "operator", "copy", "launch"]
CORRECTED: tuple[SweepFamily, ...] = ("gemm", "prefill", "decode", "operator")

#: Software of the sweeps that `cdmpp device add` measures.
TORCH = "torch"
#: Type of products -> number of calls in the list; fp32 products are operators.
_PRODUCTS = {"bfloat16": 150, "float16": 30, "fp8": 120, "fp8_static": 120}
_ATTENTION, _OPERATORS, _ROW_WISE = 150, 100, 40
_SIZES = (
    32, 64, 128, 256, 512, 768, 1024, 1536, 2048, 2560, 3072, 3584, 4096, 5120, 6144, 7168, 8192,
    10240, 12288, 16384, 32768, 65536,
)  # fmt: skip
_ROWS = (
    1, 2, 3, 4, 6, 8, 12, 16, 17, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
    2560, 3072, 4096, 4352, 8192, 16384,
)  # fmt: skip
_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_LENGTHS = (1, 16, 32, 64, 128, 256, 512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384)
_CONTEXTS = tuple(2**power for power in range(1, 18))
_KV_HEADS = (1, 1, 2, 2, 4, 4, 8, 8, 16, 32)
_GROUPS = (1, 1, 1, 2, 2, 4, 4, 6, 8, 8, 12, 16, 24)
_HEAD_SIZES = (64, 64, 64, 128, 128, 128, 256)
#: Limits of the calls: larger ones take too long for the information they add, or do not fit.
_MOST_FLOP, _MOST_FP32_FLOP, _MOST_BYTES = 2.0**43, 2.0**37, 2.0**31
_MOST_TOKENS, _MOST_HEADS = 2**17, 128


@dataclass(frozen=True)
class Fp32Operator:
    """A framework operator in fp32.

    Attributes:
        kind: kind in the operator model, such as `bmm`, `linear`, `softmax`, `add`.
        sizes: sizes by name: `batch`, `m`, `n`, `k` of a product, else `rows`, `cols`.
    """

    kind: str
    sizes: Mapping[str, int]


@dataclass(frozen=True)
class Move:
    """A copy inside the device's memory; with 4 bytes, a launch."""

    moved_bytes: int


SweepCall = GpuCall | Fp32Operator | Move

_CLASSES: Mapping[str, type[GpuCall]] = {
    "gemm": Gemm, "prefill": PrefillAttention, "decode": DecodeAttention,
}  # fmt: skip


def sweep_family(call: SweepCall) -> SweepFamily:
    """Returns the family of a call.

    Raises:
        DataError: a family without sweep kernels, such as a collective, which needs several GPUs.
    """
    if isinstance(call, Fp32Operator):
        return "operator"
    if isinstance(call, Move):
        return "launch" if call.moved_bytes <= 4 else "copy"
    family = family_of(call)
    if family not in _CLASSES:
        raise DataError(f"a sweep has no kernels of {family}; expected {', '.join(_CLASSES)}")
    return family  # type: ignore[return-value]


def call_json(call: SweepCall) -> dict[str, Any]:
    """Returns a call as a value for JSON, which `call_of` reads."""
    return {"family": sweep_family(call), **asdict(call)}


def call_of(value: Mapping[str, Any]) -> SweepCall:
    """Reads a value of `call_json`.

    Raises:
        KeyError, TypeError, ValueError, UsageError: the value is not a call.
    """
    family = value["family"]
    own = {name: one for name, one in value.items() if name != "family"}
    if family in _CLASSES:
        return _CLASSES[family](**own)
    if family == "operator":
        call = Fp32Operator(own["kind"], {name: int(one) for name, one in own["sizes"].items()})
        if call.kind not in OPERATOR_KINDS:
            raise ValueError(f"unknown operator {call.kind!r}")
        return call
    if family not in ("copy", "launch"):
        raise ValueError(f"unknown family {family!r}")
    return Move(int(own["moved_bytes"]))


def sweep_calls() -> list[SweepCall]:
    """Returns the reference kernels, in a fixed order.

    A low-discrepancy sequence spreads the sizes of a family evenly over the logarithms of the sizes
    in serving frameworks and networks. Every part of the list therefore has small and large calls,
    memory-bound and compute-bound. Families alternate: a truncated list still has all of them.
    """
    products = enumerate(_PRODUCTS.items())
    parts: list[Sequence[SweepCall]] = [
        [Move(4), *(Move(2**power) for power in range(12, 31, 2))],
        *(_products(dtype, count, number) for number, (dtype, count) in products),
        _prefills(_ATTENTION),
        _decodes(_ATTENTION),
        _fp32_products("linear"),
        _fp32_products("bmm"),
        _row_wise(ELEMENTWISE_KINDS, _OPERATORS),
        _row_wise(("softmax",), _ROW_WISE),
        _row_wise(("ln",), _ROW_WISE),
    ]  # fmt: skip
    longest = max(len(part) for part in parts)
    spread = [_stretched(part, longest) for part in parts]
    turns = zip_longest(*spread)
    return [call for turn in turns for call in turn if call is not None]


def _stretched(part: Sequence[SweepCall], length: int) -> list[SweepCall | None]:
    """Spreads the calls of a part evenly over a longer list."""
    found: list[SweepCall | None] = [None] * length
    for place, call in enumerate(part):
        found[place * length // len(part)] = call
    return found


def _products(dtype: str, count: int, skip: int) -> list[SweepCall]:
    found = dict.fromkeys(
        Gemm(m, n, k, dtype)
        for m, n, k in _points(_ROWS, _SIZES, _SIZES, start=1000 * skip)
        if 2.0 * m * n * k <= _MOST_FLOP and 2.0 * (m * k + k * n + m * n) <= _MOST_BYTES
    )
    return _first(found, count)


def _prefills(count: int) -> list[SweepCall]:
    axes = (_BATCHES, _LENGTHS, _KV_HEADS, _GROUPS, _HEAD_SIZES)
    found = dict.fromkeys(
        PrefillAttention(batch, length, kv_heads * group, kv_heads, size)
        for batch, length, kv_heads, group, size in _points(*axes)
        if batch * length <= _MOST_TOKENS
        and kv_heads * group <= _MOST_HEADS
        and 2.0 * batch * kv_heads * group * length**2 * size <= _MOST_FLOP
        and 2.0 * batch * length * kv_heads * (2 + 2 * group) * size <= _MOST_BYTES
    )
    return _first(found, count)


def _decodes(count: int) -> list[SweepCall]:
    batches = (*_BATCHES, 512, 1024, 2048)
    found = dict.fromkeys(
        DecodeAttention(batch, context, kv_heads * group, kv_heads, size)
        for batch, context, kv_heads, group, size in _points(
            batches, _CONTEXTS, _KV_HEADS, _GROUPS, _HEAD_SIZES
        )
        if kv_heads * group <= _MOST_HEADS
        and 4.0 * batch * context * kv_heads * size <= 2.0 * _MOST_BYTES
    )
    return _first(found, count)


def _fp32_products(kind: str) -> list[SweepCall]:
    batches = (1,) if kind == "linear" else (1, 2, 4, 8, 16, 32, 64, 128)
    rows = tuple(2**power for power in range(5, 15))
    found = [
        Fp32Operator(kind, {"batch": batch, "m": m, "n": n, "k": k})
        for batch, m, n, k in _points(batches, rows, rows, rows)
        if 2.0 * batch * m * n * k <= _MOST_FP32_FLOP
        and 4.0 * batch * (m * k + k * n + m * n) <= _MOST_BYTES
    ]
    return _first(found, _OPERATORS)


def _row_wise(kinds: Sequence[str], count: int) -> list[SweepCall]:
    rows, cols = (tuple(2**power for power in range(*ends)) for ends in ((9, 18), (7, 15)))
    found = {
        (kinds[number % len(kinds)], row, col): None
        for number, (row, col) in enumerate(_points(rows, cols))
    }
    calls = (Fp32Operator(kind, {"rows": row, "cols": col}) for kind, row, col in found)
    return _first((one for one in calls if _row_bytes(one) <= _MOST_BYTES), count)


def _row_bytes(call: Fp32Operator) -> float:
    tensors = 3.0 if call.kind in BINARY_KINDS else 2.0
    return 4.0 * tensors * call.sizes["rows"] * call.sizes["cols"]


def _first(calls: Any, count: int) -> list[SweepCall]:
    """Returns the first `count` different calls."""
    return list({repr(call): call for call in calls}.values())[:count]


def _points(*axes: Sequence[int], start: int = 0, most: int = 3000) -> Iterator[tuple[int, ...]]:
    """Yields points of a grid; any number of them covers it evenly.

    Source: Roberts, "The Unreasonable Effectiveness of Quasirandom Sequences", 2018: multiples of
    powers of 1 / g, where g is the positive root of x**(d + 1) = x + 1.
    """
    root = 2.0
    for _ in range(50):
        root = (1.0 + root) ** (1.0 / (len(axes) + 1))
    for number in range(start + 1, start + most + 1):
        places = [(0.5 + number / root ** (axis + 1)) % 1.0 for axis in range(len(axes))]
        yield tuple(own[int(place * len(own))] for own, place in zip(axes, places, strict=True))
