"""Torch's kernels, predicted from a sweep of one H200: held-out shapes, and other GPUs.

Data: the packaged sweep; attention of llm-layers, launched by Hugging Face's modules in an earlier
torch, one sequence at a time; products of vidur. No fit was trained on any of these.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from cdmpp.analytic.gpu_kernels.calls import (
    DecodeAttention,
    Gemm,
    GpuCall,
    PrefillAttention,
    family_of,
)
from cdmpp.analytic.gpu_kernels.families import columns_of, error_groups, work_on
from cdmpp.analytic.gpu_kernels.model import GpuKernels
from cdmpp.analytic.intervals import LogErrors
from cdmpp.analytic.operators.device import hardware
from cdmpp.analytic.operators.errors import judged_as
from cdmpp.analytic.operators.intervals import packaged_operators
from cdmpp.analytic.operators.operators import Operators
from cdmpp.analytic.sweep.calls import TORCH, Fp32Operator
from cdmpp.analytic.sweep.correction import fit_correction, left_out_logs
from cdmpp.analytic.sweep.inputs import kernel_inputs, operator_inputs, operators_of
from cdmpp.analytic.sweep.predict import SweptKernels
from cdmpp.analytic.sweep.rules import (
    TORCH_FILE,
    corrected_family,
    packaged_rules,
    torch_errors_text,
    widened,
)
from cdmpp.analytic.sweep.sweep_file import MeasuredCall, packaged_sweep
from cdmpp.arrays import BoolArray, FloatArray, TextArray
from cdmpp.devices.registry import get_device
from cdmpp.files.atomic import write_json
from cdmpp.metrics import mean_over_owners
from cdmpp.text import markdown_table, percent_text
from lab.pages import sections, write_page
from lab.paths import ROOT, shared
from lab.stamp import stamp

_SEEDS, _FOLDS = (0, 1, 2), 5
PACKAGED = ROOT / "cdmpp" / "pretrained" / "gpu_sweep"
#: Maximum number of test rows per kernel and GPU.
_MOST_ROWS = 2000
#: Calls of more than this many seconds are dominated by the kernel's own work.
LONG_S = 1e-4
#: Model of llm-layers -> query heads and key/value heads, of 128 elements each.
_MODELS = {
    "meta-llama/Llama-3.1-8B": (32, 8), "meta-llama/Llama-3.1-70B": (64, 8),
    "mistralai/Mixtral-8x7B-v0.1": (32, 8),
}  # fmt: skip
#: Device, call and seconds.
Row: TypeAlias = tuple[str, GpuCall, float]


@dataclass(frozen=True)
class Judged:
    """Calls with their predicted times before and after the correction.

    Attributes:
        name: text [N], row of the table.
        shape: text [N], unit of holding out and of resampling.
        measured_s, before_s: float64 [N].
        after_s: float64 [S, N], one row per seed.
        was_inside, is_inside: bool [N] and bool [S, N], whether the interval contains the measured
            time before and after.
    """

    name: TextArray
    shape: TextArray
    measured_s: FloatArray
    before_s: FloatArray
    after_s: FloatArray
    was_inside: BoolArray
    is_inside: BoolArray


def experiment(write: bool = False) -> None:
    """Evaluates both and writes the page; with `write`, also the packaged errors on other GPUs."""
    sweep = packaged_sweep()
    held = [
        _held_out(family, [one for one in sweep.calls if corrected_family(one.call) == family])
        for family in packaged_rules().families
    ]
    elsewhere, widest = _elsewhere()
    if write:
        write_json(PACKAGED / TORCH_FILE, torch_errors_text(widest))
    tables = {
        "held out": _table([row for one in held for row in _rows(one)]),
        "other GPUs": _table([row for one in elsewhere for row in _rows(one)]),
    }
    origin = stamp("python -m lab run torch-kernels")
    write_page("torch-kernels", sections("torch-kernels", **tables), {}, origin)


def _held_out(family: str, measured: Sequence[MeasuredCall]) -> Judged:
    """Returns the calls of a sweep, corrected by fits without calls of their shape."""
    device = get_device(packaged_sweep().device)
    measured_s = np.array([one.latency_s for one in measured])
    if isinstance(measured[0].call, Fp32Operator):
        asked = [one.call for one in measured if isinstance(one.call, Fp32Operator)]
        rows, known = operators_of(asked), hardware(device)
        judged = packaged_operators()
        labels = np.full(len(rows), device.name)
        before_s = judged.model.predict(rows, labels, {device.name: known})
        inputs = operator_inputs(rows, before_s)
        groups = np.array([judged_as(one.kind) for one in asked])
        ends = _operator_ends(rows, before_s, device.name)
        names = np.array([f"{group}, float32" for group in groups])
        shape = np.array([str(one.sizes.get("n", one.sizes.get("cols"))) for one in asked])
    else:
        calls: list[GpuCall] = [one.call for one in measured]  # type: ignore[misc]
        found = GpuKernels.packaged().times(calls, device)
        before_s, ends = found.latency_s, np.stack([found.low_s, found.high_s])
        columns = columns_of(calls)
        inputs = kernel_inputs(work_on(family_of(calls[0]), columns, device), before_s)
        groups = error_groups(family_of(calls[0]), columns)
        names = np.array([f"{family}, {one.dtype}" for one in calls])  # type: ignore[union-attr]
        shape = np.array([_shape(one) for one in calls])
    logs = np.log(measured_s / before_s)
    parts = [_corrected(family, inputs, logs, groups, shape, seed) for seed in _SEEDS]
    was_inside = (ends[0] <= measured_s) & (measured_s <= ends[1])
    return Judged(
        names, shape, measured_s, before_s, np.stack([before_s * np.exp(one) for one, _ in parts]),
        was_inside, np.stack([inside for _, inside in parts]),
    )  # fmt: skip


def _operator_ends(rows: Operators, before_s: FloatArray, label: str) -> FloatArray:
    """Returns float64 [2, N], ends of the packaged model's intervals for single calls."""
    errors = packaged_operators().model.errors
    assert errors is not None  # the packaged model has them
    ends = np.full((2, len(rows)), np.nan)
    for place, (kind, is_larger) in enumerate(zip(rows.kind, errors.is_larger(rows), strict=True)):
        one = errors.of(str(kind), label, is_larger=bool(is_larger))
        if one is not None:
            ends[:, place] = one.ends(before_s[place])
    return ends


def _shape(call: GpuCall) -> str:
    """Returns the key of a call's shape: columns of a product, heads of attention."""
    names = ("n",) if family_of(call) == "gemm" else ("kv_heads", "head_size")
    return " ".join(str(getattr(call, name)) for name in names)


def _corrected(
    family: str,
    inputs: FloatArray,
    logs: FloatArray,
    groups: TextArray,
    shape: TextArray,
    seed: int,
) -> tuple[FloatArray, BoolArray]:
    """Returns float64 [N], log corrections by fits without calls of the same shape; and bool [N],
    whether the interval from the rest of the sweep contains the measured time.
    """
    rules = packaged_rules().families[family]
    names, place = np.unique(shape, return_inverse=True)
    part = (np.random.default_rng(seed).permutation(len(names)) % _FOLDS)[place]
    found, inside = np.empty(len(logs)), np.zeros(len(logs), np.bool_)
    for fold in range(_FOLDS):
        own, rest = part == fold, part != fold
        fit = fit_correction(inputs[rest], logs[rest], rules.options)
        found[own] = fit.logs(inputs[own])
        left_out = left_out_logs(inputs[rest], logs[rest], rules.options)
        for group in np.unique(groups[own]):
            rows = own & (groups == group)
            errors = widened(left_out[groups[rest] == group], left_out, rules.widening)
            if errors is not None:
                inside[rows] = errors.holds(logs[rows] - found[rows])
    return found, inside


def _attention() -> Iterator[Row]:
    """Yields device, call and seconds of torch's attention for one sequence without earlier tokens;
    `kv_prefill` includes the chunk in rows of chunks.
    """
    for row in _read("llm-layers/attention.parquet"):
        heads = _MODELS.get(row["model"])
        if row["profiler"] != "torch (v0)" or not heads or row["device"].startswith("TPU"):
            continue
        queries, keys = (one // row["tp"] for one in heads)
        context, length, seconds = row["kv_decode"], row["prefill_chunk"], 1e-6 * row["us"]
        if row["n_decode"] == 1:
            yield row["device"], DecodeAttention(1, context, queries, keys, 128), seconds
        elif 0 < length == row["kv_prefill"]:
            yield row["device"], PrefillAttention(1, length, queries, keys, 128), seconds


def _products() -> Iterator[Row]:
    """Yields device, call and seconds of 16-bit products; shorter than 10 us are too coarse."""
    for row in _read("vidur/mlp.parquet"):
        width, inner, tp = row["n_embd"], row["n_expanded_embd"], row["tp"]
        heads = row["n_head"] + 2 * row["n_kv_head"]
        sizes = {
            "attn_pre_proj": (width // row["n_head"] * heads // tp, width),
            "attn_post_proj": (width, width // tp),
            "mlp_up_proj": ((1 + row["use_gated_mlp"]) * inner // tp, width),
            "mlp_down_proj": (width, inner // tp),
        }.get(row["layer"])
        if sizes and row["us_median"] >= 10.0:
            device = {"a100": "a100-sxm"}.get(row["device"], row["device"])  # rows of a100_dgx
            yield device, Gemm(row["tokens"], *sizes), 1e-6 * row["us_median"]


def _read(name: str) -> list[dict[str, Any]]:
    import pyarrow.parquet as parquet

    rows: list[dict[str, Any]] = parquet.read_table(shared(name)).to_pylist()
    return rows


def _elsewhere() -> tuple[list[Judged], dict[str, LogErrors]]:
    """Returns torch's kernels on other GPUs, each with intervals from the errors on the others,
    and the widest errors of all.
    """
    parts: dict[str, dict[str, list[Row]]] = {}
    for row in (*_attention(), *_products()):
        (group,) = error_groups(family_of(row[1]), columns_of([row[1]]))
        parts.setdefault(str(group), {}).setdefault(row[0], []).append(row)
    found, widest = [], {}
    plain = SweptKernels(GpuKernels.packaged(), {})
    for group, own in sorted(parts.items()):
        drawn = {label: _drawn(rows) for label, rows in sorted(own.items())}
        errors = {}
        for label, rows in drawn.items():
            times = plain.times([row[1] for row in rows], get_device(label), software=TORCH)
            logs = np.log(np.array([row[2] for row in rows]) / times.latency_s)
            errors[label] = LogErrors.of(logs)
        for label, rows in drawn.items():
            others = LogErrors.widest(one for name, one in errors.items() if name != label)
            model = SweptKernels(plain.model, {group: others} if others else {})
            found.append(_asked(f"{group}, {label}", rows, model))
        all_of_them = LogErrors.widest(errors.values())
        if all_of_them is not None:
            widest[group] = all_of_them
    return found, widest


def _drawn(rows: Sequence[Row]) -> list[Row]:
    order = np.random.default_rng(0).permutation(len(rows))[:_MOST_ROWS]
    return [rows[place] for place in sorted(order.tolist())]


def _asked(name: str, rows: Sequence[Row], model: SweptKernels) -> Judged:
    calls, measured_s = [row[1] for row in rows], np.array([row[2] for row in rows])
    device = get_device(rows[0][0])
    before, after = (model.times(calls, device, software=one) for one in (None, TORCH))
    inside = [(one.low_s <= measured_s) & (measured_s <= one.high_s) for one in (before, after)]
    shape = np.array([f"{_shape(call)} {_octave(call)}" for call in calls])
    return Judged(
        np.full(len(rows), name), shape, measured_s, before.latency_s, after.latency_s[None],
        inside[0], inside[1][None],
    )  # fmt: skip


def _octave(call: GpuCall) -> int:
    """Returns the octave of a call's number of tokens."""
    names = ("m", "context", "length")
    return int(np.log2(next(getattr(call, name) for name in names if hasattr(call, name))))


def _rows(judged: Judged) -> list[list[str]]:
    """Returns the lines of the table."""
    before = np.abs(judged.before_s / judged.measured_s - 1.0)
    after = np.abs(judged.after_s / judged.measured_s - 1.0)
    found = []
    for name in map(str, np.unique(judged.name)):
        rows = judged.name == name
        is_long = rows & (judged.measured_s > LONG_S)
        gain = after[:, rows].mean(axis=0) - before[rows]
        owner = np.unique(judged.shape[rows], return_inverse=True)[1].astype(np.int64)
        mean, interval = mean_over_owners(gain, owner)
        assert interval is not None  # several shapes of each kernel were measured
        low, high = interval
        inside = float(judged.was_inside[rows].mean())
        found.append([
            name, str(rows.sum()), percent_text(float(np.median(before[rows]))),
            percent_text(float(np.median(after[:, rows]))),
            f"{100 * mean:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]",
            *_long(before[is_long], after[:, is_long]),
            percent_text(inside),
            percent_text(float(judged.is_inside[:, rows].mean())),
        ])  # fmt: skip
    return found


def _long(before: FloatArray, after: FloatArray) -> list[str]:
    if len(before) < 5:
        return ["-", "-"]
    return [percent_text(float(np.median(one))) for one in (before, after)]


def _table(rows: Sequence[Sequence[str]]) -> str:
    return markdown_table(
        ["kernels", "count", "before", "with torch's sweep", "mean error, points",
         "before, above 0.1 ms", "with torch's sweep, above 0.1 ms",
         "in the interval before", "in the interval"], rows,
    )  # fmt: skip
