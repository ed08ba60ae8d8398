"""Explains the time of a row: achieved rates, bound, occupancy, prediction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from cdmpp.analytic.kernels.predictor import KernelPredictor
from cdmpp.analytic.kernels.work import work_of
from cdmpp.devices.occupancy import device_occupancy_limits, occupancy
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DeviceError
from cdmpp.profiling.merge import group_rows, join_rows
from cdmpp.profiling.schema import DEVICE_KINDS, Kind, Profile, ProfileRow

Bound = Literal["memory-bound", "compute-bound", "latency-bound"]
Block = Literal["device", "operators", "api", "ranges"]

#: A row below this share of both peaks is limited by something else: launches, dependencies, or a
#: grid that is too small.
LATENCY_SHARE: Final = 0.25
BLOCK_TITLES: Final[dict[Block, str]] = {
    "device": "Device activities",
    "operators": "Operators on the host (own time)",
    "api": "API calls",
    "ranges": "Ranges and functions (own time)",
}
_BLOCK_OF: dict[Kind, Block] = {
    **dict.fromkeys(DEVICE_KINDS, "device"),  # type: ignore[arg-type]
    "cpu_op": "operators", "api": "api", "range": "ranges", "python": "ranges",
}  # fmt: skip


@dataclass(frozen=True)
class Explained:
    """One line of a table; None = unknown.

    Attributes:
        block: table that it belongs to.
        kind, name, short_name, calls: of the row.
        total_s, own_s: seconds of all calls, with and without nested rows.
        mean_s, min_s, max_s: seconds per call.
        share: of the own time of its block, 0 to 1.
        bytes_per_s, flop_per_s: achieved rates over the total time.
        bandwidth_share, peak_share: shares of the device's rates, 0 to 1.
        bound: the bottleneck.
        occupancy: active warps as a share of the maximum, mean over the calls.
        limiters: limits of the occupancy.
        predicted_s: predicted seconds per call, mean over the calls.
        predicted_by: models of the predictions.
        shapes: of the inputs, if all calls have the same.
    """

    block: Block
    kind: Kind
    name: str
    short_name: str
    calls: int
    total_s: float
    own_s: float
    mean_s: float
    min_s: float | None
    max_s: float | None
    share: float
    bytes_per_s: float | None = None
    flop_per_s: float | None = None
    bandwidth_share: float | None = None
    peak_share: float | None = None
    bound: Bound | None = None
    occupancy: float | None = None
    limiters: tuple[str, ...] = ()
    predicted_s: float | None = None
    predicted_by: tuple[str, ...] = ()
    shapes: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Returns the line as JSON values."""
        return asdict(self)


def explain(
    profile: Profile, device: DeviceSpec | None, *, by_shape: bool = False
) -> list[Explained]:
    """Returns the lines of all tables, most own time first.

    Args:
        device: None = rates only, without shares of peaks, occupancy and predictions.
        by_shape: one line per launch configuration and shape.
    """
    predictor = None if device is None else KernelPredictor(device)
    groups = [(join_rows(rows), rows) for rows in group_rows(profile.rows, by_shape=by_shape)]
    sums: dict[Block, float] = {}
    for whole, _ in groups:
        block = _BLOCK_OF[whole.kind]
        sums[block] = sums.get(block, 0.0) + whole.own_s
    launches = any(row.kind in DEVICE_KINDS for row in profile.rows)
    lines = [
        _line(
            whole, rows, sums[_BLOCK_OF[whole.kind]], device, predictor,
            is_launched=launches and whole.kind == "cpu_op",
        )
        for whole, rows in groups
    ]  # fmt: skip
    return sorted(lines, key=lambda line: -line.own_s)


def bound_of(
    seconds: float,
    *,
    flop: float | None,
    moved_bytes: float | None,
    peak_flop_per_s: float | None,
    bandwidth_bytes_per_s: float | None,
) -> tuple[float | None, float | None, Bound | None]:
    """Returns (share of the peak, share of the bandwidth, bottleneck).

    A single known share determines the bottleneck only if it is at least half.
    """
    compute = memory = None
    if seconds > 0.0 and flop is not None and peak_flop_per_s:
        compute = flop / seconds / peak_flop_per_s
    if seconds > 0.0 and moved_bytes is not None and bandwidth_bytes_per_s:
        memory = moved_bytes / seconds / bandwidth_bytes_per_s
    best = max(compute or 0.0, memory or 0.0)
    if (compute is None or memory is None) and best < 0.5:
        return compute, memory, None
    if best < LATENCY_SHARE:
        return compute, memory, "latency-bound"
    return compute, memory, "compute-bound" if (compute or 0.0) >= best else "memory-bound"


def _line(
    whole: ProfileRow,
    rows: Sequence[ProfileRow],
    block_s: float,
    device: DeviceSpec | None,
    predictor: KernelPredictor | None,
    *,
    is_launched: bool,
) -> Explained:
    """Returns the line of a row.

    Args:
        is_launched: whether it is an operator with its work in another row, on the device; its time
            is then host time.
    """
    moved, flop, dtype = (None, None, "") if is_launched else _amounts(rows)
    seconds = whole.total_s
    is_host_copy = whole.kind == "memcpy" and "DtoD" not in whole.name
    is_elsewhere = whole.kind == "cpu_op" and device is not None and device.kind == "gpu"
    compute, memory, bound = bound_of(
        seconds, flop=flop, moved_bytes=moved,
        peak_flop_per_s=predictor.peak_flop_per_s(dtype)
        if predictor and not is_elsewhere
        else None,
        # A copy from or to the host uses the bus, whose bandwidth is not in the registry.
        bandwidth_bytes_per_s=None if device is None or is_host_copy or is_elsewhere
        else device.mem_bandwidth_bytes_per_s,
    )  # fmt: skip
    filled, limiters = _occupancy(rows, device)
    predicted, models = _predicted(rows, predictor)
    return Explained(
        block=_BLOCK_OF[whole.kind], kind=whole.kind, name=whole.name,
        short_name=whole.short_name, calls=whole.calls, total_s=seconds, own_s=whole.own_s,
        mean_s=whole.mean_s, min_s=whole.min_s, max_s=whole.max_s,
        share=whole.own_s / block_s if block_s else 0.0,
        bytes_per_s=moved / seconds if moved is not None and seconds else None,
        flop_per_s=flop / seconds if flop is not None and seconds else None,
        bandwidth_share=memory, peak_share=compute, bound=bound, occupancy=filled,
        limiters=limiters, predicted_s=predicted, predicted_by=models,
        shapes=_shape_text(whole),
    )  # fmt: skip


def _amounts(rows: Sequence[ProfileRow]) -> tuple[float | None, float | None, str]:
    """Returns (bytes, operations, data type) of all calls: measured, or else from the shapes; None
    if a row has neither.
    """
    moved: float | None = 0.0
    flop: float | None = 0.0
    dtypes = set()
    for row in rows:
        work = work_of(row.call)
        if work is not None:
            dtypes.add(work.dtype)
        row_moved, row_flop = row.moved_bytes, row.flop
        if row_moved is None and work is not None:
            row_moved = work.moved_bytes * row.calls
        if row_flop is None and work is not None:
            row_flop = work.flop * row.calls
        moved = None if moved is None or row_moved is None else moved + row_moved
        flop = None if flop is None or row_flop is None else flop + row_flop
    return moved, flop, dtypes.pop() if len(dtypes) == 1 else "mixed" if dtypes else "float"


def _occupancy(
    rows: Sequence[ProfileRow], device: DeviceSpec | None
) -> tuple[float | None, tuple[str, ...]]:
    if device is None or device.kind != "gpu":
        return None, ()
    try:
        limits = device_occupancy_limits(device)
    except DeviceError:
        return None, ()
    total, calls, limiters = 0.0, 0, dict[str, None]()
    for row in rows:
        launch = row.launch
        if launch is None or launch.block is None or launch.registers_per_thread is None:
            continue
        found = occupancy(
            limits, math.prod(launch.block), registers_per_thread=launch.registers_per_thread,
            shared_bytes_per_block=launch.shared_bytes or 0,
        )  # fmt: skip
        total += found.occupancy * row.calls
        calls += row.calls
        limiters.update(dict.fromkeys(found.limiters))
    return (total / calls, tuple(limiters)) if calls else (None, ())


def _predicted(
    rows: Sequence[ProfileRow], predictor: KernelPredictor | None
) -> tuple[float | None, tuple[str, ...]]:
    """Returns (mean seconds per call, models); None unless every call can be predicted."""
    total, calls, models = 0.0, 0, dict[str, None]()
    for row in rows:
        work = work_of(row.call)
        found = predictor.predict(work) if predictor is not None and work is not None else None
        if found is None:
            return None, ()
        total += found.seconds * row.calls
        calls += row.calls
        models[found.model] = None
    return (total / calls, tuple(models)) if calls else (None, ())


def _shape_text(row: ProfileRow) -> str | None:
    if row.call is None or not row.call.shapes:
        return None
    return " ".join("x".join(map(str, shape)) for shape in row.call.shapes if shape) or None
