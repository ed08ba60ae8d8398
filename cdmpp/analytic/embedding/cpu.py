"""Times of `embedding_bag` on one CPU thread: counted work times fitted costs.

The work of a call is counted from its shape (calls, bags, lookups, cache lines) and, with Che's
approximation, for each memory level (rows that miss L1, L2, L3 and the TLB). The time is the sum of
counts times costs; the costs are fitted to measurements and never negative.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.analytic.contract import AnalyticModel
from cdmpp.analytic.embedding.cache_hits import Popularity, TableVisits, zipf_popularity
from cdmpp.analytic.embedding.shapes import EmbeddingShape, Pass
from cdmpp.analytic.intervals import LogErrors
from cdmpp.arrays import FloatArray
from cdmpp.errors import DataError, UsageError
from cdmpp.files.atomic import write_json
from cdmpp.files.stored import read_model

CONSTANTS_SCHEMA = "embedding-cpu-1"
_LINE_BYTES = 64
_INDEX_BYTES = 8

_FORWARD = (
    "calls", "bags", "lookups", "lines", "lines_beyond_l1", "rows_beyond_l2", "lines_beyond_l2",
    "rows_beyond_l3", "lines_beyond_l3", "tlb_misses", "output_lines",
)  # fmt: skip
_GRADIENT = ("value_lines", "value_lines_beyond_l2", "value_lines_beyond_l3")
_DENSE = (
    "calls", "bags", "lookups", "sort_steps", "unique_rows", "lines", "output_lines_beyond_l1",
    "output_lines_beyond_l2", "rows_beyond_l3", "lines_beyond_l2", "lines_beyond_l3",
    "table_lines", "table_lines_beyond_l2", "table_lines_beyond_l3",
)  # fmt: skip
_COLUMNS: dict[str, tuple[str, ...]] = {
    "forward": _FORWARD,
    "backward-sgd": (*_FORWARD, *_GRADIENT),
    "backward-dense": _DENSE,
}
#: Candidate shares of the L3: other processes and virtual machines use it as well.
_L3_SHARES = (0.5, 0.75, 1.0)


@dataclass(frozen=True)
class CpuCaches:
    """The memory levels of one thread.

    Attributes:
        l1_bytes, l2_bytes, l3_bytes: data caches.
        page_bytes: size of a memory page.
        tlb_entries: number of pages in the TLB.
    """

    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    page_bytes: int = 4096
    tlb_entries: int = 3072


@dataclass(frozen=True)
class CpuPoint:
    """A pass over a shape with one kind of access, to be predicted.

    Raises:
        UsageError: invalid Zipf exponent.
    """

    which: Pass
    shape: EmbeddingShape
    zipf_exponent: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.zipf_exponent < math.inf:
            raise UsageError(
                f"zipf exponent {self.zipf_exponent:g}, expected a number from 0 (uniform) up"
            )


@dataclass(frozen=True)
class CpuConstants(AnalyticModel):
    """Fitted costs.

    Attributes:
        caches: caches of the machine.
        l3_share: share of the L3 that the thread has, selected on the training measurements.
        cost_s: pass -> {work: seconds per unit}; work without an entry costs 0.
        n: pass -> number of measurements in the fit.
        origin: machine, versions and file of the measurements.
        errors: pass -> errors of the validation; None if the constants were not validated.
    """

    what = "constants"
    again = "create it: cdmpp analytic embedding fit --data FILE --out FILE"

    caches: CpuCaches
    l3_share: float
    cost_s: dict[str, dict[str, float]]
    n: dict[str, int]
    origin: dict[str, Any]
    errors: dict[str, LogErrors] | None = None

    def latency_s(
        self, points: Sequence[CpuPoint], *, counted: CountedWork | None = None
    ) -> FloatArray:
        """Returns float64 [N], seconds.

        Raises:
            UsageError: a pass that was not fitted.
        """
        counted = counted or CountedWork(self.caches)
        found = np.zeros(len(points))
        for index, point in enumerate(points):
            costs = self.cost_s.get(point.which)
            if costs is None:
                raise UsageError(
                    f"constants: no costs for pass {point.which}; fitted: "
                    f"{', '.join(self.cost_s)}; fit others: cdmpp analytic embedding fit"
                )
            work = counted.work(point, self.l3_share)
            found[index] = sum(cost * work[name] for name, cost in costs.items())
        return found

    def save(self, path: Path) -> None:
        write_json(path, {"schema": CONSTANTS_SCHEMA, **asdict(self)})

    @classmethod
    def load(cls, path: Path) -> CpuConstants:
        return read_model(
            cls, path, what=cls.what, again=cls.again, format=CONSTANTS_SCHEMA, entry="schema"
        )


def cpu_parts_s(point: CpuPoint, constants: CpuConstants) -> dict[str, float]:
    """Returns the seconds of each kind of work of a pass; they add up to its latency.

    Raises:
        UsageError: a pass that was not fitted.
    """
    constants.latency_s([point])
    work = cpu_work(point, constants.caches, l3_share=constants.l3_share)
    return {name: cost * work[name] for name, cost in constants.cost_s[point.which].items()}


def cpu_work(point: CpuPoint, caches: CpuCaches, *, l3_share: float = 1.0) -> dict[str, float]:
    """Returns the counts of each kind of work of a pass (see `_COLUMNS`).

    `lines` are 64-byte lines of looked-up rows, `..._beyond_l2` the lines that miss the L2;
    `value_...` belongs to the sparse gradient, `table_...` to the dense one.

    Raises:
        UsageError: the pass does not exist in torch.
    """
    return _work(point, caches, l3_share, _private_misses(point, caches))


def fit_cpu(
    points: Sequence[CpuPoint],
    measured_s: FloatArray,
    caches: CpuCaches,
    *,
    origin: dict[str, Any] | None = None,
    counted: CountedWork | None = None,
) -> CpuConstants:
    """Fits the costs to measurements.

    For each pass, the costs are non-negative and minimise the soft L1 norm of log(predicted /
    measured), starting from non-negative relative least squares. The share of the L3 minimises the
    sum of log errors over the passes.

    Args:
        measured_s: float64 [N], seconds, positive.
        counted: work of these points, shared by several fits.

    Raises:
        DataError: no measurements, or a time that is not positive.
    """
    measured = np.asarray(measured_s, np.float64)
    if len(points) == 0 or len(points) != len(measured) or not np.all(measured > 0):
        raise DataError(
            f"fit: {len(points)} points and {len(measured)} times; expected one positive time "
            "per point, at least one; measure: cdmpp analytic embedding measure"
        )
    counted = counted or CountedWork(caches)
    rows = {
        which: [index for index, point in enumerate(points) if point.which == which]
        for which in _COLUMNS
    }
    rows = {which: found for which, found in rows.items() if found}

    def tables(share: float) -> dict[str, FloatArray]:
        return {
            which: np.array([list(counted.work(points[i], share).values()) for i in found])
            for which, found in rows.items()
        }

    # The quick fit selects the share; only the selected share gets the robust fit.
    losses = {
        share: sum(
            _log_loss(table, _nonnegative(table, measured[rows[which]]), measured[rows[which]])
            for which, table in tables(share).items()
        )
        for share in _L3_SHARES
    }
    share = min(losses, key=lambda candidate: losses[candidate])
    costs = {}
    for which, table in tables(share).items():
        fitted = _fit_costs(table, measured[rows[which]])
        named = zip(_COLUMNS[which], fitted, strict=True)
        costs[which] = {name: float(cost) for name, cost in named if cost > 0.0}
    count = {which: len(found) for which, found in rows.items()}
    return CpuConstants(caches, share, costs, count, origin or {})


class CountedWork:
    """The work of points on one machine; each point is counted once."""

    def __init__(self, caches: CpuCaches) -> None:
        self._caches = caches
        self._found: dict[tuple[CpuPoint, float], dict[str, float]] = {}
        self._private: dict[CpuPoint, dict[str, float]] = {}

    def work(self, point: CpuPoint, l3_share: float) -> dict[str, float]:
        """Returns `cpu_work` of a point."""
        key = (point, l3_share)
        if key not in self._found:
            # L1, L2 and TLB do not depend on the share, so they are counted once.
            if point not in self._private:
                self._private[point] = _private_misses(point, self._caches)
            self._found[key] = _work(point, self._caches, l3_share, self._private[point])
        return self._found[key]


def _private_misses(point: CpuPoint, caches: CpuCaches) -> dict[str, float]:
    """Returns the share of lookups that miss L1, L2 and TLB."""
    shape = point.shape
    popularity = zipf_popularity(shape.rows, point.zipf_exponent)
    visits = _visits(shape, popularity)
    return {
        "l1": 1.0 - visits.hit_rate(caches.l1_bytes),
        "l2": 1.0 - visits.hit_rate(caches.l2_bytes),
        "tlb": _tlb_miss_rate(shape, popularity, caches),
    }


def _work(
    point: CpuPoint, caches: CpuCaches, l3_share: float, private: dict[str, float]
) -> dict[str, float]:
    shape, which = point.shape, point.which
    if which not in _COLUMNS:
        raise UsageError(f"embedding on a CPU: no pass {which}; known: {', '.join(_COLUMNS)}")
    row_lines = _row_lines(shape)
    lookups = float(shape.lookup_count)
    bags = float(shape.batch * shape.tables)
    lines = lookups * row_lines
    l3_bytes = caches.l3_bytes * l3_share
    popularity = zipf_popularity(shape.rows, point.zipf_exponent)
    l3_miss = 1.0 - _visits(shape, popularity).hit_rate(l3_bytes)
    beyond = {"l1": private["l1"], "l2": private["l2"], "l3": l3_miss}
    work = {
        "calls": float(shape.tables),
        "bags": bags,
        "lookups": lookups,
        "lines": lines,
        "output_lines": bags * row_lines,
        "tlb_misses": lookups * private["tlb"],
        **{f"rows_beyond_{name}": lookups * miss for name, miss in beyond.items()},
        **{f"lines_beyond_{name}": lines * miss for name, miss in beyond.items()},
    }
    sizes = {
        "value_lines": shape.batch * shape.lookups * row_lines,
        "table_lines": shape.rows * row_lines,
        "output_lines": shape.batch * row_lines,
    }
    for name, one_table in sizes.items():
        # A stream that is written and read again hits the part that still fits.
        held = one_table * _LINE_BYTES
        for level, size in (("l1", caches.l1_bytes), ("l2", caches.l2_bytes), ("l3", l3_bytes)):
            readings = lines if name == "output_lines" else float(one_table * shape.tables)
            work[f"{name}_beyond_{level}"] = readings * max(0.0, 1.0 - size / held)
        if name != "output_lines":
            work[name] = float(one_table * shape.tables)
    requests = shape.batch * shape.lookups
    work["sort_steps"] = lookups * math.log2(max(2, requests))
    work["unique_rows"] = shape.tables * popularity.distinct_rows(requests)
    return {name: float(work[name]) for name in _COLUMNS[which]}


def _row_lines(shape: EmbeddingShape) -> int:
    return -(-shape.row_bytes // _LINE_BYTES)


def _visits(shape: EmbeddingShape, popularity: Popularity) -> TableVisits:
    return TableVisits(
        popularity,
        shape.tables,
        shape.batch * shape.lookups,
        float(_row_lines(shape) * _LINE_BYTES),
        _INDEX_BYTES + shape.row_bytes / shape.lookups,
    )


def _tlb_miss_rate(shape: EmbeddingShape, popularity: Popularity, caches: CpuCaches) -> float:
    """Returns the share of lookups that miss the TLB.

    Popular rows are assumed to have their own pages; the other rows of a page have the average
    probability.
    """
    pages = -(-shape.rows * shape.row_bytes // caches.page_bytes)
    first = np.minimum(np.cumsum(popularity.rows), pages)
    held = np.diff(np.concatenate([[0.0], first]))
    kept = held > 0
    mass = float(popularity.probability @ held)
    chance = popularity.probability[kept] + max(0.0, 1.0 - mass) / pages
    visits = TableVisits(
        Popularity(chance, held[kept]), shape.tables, shape.batch * shape.lookups, 1.0
    )
    return 1.0 - visits.hit_rate(float(caches.tlb_entries))


def _nonnegative(table: FloatArray, measured_s: FloatArray) -> FloatArray:
    """Returns float64 [K], non-negative costs in seconds by relative least squares.

    Args:
        table: float64 [N, K], work.
    """
    from scipy.optimize import nnls

    relative = table / measured_s[:, None]
    scale = np.maximum(relative.max(axis=0), 1e-300)
    cost, _ = nnls(relative / scale, np.ones(len(table)))
    return np.asarray(cost / scale, np.float64)


def _log_loss(table: FloatArray, cost: FloatArray, measured_s: FloatArray) -> float:
    return float(np.abs(np.log(np.maximum(table @ cost / measured_s, 1e-9))).sum())


def _fit_costs(table: FloatArray, measured_s: FloatArray) -> FloatArray:
    """Returns float64 [K], costs in seconds by a robust fit of log times.

    Args:
        table: float64 [N, K], work.
    """
    from scipy.optimize import least_squares

    relative = table / measured_s[:, None]
    scale = np.maximum(relative.max(axis=0), 1e-300)
    start = _nonnegative(table, measured_s) * scale
    columns = relative / scale

    def residuals(cost: FloatArray) -> FloatArray:
        return np.asarray(np.log(np.maximum(columns @ cost, 1e-9)), np.float64)

    def slopes(cost: FloatArray) -> FloatArray:
        return np.asarray(columns / np.maximum(columns @ cost, 1e-9)[:, None], np.float64)

    fitted = least_squares(
        residuals,
        np.maximum(start, 1e-6),
        jac=slopes,
        bounds=(0.0, np.inf),
        loss="soft_l1",
        f_scale=0.1,
        max_nfev=200,
    )
    return np.asarray(np.where(fitted.x > 1e-9, fitted.x, 0.0) / scale, np.float64)
