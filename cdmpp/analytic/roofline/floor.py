"""A true lower bound of a program's time on a device, and what sets it.

`cdmpp.analytic.roofline.programs` has the roofline, an estimate that adds up the traffic of every
leaf. This bound counts only work that no schedule, cache or compiler can avoid.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from cdmpp.analytic.operators.operators import Operators, is_matmul
from cdmpp.analytic.roofline.programs import leaves_of
from cdmpp.arrays import FloatArray, IntArray
from cdmpp.datasets.samples import ProgramArrays, Samples
from cdmpp.devices.spec import DeviceSpec
from cdmpp.programs.added_columns import LEAF_EXTRA_NAMES
from cdmpp.programs.compact_ast import has_added_columns
from cdmpp.programs.schema import ACCESS_SLOT_COUNT, LEAF_FEATURE_NAMES
from cdmpp.programs.work import WORK_COLUMNS, ProgramWork

#: What can set the lower bound, in the order of `Floor.terms`.
FloorTerm = Literal["launch", "compute", "threads", "dram", "l2"]
FLOOR_TERMS: tuple[FloorTerm, ...] = get_args(FloorTerm)
FLOOR_WORDS: dict[FloorTerm, str] = {
    "launch": "its smallest kernels", "compute": "its operations at peak",
    "threads": "its operations on the threads in use",
    "dram": "its bytes at the memory bandwidth", "l2": "its bytes at the L2 bandwidth",
}  # fmt: skip

#: Lower bound of a GPU kernel whose device has no `launch_s`, in seconds. Source: the fastest of
#: 128,000 matrix products on eight GPUs up to the B300 takes 1.5 us (ai-dynamo/aiconfigurator); an
#: empty kernel behind others 1.8 us on a V100 (ReFrame's gpu_kernel_latency).
LEAST_KERNEL_S = 1.0e-6
#: Lower bound of a program that is called on the host, in seconds: one load from the first cache,
#: four cycles or more (optimization manuals of Intel, AMD and Arm), below 6.5 GHz.
LEAST_CALL_S = 0.6e-9
#: Peaks of CPUs are at the nominal clock; this ratio covers the highest boost of any core.
#: Source: specifications of the CPUs described here, at most 3.5 over 2.3 GHz (Xeon E5-2673 v4).
CPU_CLOCK_RATIO = 1.6
#: A measured `c = a + b` counts three arrays but may move four, and reads alone may be faster.
CPU_BANDWIDTH_RATIO = 1.5
#: Integer operations of 2 bytes and of 1 byte over fp32 operations, if no peak is known: an
#: assumption. Vectors hold two and four times as many values, and dot products of bytes (VNNI,
#: DP4A) do four times a multiply-add. Integers of 4 bytes count at the fp32 peak: a core has at
#: most four pipes that add, and two that multiply and add.
INT16_RATIO, INT8_RATIO = 2.0, 4.0
#: 16-bit floats over fp32 on a CPU without a known peak: vectors hold twice as many.
CPU_FP16_RATIO = 2.0
#: Operations on doubles over operations on fp32, by compute capability (NVIDIA) or target (AMD),
#: without matrix units, which no compiler uses by itself. Sources: CUDA C++ Programming Guide,
#: throughput of native arithmetic instructions; data sheets of HGX B300 and AMD Instinct.
_FP64_RATIO = {
    "3.5": 1 / 3, "3.7": 1 / 3, "5.0": 1 / 32, "5.2": 1 / 32, "6.0": 1 / 2, "6.1": 1 / 32,
    "7.0": 1 / 2, "7.5": 1 / 32, "8.0": 1 / 2, "8.6": 1 / 64, "8.9": 1 / 64, "9.0": 1 / 2,
    "10.0": 1 / 2, "10.3": 1 / 64, "12.0": 1 / 64, "gfx906": 1 / 2, "gfx908": 1 / 2,
    "gfx942": 1 / 2, "gfx950": 1 / 2,
}  # fmt: skip
#: Maximum operations of a GPU thread per cycle: two multiply-adds (packed).
THREAD_FLOP_PER_CYCLE = 4.0
#: Minimum share of the roofline's rates that is assumed for work without a model: a rule of thumb
#: that only sets the upper end of an interval. 1,017 of 1,020 networks in eager torch reach it on
#: an EPYC, and 1,016 of their training steps.
LEAST_SHARE = 0.05
#: A window that skips elements reads at least this share of an input (strides of 2 by 2).
_STRIDED_SHARE = 0.25
#: Features are log2 in float32; this factor keeps rounding from exceeding the true work.
_ROUNDING = 1.0 - 1.0e-5
_CHUNK_PROGRAMS = 2_000


def _of_slots(name: str) -> list[str]:
    return [name.replace("B.", f"B{slot}.") for slot in range(ACCESS_SLOT_COUNT)]


# The columns that are read; the slices below index into them.
_LEAF_COLUMNS = [
    LEAF_FEATURE_NAMES.index(name)
    for name in (
        "float_mul", "float_addsub", *_of_slots("B.unique_bytes"), *_of_slots("B.bytes"),
        *_of_slots("B.acc_type.kRead"), *_of_slots("B.acc_type.kWrite"),
    )
]  # fmt: skip
_PRODUCTS, _SUMS, _FIRST_SLOT = 0, 1, 2
_UNIQUE, _TOUCHED, _READ, _WRITE = (
    slice(_FIRST_SLOT + part * ACCESS_SLOT_COUNT, _FIRST_SLOT + (part + 1) * ACCESS_SLOT_COUNT)
    for part in range(4)
)
_EXTRA_COLUMNS = [
    LEAF_EXTRA_NAMES.index(name)
    for name in (
        "dtype.store.bytes", "alloc.store.bytes", "condition.depth", "program.kernels",
        "program.input_bytes", *_of_slots("alloc.B.is_parameter"),
    )
]  # fmt: skip
_STORE_BYTES, _STORED, _GUARDS, _KERNELS, _INPUT_BYTES = range(5)
_PARAMETER = slice(5, 5 + ACCESS_SLOT_COUNT)


@dataclass(frozen=True)
class LeastWork:
    """Minimum work of P programs on any device, float64 [P] each.

    Attributes:
        wide_flop: sums and products with results of 4 bytes or more.
        narrow_flop: sums and products with results of 2 bytes (fp16, bfloat16), which may run on
            other pipes.
        bytes: inputs that are read and outputs that are written, each once.
        kernels: kernels on a GPU, at least 1.
        threads: maximum number of GPU threads that run at once; 0 and None = unknown.
        double_flop: operations of `wide_flop` on values of 8 bytes; None = not counted.
        fp8_flop: sums and products with results of 1 byte or less; None = not counted.
        fp4_flop: sums and products of values of less than 1 byte; None = not counted.
        int32_op, int16_op, int8_op: integer operations with a narrowest operand of more than 2
            bytes, of 2 bytes and of 1 byte; None = not counted.
    """

    wide_flop: FloatArray
    narrow_flop: FloatArray
    bytes: FloatArray
    kernels: FloatArray
    int32_op: FloatArray | None = None
    int16_op: FloatArray | None = None
    int8_op: FloatArray | None = None
    threads: FloatArray | None = None
    double_flop: FloatArray | None = None
    fp8_flop: FloatArray | None = None
    fp4_flop: FloatArray | None = None

    @property
    def flop(self) -> FloatArray:
        """float64 [P], floating-point operations of any width."""
        found = self.wide_flop + self.narrow_flop
        for one in (self.fp8_flop, self.fp4_flop):
            found = found if one is None else found + one
        return found


@dataclass(frozen=True)
class Floor:
    """Lower bounds of P programs on one device.

    Attributes:
        terms: float64 [P, 5], seconds of each of `FLOOR_TERMS`; NaN where a rate of the device is
            unknown. The terms may overlap: the largest is the lower bound.
    """

    terms: FloatArray

    @property
    def seconds(self) -> FloatArray:
        """float64 [P], above 0 and finite."""
        return np.asarray(np.nanmax(self.terms, axis=1), np.float64)

    def why(self, program: int) -> str:
        """Returns what sets the bound of one program, e.g. `its operations at peak`."""
        return FLOOR_WORDS[FLOOR_TERMS[int(np.nanargmax(self.terms[program]))]]


def least_work(programs: ProgramArrays, rows: IntArray) -> LeastWork:
    """Returns the minimum work of programs.

    - Operations: only sums and products. Recomputed values do not count, since a compiler may drop
      them; nor do leaves under a condition, whose iterations may not all run.
    - Output: what the last leaf writes, at most the size of its buffer.
    - Inputs: the distinct bytes of every parameter that is read, at most its accessed bytes and in
      total at most the bytes of all parameters. Accesses of equal size in different leaves count as
      the same parameter. If an access spans more than a product of I terms can need (Loomis and
      Whitney 1949: a product of I terms with operands A, B and C has I^2 <= |A| |B| |C|), the
      window may skip elements, and a quarter counts.

    Args:
        rows: int64 [P], rows of `programs`.
    """
    parts = []
    for start in range(0, max(len(rows), 1), _CHUNK_PROGRAMS):
        part = rows[start : start + _CHUNK_PROGRAMS]
        leaves, owner = leaves_of(programs, part)
        parts.append(
            _least_work(programs.leaf_features, programs.leaf_extra, leaves, owner, len(part))
        )
    found = LeastWork(
        **{name: np.concatenate([getattr(one, name) for one in parts]) for name in WORK_COLUMNS}
    )
    return found if programs.work is None else _at_least(found, programs.work[rows])


def least_work_of_program(
    leaf_features: NDArray[np.float32], leaf_extra: NDArray[np.float32]
) -> LeastWork:
    """Returns the minimum work of one program (P = 1), see `least_work`."""
    leaves = np.arange(len(leaf_features))
    return _least_work(leaf_features, leaf_extra, leaves, np.zeros_like(leaves), 1)


def _at_least(found: LeastWork, counted: FloatArray) -> LeastWork:
    """Returns the larger of the work from the features and the counted work, if not NaN.

    Args:
        counted: float64 [P, columns], see `ProgramArrays.work`.
    """
    columns = dict(zip(WORK_COLUMNS, counted.T, strict=True))
    values = {name: np.fmax(getattr(found, name), columns[name]) for name in WORK_COLUMNS}
    is_fp4 = columns["fp4_flop"] > 0  # in the features, these values have a byte each
    for name in ("fp8_flop", "bytes"):
        values[name] = np.where(is_fp4, columns[name], values[name])
    return LeastWork(**values)


def least_work_of_operators(operators: Operators) -> LeastWork:
    """Returns the minimum work of fp32 framework operators, one kernel each: every tensor once, and
    the operations of matrix products (without TF32; libraries use no faster algorithm).
    """
    flop = np.where(is_matmul(operators.kind), operators.flop, 0.0)
    return LeastWork(flop, np.zeros(len(flop)), operators.bytes, np.ones(len(flop)))


def floor_on(device: DeviceSpec, work: LeastWork) -> Floor:
    """Returns the lower bounds of programs on a device.

    A GPU needs at least `least_kernel_s` per kernel. Bytes beyond the size of the last cache, which
    may be warm, move at the memory bandwidth. An unknown rate or cache sets no bound.
    """
    unknown = np.full(len(work.bytes), np.nan)
    terms = [_launch_s(device, work), _compute_s(device, work), _threads_s(device, work)]
    cache, ratio = _last_cache(device), 1.0 if device.kind == "gpu" else CPU_BANDWIDTH_RATIO
    if cache is None or not device.mem_bandwidth_bytes_per_s:
        terms.append(unknown)
    else:
        beyond = np.maximum(work.bytes - cache, 0.0)
        terms.append(beyond / (ratio * device.mem_bandwidth_bytes_per_s))
    l2 = device.l2_bandwidth_bytes_per_s if device.kind == "gpu" else None
    terms.append(work.bytes / l2 if l2 else unknown)
    return Floor(np.stack(terms, axis=1))


def program_floor(
    device: DeviceSpec,
    leaf_features: NDArray[np.float32],
    leaf_extra: NDArray[np.float32],
    work: ProgramWork | None = None,
) -> Floor:
    """Returns the lower bound of one program on a device.

    Args:
        work: work counted on the program's loop tree; None if it was not counted.
    """
    least = least_work_of_program(leaf_features, leaf_extra)
    if work is not None:
        counted = np.array([[getattr(work, name) for name in WORK_COLUMNS]])
        least = _at_least(least, counted)
    return floor_on(device, least)


def sample_floor_s(samples: Samples, devices: tuple[DeviceSpec, ...] | None = None) -> FloatArray:
    """Returns float64 [N], the lower bound of every sample in seconds; measured latencies are not
    read.

    Args:
        devices: replaces `samples.devices`.
    """
    rows, place = np.unique(samples.program, return_inverse=True)
    work = least_work(samples.programs, rows)
    floor_s = np.zeros(len(samples))
    for index, spec in enumerate(devices or samples.devices):
        here = samples.device == index
        if here.any():
            floor_s[here] = floor_on(spec, work).seconds[place[here]]
    return floor_s


def least_kernel_s(device: DeviceSpec) -> float:
    """Returns the minimum seconds of a kernel on a GPU, or of a call on another device."""
    if device.kind != "gpu":
        return device.launch_s or LEAST_CALL_S
    return device.launch_s or LEAST_KERNEL_S


def fp64_ratio(device: DeviceSpec) -> float:
    """Returns the maximum ratio of operations on doubles to operations on fp32 of a device."""
    if device.kind == "cpu":
        return 1 / 2
    return _FP64_RATIO.get(device.compute_capability or "", 1.0)


def _launch_s(device: DeviceSpec, work: LeastWork) -> FloatArray:
    kernels = work.kernels if device.kind == "gpu" else np.ones(len(work.kernels))
    return kernels * least_kernel_s(device)


def _compute_s(device: DeviceSpec, work: LeastWork) -> FloatArray:
    ratio = CPU_CLOCK_RATIO if device.kind == "cpu" else 1.0
    wide = device.peak_fp32_flop_per_s
    halves = [device.peak_fp16_flop_per_s, device.peak_tensor_flop_per_s]
    narrow = max((rate for rate in halves if rate), default=None)
    if narrow is None and wide and device.kind == "cpu":
        narrow = CPU_FP16_RATIO * wide
    if wide is None and narrow is None:
        return np.full(len(work.bytes), np.nan)
    seconds = np.zeros(len(work.bytes))
    if wide:
        seconds = seconds + work.wide_flop / (ratio * wide)
    if narrow:
        fastest = wide or 0.0
        for operations, peak in (
            (work.narrow_flop, narrow), (work.fp8_flop, device.peak_fp8_flop_per_s),
            (work.fp4_flop, device.peak_fp4_flop_per_s),
        ):  # fmt: skip
            fastest = max(fastest, peak or 0.0)
            if operations is not None:
                seconds = np.maximum(seconds, operations / (ratio * fastest))
    if wide:
        int8 = max(INT8_RATIO * wide, device.peak_int8_op_per_s or 0.0)
        rates = (
            (work.int32_op, wide), (work.int16_op, INT16_RATIO * wide), (work.int8_op, int8),
            (work.double_flop, fp64_ratio(device) * wide),
        )  # fmt: skip
        for operations, rate in rates:
            if operations is not None:
                seconds = np.maximum(seconds, operations / (ratio * rate))
    return np.asarray(seconds, np.float64)


def _threads_s(device: DeviceSpec, work: LeastWork) -> FloatArray:
    """Returns float64 [P], seconds that a GPU's threads need for operations outside of matrix
    units; NaN where the number of threads is unknown.
    """
    known = np.full(len(work.bytes), np.nan)
    if work.threads is None or device.kind != "gpu" or not device.clock_hz:
        return known
    operations = np.maximum(work.wide_flop, 0.0 if work.int32_op is None else work.int32_op)
    is_known = work.threads > 0
    rate = THREAD_FLOP_PER_CYCLE * device.clock_hz * work.threads[is_known]
    known[is_known] = operations[is_known] / rate
    return known


def _last_cache(device: DeviceSpec) -> float | None:
    """Returns the bytes that caches may hold before a program starts; None if the size of the last
    level is unknown.
    """
    if device.kind == "gpu":
        return None if device.l2_bytes is None else float(device.l2_bytes + (device.l3_bytes or 0))
    if device.l3_bytes is None:
        return None
    return float(device.l3_bytes + (device.l2_bytes or 0) * (device.core_count or 1))


def _least_work(
    leaf_features: NDArray[np.float32],
    leaf_extra: NDArray[np.float32],
    leaves: IntArray,
    owner: IntArray,
    count: int,
) -> LeastWork:
    """Returns the minimum work of P programs.

    Args:
        leaves: int64 [L], rows of both arrays, programs one after another.
        owner: int64 [L], program of each leaf.
        count: P.
    """
    if not has_added_columns(leaf_extra):  # without them no work is certain
        none, one = np.zeros(count), np.ones(count)
        return LeastWork(none, none, none, one, *[none] * 7)
    leaf = np.asarray(leaf_features[leaves[:, None], _LEAF_COLUMNS], np.float64)
    extra = np.asarray(leaf_extra[leaves[:, None], _EXTRA_COLUMNS], np.float64)
    products, sums = _undo_log(leaf[:, _PRODUCTS]), _undo_log(leaf[:, _SUMS])
    written = np.where(leaf[:, _READ] > 0, 0.0, _undo_log(leaf[:, _UNIQUE])).max(axis=1)
    is_sure = extra[:, _GUARDS] <= 0
    flop = np.where(is_sure, products + sums, 0.0) / _repeats(leaf, extra, owner, written)
    store_bytes = _undo_log(extra[:, _STORE_BYTES])
    is_wide, is_narrow = store_bytes > 3.5, (store_bytes > 1.5) & (store_bytes <= 3.5)
    outputs, inputs, kernels = np.zeros(count), np.zeros(count), np.ones(count)
    if len(owner):
        final = np.flatnonzero(np.diff(owner, append=count))
        stored = _undo_log(extra[:, _STORED])
        outputs[owner[final]] = np.where(stored > 0, np.minimum(written, stored), written)[final]
        kernels[owner[final]] = np.maximum(np.rint(_undo_log(extra[final, _KERNELS])), 1.0)
        terms = np.zeros(count)
        np.maximum.at(terms, owner, products)
        most = np.zeros(count)
        most[owner[final]] = _undo_log(extra[final, _INPUT_BYTES])
        inputs = np.minimum(_input_bytes(leaf, extra, owner, terms, outputs), most)
    wide = np.asarray(np.bincount(owner, np.where(is_wide, flop, 0.0), count), np.float64)
    narrow = np.asarray(np.bincount(owner, np.where(is_narrow, flop, 0.0), count), np.float64)
    is_fp8 = ~(is_wide | is_narrow)
    fp8 = np.asarray(np.bincount(owner, np.where(is_fp8, flop, 0.0), count), np.float64)
    return LeastWork(
        wide_flop=_ROUNDING * wide,
        narrow_flop=_ROUNDING * narrow,
        bytes=_ROUNDING * (inputs + outputs),
        kernels=kernels,
        int32_op=np.zeros(count),
        int16_op=np.zeros(count),
        int8_op=np.zeros(count),
        threads=np.zeros(count),
        double_flop=np.zeros(count),
        fp8_flop=_ROUNDING * fp8,
        fp4_flop=np.zeros(count),
    )


def _repeats(
    leaf: FloatArray, extra: FloatArray, owner: IntArray, written: FloatArray
) -> FloatArray:
    """Returns float64 [L], how often each leaf computes the same values; infinite if unknown.

    A leaf that only writes repeats as often as it touches each written byte. A leaf that adds up
    repeats as often as another leaf initialises its buffer.
    """
    is_setting = (leaf[:, _WRITE] > 0).any(axis=1)
    touched = np.where(leaf[:, _READ] > 0, 0.0, _undo_log(leaf[:, _TOUCHED])).max(axis=1)
    times = np.where(is_setting, touched / np.maximum(written, 1.0), 0.0)
    order = np.lexsort((written, extra[:, _STORED], owner))
    is_new = np.zeros(len(owner), bool)
    for values in (written, extra[:, _STORED], owner):
        is_new[1:] |= np.diff(values[order]) != 0
    buffer = np.empty(len(owner), np.int64)
    buffer[order] = np.cumsum(is_new)
    most = np.zeros(len(owner))
    np.maximum.at(most, buffer, times)
    found = np.where(is_setting, times, most[buffer])
    return np.where(found > 0, np.maximum(found, 1.0), np.inf)


def _input_bytes(
    leaf: FloatArray, extra: FloatArray, owner: IntArray, terms: FloatArray, outputs: FloatArray
) -> FloatArray:
    """Returns float64 [P], distinct bytes of the parameters that each program reads.

    Args:
        owner: int64 [L], program of each leaf.
        terms: float64 [P], products of the program's largest leaf.
        outputs: float64 [P], bytes that the program writes.
    """
    is_input = (leaf[:, _READ] > 0) & (extra[:, _PARAMETER] > 0)
    size = np.minimum(_undo_log(leaf[:, _UNIQUE]), _undo_log(leaf[:, _TOUCHED]))
    at, _ = np.nonzero(is_input)
    total = np.zeros(len(terms))
    if not len(at):
        return total
    order = np.lexsort((at, size[is_input], owner[at]))
    at, sizes = at[order], size[is_input][order]
    # Count of a size in one leaf, then the maximum over leaves: (program, size) -> parameters.
    is_pair = np.concatenate([[True], (np.diff(owner[at]) != 0) | (np.diff(sizes) != 0)])
    leaf_starts = np.flatnonzero(is_pair | np.concatenate([[True], np.diff(at) != 0]))
    times = np.diff(leaf_starts, append=len(at))
    parameters = np.maximum.reduceat(times, np.flatnonzero(is_pair[leaf_starts]))
    program, bytes_of = owner[at][is_pair], sizes[is_pair]
    largest = np.zeros(len(terms))
    np.maximum.at(largest, program, bytes_of)
    # The element size cancels if all three tensors have the same.
    other = np.where(bytes_of < largest[program], largest[program], _second(program, bytes_of))
    needed = 64.0 * terms[program] ** 2 / np.maximum(other * outputs[program], 1.0)
    skips = (terms[program] > 0) & (bytes_of > 1.01 * needed)
    np.add.at(total, program, parameters * bytes_of * np.where(skips, _STRIDED_SHARE, 1.0))
    return total


def _second(program: IntArray, bytes_of: FloatArray) -> FloatArray:
    """Returns for each entry the next smaller size of its program (its own for the smallest);
    entries are sorted by program, then size.
    """
    before = np.concatenate([bytes_of[:1], bytes_of[:-1]])
    is_first = np.concatenate([[True], program[1:] != program[:-1]])
    return np.where(is_first, bytes_of, before)


def _undo_log(values: FloatArray) -> FloatArray:
    return np.asarray(np.exp2(values) - 1.0, np.float64)
