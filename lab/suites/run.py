"""Runs the cells of a suite that are not finished, in this process or in several."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from cdmpp.datasets.samples import Samples
from cdmpp.errors import CdmppError, NotApplicableError, UsageError
from cdmpp.models.loop.one_thread import one_thread_each
from cdmpp.report.stamp import PROGRAMS, stamp
from cdmpp.timing.stats import timer
from lab.suites.cell_store import (
    CellResult,
    Status,
    cell_dir,
    read_cell,
    read_cells,
    write_cell,
)
from lab.suites.plan import SuiteCell
from lab.suites.run_cell import run_cell

#: A cell that was running when a process died is tried once more.
_MOST_DEATHS = 2

_log = logging.getLogger("cdmpp")


@dataclass(frozen=True)
class SuiteProgress:
    """Told after every cell.

    Attributes:
        done: cells finished, those of earlier runs included.
        total: cells to be finished in this run.
        result: the cell that has just ended.
        left_s: estimated seconds until all are finished; None while nothing is known.
    """

    done: int
    total: int
    result: CellResult
    left_s: float | None


OnProgress = Callable[[SuiteProgress], None]


def select_cells(cells: Sequence[SuiteCell], pattern: str | None) -> list[SuiteCell]:
    """Returns the cells whose id matches a shell pattern, and those that they need.

    Args:
        pattern: such as `*-xeon-*` or a part of an id; None = all.

    Raises:
        UsageError: no cell matches.
    """
    if pattern is None:
        return list(cells)
    full = pattern if any(sign in pattern for sign in "*?[") else f"*{pattern}*"
    chosen = {cell.id for cell in cells if fnmatchcase(cell.id, full)}
    if not chosen:
        raise UsageError(
            f"no cell matches {pattern!r}; ids look like {cells[0].id!r}"
            if cells
            else "the suite has no cells: give its data sets with --data NAME=DIR"
        )
    chosen |= {cell.needs for cell in cells if cell.id in chosen}
    return [cell for cell in cells if cell.id in chosen]


def run_cells(
    cells: Sequence[SuiteCell],
    folders: Mapping[str, Path],
    runs_dir: Path,
    *,
    load: Callable[[Path], Samples],
    jobs: int = 1,
    on_progress: OnProgress | None = None,
) -> dict[str, CellResult]:
    """Runs what is not finished and returns the results of all cells by id.

    A cell that fails is recorded and the others go on; the next run tries it again. What is
    finished with the same options and data is used again.

    Args:
        cells: in an order in which every cell comes after what it needs.
        folders: extracted data set of each name.
        load: returns the samples of a folder; a module-level function.
        jobs: processes of one thread each; 0 = all in this process.
    """
    tracker = _Tracker(cells, read_cells(runs_dir, cells), max(jobs, 1), on_progress)
    if jobs == 0:
        _run_here(tracker, folders, runs_dir, load)
    else:
        with one_thread_each():
            _run_processes(tracker, folders, runs_dir, load, jobs)
    return tracker.results


def execute_cell(
    cell: SuiteCell, folder: Path, runs_dir: Path, load: Callable[[Path], Samples]
) -> None:
    """Runs a cell and writes its cell.json, whatever happens to the cell."""
    execute_cell_on(cell, lambda: load(folder), runs_dir)


@timer("cell")
def execute_cell_on(cell: SuiteCell, samples: Callable[[], Samples], runs_dir: Path) -> None:
    """`execute_cell` with samples that may be there already."""
    started, cpu = time.perf_counter(), time.process_time()
    status: Status = "ok"
    reason = ""
    value: dict[str, Any] = {}
    try:
        value = run_cell(cell, samples(), cell_dir(runs_dir, cell), runs_dir)
    except NotApplicableError as error:
        status, reason = "not-applicable", str(error)
    except CdmppError as error:
        status, reason = "failed", str(error)
    except Exception as error:
        # The one place that must go on whatever a model does; the traceback is in the log.
        _log.exception("cell %s failed", cell.id)
        status, reason = "failed", f"{type(error).__name__}: {error}"
    origin = {
        "cpu_s": time.process_time() - cpu,
        "wall_s": time.perf_counter() - started,
        "stamp": stamp(cell.id, schemas=PROGRAMS),
    }
    write_cell(runs_dir, cell, status=status, reason=reason, value={**origin, **value})


@dataclass
class _Tracker:
    """Which cells are finished, which can start, and how long the rest will take."""

    cells: Sequence[SuiteCell]
    results: dict[str, CellResult]
    jobs: int
    on_progress: OnProgress | None
    pending: list[SuiteCell] = field(init=False)
    running: dict[str, SuiteCell] = field(default_factory=dict)

    def __post_init__(self) -> None:
        finished = {name for name, result in self.results.items() if result.status != "failed"}
        self.pending = [cell for cell in self.cells if cell.id not in finished]
        for cell in self.pending:
            self.results.pop(cell.id, None)

    def next_ready(self) -> SuiteCell | None:
        """Returns a cell that can start and takes it from the pending ones; None when none can."""
        for cell in self.pending:
            if not cell.needs or cell.needs in self.results:
                self.pending.remove(cell)
                self.running[cell.id] = cell
                return cell
        return None

    def failed_need(self, cell: SuiteCell) -> str:
        """Returns why the cell cannot be run because of what it needs; empty when it can."""
        need = self.results.get(cell.needs)
        if not cell.needs or need is None or need.status == "ok":
            return ""
        return f"{cell.needs} is {need.status}: {need.reason}"

    def finish(self, runs_dir: Path, cell: SuiteCell) -> None:
        """Takes the result that the cell has left."""
        self.running.pop(cell.id, None)
        result = read_cell(runs_dir, cell)
        if result is None:
            result = CellResult(cell, "failed", "it left no cell.json", {})
        self.results[cell.id] = result
        if self.on_progress is not None:
            total = len(self.cells)
            self.on_progress(SuiteProgress(len(self.results), total, result, self._left_s()))

    def _left_s(self) -> float | None:
        """Returns the remaining seconds, from how long cells of the same line took."""
        spent: dict[str, list[float]] = {}
        for result in self.results.values():
            spent.setdefault(result.cell.line, []).append(float(result.value.get("wall_s", 0.0)))
        if not spent:
            return None
        means = {line: sum(values) / len(values) for line, values in spent.items()}
        typical = sum(means.values()) / len(means)
        waiting = [*self.pending, *self.running.values()]
        return sum(means.get(cell.line, typical) for cell in waiting) / self.jobs


def _run_here(
    tracker: _Tracker,
    folders: Mapping[str, Path],
    runs_dir: Path,
    load: Callable[[Path], Samples],
) -> None:
    loaded: dict[Path, Samples] = {}

    def samples_of(folder: Path) -> Samples:
        if folder not in loaded:
            loaded[folder] = load(folder)
        return loaded[folder]

    while (cell := tracker.next_ready()) is not None:
        _start_here(tracker, cell, folders, runs_dir, samples_of)


def _start_here(
    tracker: _Tracker,
    cell: SuiteCell,
    folders: Mapping[str, Path],
    runs_dir: Path,
    samples_of: Callable[[Path], Samples],
) -> None:
    if not _is_blocked(tracker, cell, runs_dir):
        execute_cell_on(cell, lambda: samples_of(folders[cell.dataset]), runs_dir)
    tracker.finish(runs_dir, cell)


def _is_blocked(tracker: _Tracker, cell: SuiteCell, runs_dir: Path) -> bool:
    """Whether what the cell needs has failed; that is then written down."""
    reason = tracker.failed_need(cell)
    if not reason:
        return False
    cell_dir(runs_dir, cell)
    write_cell(runs_dir, cell, status="failed", reason=reason, value={})
    return True


def _run_processes(
    tracker: _Tracker,
    folders: Mapping[str, Path],
    runs_dir: Path,
    load: Callable[[Path], Samples],
    jobs: int,
) -> None:
    deaths: dict[str, int] = {}
    while tracker.pending:
        # Cells that were running when a process died go first and alone, to tell which one it was.
        suspects = sum(cell.id in deaths for cell in tracker.pending)
        width = 1 if suspects else jobs
        pool = ProcessPoolExecutor(width, mp_context=get_context("spawn"))
        try:
            _fill(pool, tracker, folders, runs_dir, load, width, most=suspects or None)
        except BrokenProcessPool:
            for cell in list(tracker.running.values()):
                deaths[cell.id] = deaths.get(cell.id, 0) + 1
                tracker.running.pop(cell.id)
                if deaths[cell.id] < _MOST_DEATHS:
                    tracker.pending.insert(0, cell)
                    continue
                reason = "its process died twice, perhaps for want of memory; try --jobs 1"
                cell_dir(runs_dir, cell)
                write_cell(runs_dir, cell, status="failed", reason=reason, value={})
                tracker.finish(runs_dir, cell)
        finally:
            pool.shutdown(cancel_futures=True)


def _fill(
    pool: ProcessPoolExecutor,
    tracker: _Tracker,
    folders: Mapping[str, Path],
    runs_dir: Path,
    load: Callable[[Path], Samples],
    jobs: int,
    *,
    most: int | None,
) -> None:
    """Keeps `jobs` cells going until none is left, or `most` have been started.

    Raises:
        BrokenProcessPool: a process died; `tracker.running` says which cells were on their way.
    """
    started: dict[Future[None], SuiteCell] = {}
    count = 0
    while True:
        while len(started) < jobs and count != most:
            cell = tracker.next_ready()
            if cell is None:
                break
            count += 1
            if _is_blocked(tracker, cell, runs_dir):
                tracker.finish(runs_dir, cell)
                continue
            future = pool.submit(execute_cell, cell, folders[cell.dataset], runs_dir, load)
            started[future] = cell
        if not started:
            return
        for future in wait(started, return_when=FIRST_COMPLETED).done:
            future.result()
            tracker.finish(runs_dir, started.pop(future))
