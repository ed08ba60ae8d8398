"""Host overheads of a framework, extracted from traces and shared between models.

Source: the five overheads and their filters of the public repository owensgroup/ml_perf_model.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.errors import DataError
from cdmpp.files.atomic import read_json, write_json
from cdmpp.replay.traces.host_operators import HostOperator, plain_name

FORMAT = "cdmpp-host-overheads"
VERSION = 1
#: Overheads that are tables by operator or launch call.
_TABLES = ("t2", "t3", "t4", "t5")
#: Range of counted gaps between operators, µs.
_LEAST_GAP_US, _MOST_GAP_US = 2.0, 200.0
#: Recording cost of an operator and of a launch call, µs.
_HOST_EVENT_US, _LAUNCH_EVENT_US = 2.0, 4.0
#: Outliers are this many interquartile ranges beyond the quartiles.
_QUARTILE_RANGES = 1.5
#: Half width of the central 90 % of a normal distribution, in standard deviations.
_NORMAL_90 = 1.645
_AGAIN = "write one with: cdmpp replay TRACE --save-overheads FILE"


@dataclass(frozen=True)
class Overhead:
    """Mean of a host overhead.

    Attributes:
        mean_us: µs.
        count: number of values without outliers.
        std_us: standard deviation of one value, µs; None = unknown.
    """

    mean_us: float
    count: int
    std_us: float | None = None

    @property
    def ends_us(self) -> tuple[float, float]:
        """The central 90 % of a normal distribution; the mean twice if the spread is unknown."""
        reach = _NORMAL_90 * (self.std_us or 0.0)
        return max(0.0, self.mean_us - reach), self.mean_us + reach


@dataclass(frozen=True)
class HostOverheads:
    """The overheads T1 to T5 in µs.

    Attributes:
        t1: between two top-level operators.
        t2: operator -> from its start to its first launch.
        t3: operator -> from its last launch to its end.
        t4: launch call -> its duration.
        t5: operator -> between two launches; total time of an operator without launches.
        launches: operator -> its launch calls, in order, if the file has them.
        sources: names of the traces.
    """

    t1: Overhead
    t2: dict[str, Overhead] = field(default_factory=dict)
    t3: dict[str, Overhead] = field(default_factory=dict)
    t4: dict[str, Overhead] = field(default_factory=dict)
    t5: dict[str, Overhead] = field(default_factory=dict)
    launches: dict[str, tuple[str, ...]] = field(default_factory=dict)
    sources: tuple[str, ...] = ()


def extract_overheads(
    iterations: Iterable[Sequence[HostOperator]], *, source: str = ""
) -> HostOverheads:
    """Returns the overheads of traced iterations.

    Recording an event takes host time within the interval in which the event starts; it is
    subtracted there, down to 0.

    Raises:
        DataError: no two consecutive operators have a gap in the counted range.
    """
    gaps: list[float] = []
    values: dict[str, dict[str, list[float]]] = {name: {} for name in _TABLES}
    for operators in iterations:
        for before, after in itertools.pairwise(operators):
            gap = after.start_us - before.end_us
            if _LEAST_GAP_US <= gap <= _MOST_GAP_US:
                gaps.append(max(0.0, gap - _HOST_EVENT_US))
        for one in operators:
            for name, key, value in _parts(one):
                values[name].setdefault(key, []).append(value)
    if not gaps:
        raise DataError(
            f"{source or 'trace'}: no gap of {_LEAST_GAP_US:g} to {_MOST_GAP_US:g} "
            "µs between two operators; expected a trace of at least one whole iteration"
        )
    t2, t3, t4, t5 = (
        {key: _trimmed(found) for key, found in sorted(values[name].items())} for name in _TABLES
    )
    return HostOverheads(_trimmed(gaps), t2, t3, t4, t5, sources=(source,) if source else ())


def merged(overheads: Sequence[HostOverheads]) -> HostOverheads:
    """Merges the overheads of several traces; means are weighted by their counts.

    Raises:
        DataError: `overheads` is empty.
    """
    if not overheads:
        raise DataError(f"no overheads to merge; {_AGAIN}")

    def pooled(tables: Sequence[Mapping[str, Overhead]]) -> dict[str, Overhead]:
        names = sorted({name for table in tables for name in table})
        return {name: mean_overhead([t[name] for t in tables if name in t]) for name in names}

    return HostOverheads(
        t1=mean_overhead([one.t1 for one in overheads]),
        **{name: pooled([getattr(one, name) for one in overheads]) for name in _TABLES},
        launches={name: calls for one in overheads for name, calls in one.launches.items()},
        sources=tuple(name for one in overheads for name in one.sources),
    )


def write_overheads(path: Path, overheads: HostOverheads) -> None:
    """Writes overheads as JSON.

    Raises:
        DataError: the file cannot be written.
    """
    write_json(path, {"format": FORMAT, "version": VERSION, "unit": "us", **asdict(overheads)})


def read_overheads(path: Path) -> HostOverheads:
    """Reads a file of `write_overheads`, or one of the public repository: `launches`, and `t1` to
    `t5` with [mean, standard deviation, count].

    Raises:
        DataError: unreadable, another format, or an invalid value.
    """
    value = read_json(path, what="file of host overheads", hint=_AGAIN)
    if isinstance(value, dict) and "format" not in value and {"t1", *_TABLES} <= value.keys():
        return _read_public(value, path)
    value = read_json(path, what="file of host overheads", hint=_AGAIN, format=FORMAT)
    if value.get("version") != VERSION:
        raise DataError(
            f"{path}: overheads of version {value.get('version')!r}, expected {VERSION}; {_AGAIN}"
        )
    try:
        return HostOverheads(
            t1=_overhead(value["t1"]),
            **{name: _table(value[name]) for name in _TABLES},
            launches={
                str(name): tuple(map(str, calls))
                for name, calls in value.get("launches", {}).items()
            },
            sources=tuple(str(name) for name in value.get("sources", [])),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        why = f"{type(error).__name__}: {error}"
        raise DataError(f"{path}: cannot read the overheads ({why}); {_AGAIN}") from None


def _read_public(value: Mapping[str, Any], path: Path) -> HostOverheads:
    def table(name: str, entries: Mapping[str, Any]) -> dict[str, Overhead]:
        found: dict[str, list[Overhead]] = {}
        for key, entry in entries.items():
            found.setdefault(key if name == "t4" else plain_name(key), []).append(one(entry))
        return {key: mean_overhead(parts) for key, parts in found.items()}

    def one(entry: Sequence[Any]) -> Overhead:
        mean, std, count = entry
        return _checked(Overhead(float(mean), int(count), float(std)))

    try:
        return HostOverheads(
            t1=one(value["t1"]),
            **{name: table(name, value[name]) for name in _TABLES},
            launches={
                plain_name(name): tuple(map(str, calls))
                for name, calls in value.get("launches", {}).items()
            },
            sources=(path.name,),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path}: cannot read the overheads ({type(error).__name__}: {error}); expected "
            f"[mean, standard deviation, count] of each, µs; or {_AGAIN}"
        ) from None


def _parts(one: HostOperator) -> Iterable[tuple[str, str, float]]:
    """Yields (overhead, key, µs) of one operator."""

    def host_time(start: float, end: float) -> float:
        recorded = sum(start <= at < end for at in one.nested_us)
        return max(0.0, end - start - _HOST_EVENT_US * recorded)

    if not one.launches:
        yield "t5", one.name, host_time(one.start_us, one.end_us)
        return
    yield "t2", one.name, host_time(one.start_us, one.launches[0].start_us)
    last = one.launches[-1]
    yield "t3", one.name, host_time(last.start_us + last.duration_us, one.end_us)
    for launch in one.launches:
        yield "t4", launch.call, max(0.0, launch.duration_us - _LAUNCH_EVENT_US)
    for before, after in itertools.pairwise(one.launches):
        yield "t5", one.name, host_time(before.start_us + before.duration_us, after.start_us)


def _trimmed(values: Sequence[float]) -> Overhead:
    """Returns the mean and standard deviation without outliers."""
    table = np.asarray(values, np.float64)
    low, high = np.percentile(table, [25, 75])
    reach = _QUARTILE_RANGES * (high - low)
    kept = table[(table >= low - reach) & (table <= high + reach)]
    std = float(kept.std(ddof=1)) if len(kept) > 1 else None
    return Overhead(float(kept.mean()), len(kept), std)


def mean_overhead(parts: Sequence[Overhead]) -> Overhead:
    """Returns the pooled overhead: the mean weighted by counts, and the total spread within and
    between the parts.
    """
    if len(parts) == 1:
        return parts[0]
    count = sum(part.count for part in parts)
    mean = sum(part.mean_us * part.count for part in parts) / count
    if any(part.std_us is None for part in parts):
        return Overhead(mean, count)
    squares = sum(
        part.count * ((part.std_us or 0.0) ** 2 + (part.mean_us - mean) ** 2) for part in parts
    )
    return Overhead(mean, count, math.sqrt(squares / count))


def _overhead(value: Any) -> Overhead:
    std = value.get("std_us")
    mean, count = float(value["mean_us"]), int(value["count"])
    return _checked(Overhead(mean, count, None if std is None else float(std)))


def _checked(one: Overhead) -> Overhead:
    if not 0 <= one.mean_us < math.inf or one.count < 1 or not 0 <= (one.std_us or 0.0) < math.inf:
        raise ValueError(f"mean_us {one.mean_us}, std_us {one.std_us}, count {one.count}")
    return one


def _table(value: Mapping[str, Any]) -> dict[str, Overhead]:
    return {str(name): _overhead(entry) for name, entry in value.items()}
