"""A measuring campaign on the CPU: choice and order of shapes, resumed after an interruption."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, fields
from itertools import groupby, product
from pathlib import Path
from typing import Any, Literal

import numpy as np

from cdmpp.analytic.embedding.bench import EmbeddingBench, time_calls
from cdmpp.analytic.embedding.cpu import CpuCaches
from cdmpp.analytic.embedding.cpu_probe import (
    MemorySweep,
    cpu_caches,
    keep_freed_memory,
    machine_facts,
    memory_sweep,
)
from cdmpp.analytic.embedding.shapes import EmbeddingShape, Pass
from cdmpp.analytic.table_file import TableFile
from cdmpp.errors import DataError
from cdmpp.files.atomic import make_folder, read_json, write_json, write_text
from cdmpp.text import csv_text

GridSize = Literal["smoke", "quick", "full"]


@dataclass(frozen=True)
class CampaignPoint:
    """One measurement to do: a pass over a shape with one kind of access."""

    which: Pass
    shape: EmbeddingShape
    zipf_exponent: float
    round: int


@dataclass(frozen=True)
class CampaignRow:
    """One measurement, a row of the CSV file.

    Attributes:
        pass_name: `forward`, `backward-sgd` or `backward-dense`.
        batch, rows, tables, lookups, width: as in `EmbeddingShape`.
        zipf_exponent: exponent of the access; 0 = uniform.
        round: number of the measurement of this shape, from 0.
        threads: number of torch threads.
        clock, latency_s, spread, calls: as in `LookupTiming`.
        load_average: one-minute load average of the machine after the measurement.
        measured_at: seconds since 1970.
    """

    pass_name: str
    batch: int
    rows: int
    tables: int
    lookups: int
    width: int
    zipf_exponent: float
    round: int
    threads: int
    clock: str
    latency_s: float
    spread: float
    calls: int
    load_average: float
    measured_at: int

    @property
    def shape(self) -> EmbeddingShape:
        """The measured shape."""
        return EmbeddingShape(self.batch, self.rows, self.tables, self.lookups, self.width)

    @property
    def key(self) -> tuple[str, int, int, int, int, int, float]:
        """Identifies what was measured, for all rounds."""
        return (
            self.pass_name, self.batch, self.rows, self.tables, self.lookups, self.width,
            self.zipf_exponent,
        )  # fmt: skip


@dataclass(frozen=True)
class LookupCampaign:
    """A folder of measurements on one machine.

    Attributes:
        rows: the measurements.
        caches: caches of the machine.
        sweep: read bandwidth of the machine.
        machine: content of `machine.json`.
    """

    rows: list[CampaignRow]
    caches: CpuCaches
    sweep: MemorySweep
    machine: dict[str, Any]


#: Files of a campaign's folder.
ROWS_FILE, MACHINE_FILE = "measurements.csv", "machine.json"
COLUMNS = tuple(entry.name for entry in fields(CampaignRow))
#: Columns that are not whole numbers.
_KINDS: Mapping[str, Callable[[str], Any]] = {
    "pass_name": str, "clock": str,
    **dict.fromkeys(("zipf_exponent", "latency_s", "spread", "load_average"), float),
}  # fmt: skip
_AGAIN = "cdmpp analytic embedding measure"

_ROWS = (1_000, 10_000, 100_000, 1_000_000, 4_000_000)
_TABLES = (1, 4, 16)
_WIDTHS = (32, 64, 128, 256)
_BATCHES = (128, 512, 2048, 4096)
_LOOKUPS = (1, 8, 32, 128)
_EXPONENTS = (0.0, 1.05)
#: Limits in bytes: of all tables, of the rows that a call moves, and of the dense gradients.
_MOST_TABLE_BYTES = 1_200_000_000
_MOST_MOVED_BYTES = {"forward": 256e6, "backward-sgd": 48e6, "backward-dense": 48e6}
_MOST_DENSE_BYTES = 128e6
_COUNTS: dict[GridSize, dict[Pass, int]] = {
    "smoke": {"forward": 4, "backward-sgd": 2, "backward-dense": 2},
    "quick": {"forward": 60, "backward-sgd": 30, "backward-dense": 30},
    "full": {"forward": 220, "backward-sgd": 90, "backward-dense": 70},
}


def campaign_points(size: GridSize, *, rounds: int) -> list[CampaignPoint]:
    """Returns the points of a campaign, round by round, grouped by equal tables.

    The grid is that of the GPU benchmarks scaled to a CPU: batch 128 to 4,096, 1,000 to 4,000,000
    rows, 1 to 16 tables, bags of 1 to 128, rows of 32 to 256 values; uniform and Zipf access. The
    points are a random sample of the combinations whose tables and traffic are not too large.
    """
    rng = np.random.default_rng(0)
    points: list[CampaignPoint] = []
    chosen = {which: _sample(rng, which, count) for which, count in _COUNTS[size].items()}
    for number in range(rounds):
        part = [
            CampaignPoint(which, shape, exponent, number)
            for which, entries in chosen.items()
            for shape, exponent in entries
        ]
        groups = [list(group) for _, group in groupby(sorted(part, key=_table_key), key=_table_key)]
        points.extend(groups[index][place] for index, place in _order(rng, groups))
    return points


def measure_campaign(
    folder: Path,
    size: GridSize,
    *,
    rounds: int,
    threads: int,
    budget_s: float,
    on_row: Callable[[CampaignRow], None] | None = None,
) -> list[CampaignRow]:
    """Measures the machine and the points of a campaign that a folder lacks; returns all its rows.

    Args:
        threads: number of torch threads.
        budget_s: as in `run_campaign`.

    Raises:
        DataError: the folder cannot be read or written.
    """
    import torch

    make_folder(folder, what="measurements")
    torch.set_num_threads(threads)
    keeps = keep_freed_memory()
    if not (folder / MACHINE_FILE).exists():
        sweep = memory_sweep(lambda call: time_calls(call, budget_s).latency_s)
        facts = machine_facts(cpu_caches(), sweep, threads=threads)
        write_json(folder / MACHINE_FILE, {**facts, "allocator_keeps_freed_memory": keeps})
    points = campaign_points(size, rounds=rounds)
    return run_campaign(points, folder / ROWS_FILE, budget_s=budget_s, on_row=on_row)


def read_folder(folder: Path) -> LookupCampaign:
    """Reads what `measure_campaign` wrote.

    Raises:
        DataError: a file is missing or invalid.
    """
    rows = read_campaign(folder / ROWS_FILE)
    path = folder / MACHINE_FILE
    again = f"create them: {_AGAIN} --out {folder}"
    facts = read_json(path, what="machine's facts", hint=again)
    try:
        sweep = MemorySweep(**facts["memory_sweep"])
        return LookupCampaign(rows, CpuCaches(**facts["caches"]), sweep, facts)
    except (KeyError, TypeError) as error:
        raise DataError(f"{path}: cannot read the machine's facts ({error}); {again}") from None


def run_campaign(
    points: Iterable[CampaignPoint],
    path: Path,
    *,
    budget_s: float = 1.0,
    on_row: Callable[[CampaignRow], None] | None = None,
) -> list[CampaignRow]:
    """Measures the points that the file lacks and returns all its rows.

    The file is rewritten after every group of points of equal tables.

    Args:
        path: CSV file, created if missing.
        budget_s: seconds of timed calls per point.

    Raises:
        DataError: the file cannot be read or written, or was measured with another number of
            threads.
    """
    import torch

    rows = read_campaign(path) if path.exists() else []
    threads = torch.get_num_threads()
    _check_threads(path, {threads, *(row.threads for row in rows)})
    done = {(row.key, row.round) for row in rows}
    for (count, tables, width), group in groupby(points, key=_table_key):
        missing = [point for point in group if (_key(point), point.round) not in done]
        if not missing:
            continue
        bench = EmbeddingBench(count, tables, width)
        for point in missing:
            row = _measure(bench, point, threads, budget_s)
            rows.append(row)
            done.add((row.key, row.round))
            if on_row is not None:
                on_row(row)
        write_campaign(path, rows)
    return rows


def read_campaign(path: Path) -> list[CampaignRow]:
    """Reads the rows of a campaign's CSV file.

    Raises:
        DataError: the file cannot be read, has other columns, has a value that is not a number, or
            has measurements with several numbers of threads.
    """
    table = TableFile.read(path, COLUMNS, what="embedding lookups, made by: " + _AGAIN)
    columns = [table.values(name, _KINDS.get(name, int)) for name in COLUMNS]
    rows = [CampaignRow(*row) for row in zip(*columns, strict=True)]
    _check_threads(path, {row.threads for row in rows})
    return rows


def _check_threads(path: Path, threads: set[int]) -> None:
    if len(threads) > 1:
        raise DataError(
            f"{path}: measurements with {' and '.join(map(str, sorted(threads)))} threads; use a "
            "folder for each number of threads"
        )


def write_campaign(path: Path, rows: Iterable[CampaignRow]) -> None:
    """Writes the rows as CSV, atomically.

    Raises:
        DataError: the file cannot be written.
    """
    cells = (
        [f"{value:.6g}" if isinstance(value, float) else value for value in astuple(row)]
        for row in rows
    )
    write_text(path, csv_text(COLUMNS, cells))


def best_of_rounds(rows: Iterable[CampaignRow]) -> list[CampaignRow]:
    """Returns the fastest round of each point, sorted by key."""
    best: dict[tuple[str, int, int, int, int, int, float], CampaignRow] = {}
    for row in rows:
        if row.key not in best or row.latency_s < best[row.key].latency_s:
            best[row.key] = row
    return [best[key] for key in sorted(best)]


def _measure(
    bench: EmbeddingBench, point: CampaignPoint, threads: int, budget_s: float
) -> CampaignRow:
    shape = point.shape
    timing = bench.measure(
        shape,
        point.which,
        zipf_exponent=point.zipf_exponent,
        seed=point.round,
        budget_s=budget_s,
    )
    return CampaignRow(
        *_key(point)[:6],
        zipf_exponent=point.zipf_exponent,
        round=point.round,
        threads=threads,
        clock=timing.clock,
        latency_s=timing.latency_s,
        spread=timing.spread,
        calls=timing.calls,
        load_average=os.getloadavg()[0],
        measured_at=int(time.time()),
    )


def _sample(
    rng: np.random.Generator, which: Pass, count: int
) -> list[tuple[EmbeddingShape, float]]:
    fitting = [
        (EmbeddingShape(batch, rows, tables, lookups, width), exponent)
        for rows, tables, width, batch, lookups, exponent in product(
            _ROWS, _TABLES, _WIDTHS, _BATCHES, _LOOKUPS, _EXPONENTS
        )
        if _fits(which, EmbeddingShape(batch, rows, tables, lookups, width))
    ]
    picked = rng.permutation(len(fitting))[:count]
    return [fitting[index] for index in sorted(picked)]


def _fits(which: Pass, shape: EmbeddingShape) -> bool:
    table_bytes = shape.rows * shape.tables * shape.row_bytes
    moved = shape.lookup_count * shape.row_bytes
    if which == "backward-dense" and table_bytes > _MOST_DENSE_BYTES:
        return False
    return table_bytes <= _MOST_TABLE_BYTES and moved <= _MOST_MOVED_BYTES[which]


def _order(
    rng: np.random.Generator, groups: list[list[CampaignPoint]]
) -> Iterator[tuple[int, int]]:
    for index in rng.permutation(len(groups)):
        for place in rng.permutation(len(groups[index])):
            yield int(index), int(place)


def _table_key(point: CampaignPoint) -> tuple[int, int, int]:
    return (point.shape.rows, point.shape.tables, point.shape.width)


def _key(point: CampaignPoint) -> tuple[str, int, int, int, int, int, float]:
    shape = point.shape
    return (
        point.which, shape.batch, shape.rows, shape.tables, shape.lookups, shape.width,
        point.zipf_exponent,
    )  # fmt: skip
