"""Rules for CPU programs missing in training data: serial ones, strides in one cache set, and
functions whose time depends on the data.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from cdmpp.analytic.roofline.programs import leaves_of
from cdmpp.arrays import BoolArray, IntArray
from cdmpp.datasets.samples import Samples
from cdmpp.devices.spec import DeviceSpec, architecture_of
from cdmpp.predict.saved_model import ModelCard
from cdmpp.programs.added_columns import LEAF_EXTRA_NAMES
from cdmpp.programs.compact_ast import FIRST_WITH_SETS, has_added_columns
from cdmpp.programs.loops.expr import Expr
from cdmpp.programs.loops.loop_tree import Loop, LoopTree, stores_with_path
from cdmpp.programs.schema import ACCESS_SLOT_COUNT, LEAF_FEATURE_NAMES
from cdmpp.text import seconds_text

#: Reasons shown with a prediction when a rule applies.
ONE_THREAD = "without a parallel loop, it is predicted on one thread"
SAME_SET = (
    "its innermost loop strides a multiple of 4,096 bytes, whose cache lines share one set: it may "
    "take several times as long"
)
#: Beginning of the sentence of `erf_note`.
ERF = "the time of its erf"
#: Factor on the upper end of the interval under `SAME_SET` (`docs/explanation/intervals.md`).
SAME_SET_FACTOR = 3.0
#: Bytes between lines of the same set in an L1 cache of 64 sets.
_SET_BYTES = 4096
#: Minimum ratio of cache lines fetched with set conflicts to lines fetched without.
_LEAST_CONFLICT = 1.5

#: Most cycles of the nominal clock by which a call of the C library's `erff` takes longer with
#: arguments of both signs than with large ones, which measured programs have (a Zen 4;
#: `docs/explanation/intervals.md`).
_ERF_CYCLES = 44.0
#: Clock of a CPU whose clock is unknown.
_CLOCK_HZ = 3e9
#: Minimum share of the latency that is mentioned.
_LEAST_ERF_SHARE = 0.05

_PARALLEL = LEAF_FEATURE_NAMES.index("parallel_num")


def _extra(*names: str) -> list[int]:
    return [LEAF_EXTRA_NAMES.index(name) for name in names]


_STRIDES = _extra(*(f"thread_stride.B{slot}.stride" for slot in range(ACCESS_SLOT_COUNT)))
_SIZES = _extra(*(f"dtype.B{slot}.bytes" for slot in range(ACCESS_SLOT_COUNT)))
#: Capacities of L1 and L2 caches.
_LEVELS = ("64k", "256k", "1024k")
_LINES = _extra(*(f"lines.traffic_{level}" for level in _LEVELS))
_CONFLICT = _extra(*(f"lines.conflict_{level}" for level in _LEVELS))


def on_one_thread(samples: Samples, card: ModelCard) -> Samples:
    """Returns samples in which programs without a parallel loop run on one thread of their CPU.

    The device becomes a single-threaded label of the same chip in the training data, else a copy of
    the device with one thread's share of the peak. Devices that the model was adapted to, or
    trained on without such a label, stay.
    """
    instead = {
        index: one
        for index, spec in enumerate(samples.devices)
        if spec.kind == "cpu" and (spec.threads or 1) > 1
        if (one := _one_thread(spec, card)) is not None
    }
    rows = np.flatnonzero(np.isin(samples.device, list(instead)))
    if len(rows) == 0:
        return samples
    programs, place = np.unique(samples.program[rows], return_inverse=True)
    leaves, owner = leaves_of(samples.programs, programs)
    is_parallel = samples.programs.leaf_features[leaves, _PARALLEL] > 0
    serial = rows[~_any(is_parallel, owner, len(programs))[place]]
    device, devices = samples.device.copy(), list(samples.devices)
    for index, one in instead.items():
        if one not in devices:
            devices.append(one)
        device[serial[samples.device[serial] == index]] = devices.index(one)
    return replace(samples, device=device, devices=tuple(devices))


def _one_thread(spec: DeviceSpec, card: ModelCard) -> DeviceSpec | None:
    if spec.name in card.adapted:
        return None
    for one in card.devices:
        if one.threads == 1 and architecture_of(one) and _chip(one) == _chip(spec):
            return one
    if spec.name in {one.name for one in (*card.devices, *card.described)}:
        return None
    peak, threads = spec.peak_fp32_flop_per_s, spec.threads or 1
    return replace(spec, threads=1, peak_fp32_flop_per_s=peak and peak / threads)


def _chip(spec: DeviceSpec) -> tuple[object, ...]:
    return architecture_of(spec), spec.core_count, spec.simd_bits, spec.l2_bytes, spec.l3_bytes


def erf_s(tree: LoopTree, device: DeviceSpec) -> float:
    """Returns the seconds by which a program may take longer than predicted because the time of
    `erf` depends on its argument; 0 on GPUs.
    """
    if device.kind != "cpu":
        return 0.0
    calls = 0.0
    for store, path in stores_with_path(tree):
        own, parallel = _erf_calls(store.value), 1
        if not own:
            continue
        for node in path:
            if isinstance(node, Loop) and isinstance(node.extent, int):
                own *= node.extent
                parallel *= node.extent if node.kind == "parallel" else 1
        calls += own / min(device.threads or 1, parallel)
    return calls * _ERF_CYCLES / (device.clock_hz or _CLOCK_HZ)


def erf_note(more_s: float, latency_s: float | None) -> str:
    """Returns a sentence on the result of `erf_s`; empty if it is a small share of the latency."""
    if latency_s is None or more_s < _LEAST_ERF_SHARE * latency_s:
        return ""
    return (
        f"{ERF} depends on the data: with arguments of both signs, as in trained networks, it "
        f"takes up to {seconds_text(more_s)} longer"
    )


def _erf_calls(expr: Expr) -> int:
    """Returns the number of calls; a shared part of the expression is computed once."""
    count, left, seen = 0, [expr], {id(expr)}
    while left:
        node = left.pop()
        count += node.op == "call" and node.value == "tir.erf"
        for one in node.args:
            if id(one) not in seen:
                seen.add(id(one))
                left.append(one)
    return count


def misjudges_set(samples: Samples, is_new_device: BoolArray, version: int | IntArray) -> BoolArray:
    """Returns bool [N], whether `shares_set` holds and a model cannot know what that costs: it has
    not learned from counts of the lines in each set (`FIRST_WITH_SETS`), or not on this device.

    Args:
        is_new_device: bool [N], whether the model has not learned from the device.
        version: int64 [N] or one number, version of the model's `leaf_extra`.
    """
    is_unknown = is_new_device | (version < FIRST_WITH_SETS)
    return shares_set(samples) & is_unknown if is_unknown.any() else is_unknown


def shares_set(samples: Samples) -> BoolArray:
    """Returns bool [N], whether the lines of a CPU program's innermost loop share few cache sets.

    Its stride is a multiple of `_SET_BYTES`, and set conflicts increase the fetched lines
    (`docs/reference/features.md`).
    """
    is_cpu = np.array([spec.kind == "cpu" for spec in samples.devices], bool)[samples.device]
    found, extra = np.zeros(len(samples), bool), samples.programs.leaf_extra
    rows = np.flatnonzero(is_cpu)
    if len(rows) == 0 or not has_added_columns(extra):
        return found
    programs, place = np.unique(samples.program[rows], return_inverse=True)
    leaves, owner = leaves_of(samples.programs, programs)
    own = np.asarray(extra[leaves])
    stride = np.rint(_undo_log(own[:, _STRIDES]) * _undo_log(own[:, _SIZES]))
    is_strided = ((stride > 0) & (stride % _SET_BYTES == 0)).any(axis=1)
    conflict = _undo_log(own[:, _CONFLICT]) > _LEAST_CONFLICT * _undo_log(own[:, _LINES])
    found[rows] = _any(is_strided & conflict.any(axis=1), owner, len(programs))[place]
    return found


def _any(values: BoolArray, owner: NDArray[np.int64], count: int) -> BoolArray:
    return np.bincount(owner, values, count) > 0


def _undo_log(values: NDArray[np.float32]) -> NDArray[np.float64]:
    return np.asarray(np.exp2(np.abs(values).astype(np.float64)) - 1.0)
