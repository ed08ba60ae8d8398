"""Runs the unfinished cells of a suite, in this process or in several."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from cdmpp.datasets.samples import Samples
from cdmpp.errors import CdmppError, NotApplicableError, UsageError
from cdmpp.models.loop.one_thread import one_thread_each
from cdmpp.timing.stats import timer
from lab.stamp import PROGRAMS, stamp
from lab.suites.cell_store import (
    CellResult,
    Status,
    cell_dir,
    read_cell,
    read_cells,
    write_cell,
)
from lab.suites.model_cell import run_model_cell
from lab.suites.plan import SuiteCell

#: Process deaths after which a cell fails.
_MOST_DEATHS = 2

_log = logging.getLogger("cdmpp")


@dataclass(frozen=True)
class SuiteProgress:
    """Progress of a run, reported after every cell.

    Attributes:
        done: number of finished cells, including those of earlier runs.
        total: number of cells of this run.
        result: the cell that has just finished.
        left_s: estimated remaining seconds; None if unknown.
    """

    done: int
    total: int
    result: CellResult
    left_s: float | None


OnProgress = Callable[[SuiteProgress], None]


def select_cells(cells: Sequence[SuiteCell], pattern: str | None) -> list[SuiteCell]:
    """Returns the cells whose id matches a shell pattern, and the cells that they need.

    Args:
        pattern: such as `*-xeon-*`, or a part of an id; None for all.

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
    """Runs unfinished cells and returns the results of all cells by id.

    A failed cell is recorded and the others continue; the next run retries it. Results with the
    same options and data are reused.

    Args:
        cells: ordered such that every cell comes after the cell that it needs.
        folders: name of a dataset -> extracted folder.
        load: returns the samples of a folder; a module-level function.
        jobs: processes of one thread each; 0 for this process.
    """
    finished = read_cells(runs_dir, cells)
    run = _Run(cells, folders, runs_dir, load, max(jobs, 1), on_progress, finished)
    if jobs == 0:
        run.here()
    else:
        with one_thread_each():
            run.in_processes()
    return run.results


@timer("cell")
def execute_cell(
    cell: SuiteCell, folder: Path, runs_dir: Path, load: Callable[[Path], Samples]
) -> None:
    """Runs a cell and writes its cell.json, even if the cell fails."""
    started, cpu = time.perf_counter(), time.process_time()
    status: Status = "ok"
    reason = ""
    value: dict[str, Any] = {}
    try:
        samples, own_dir = load(folder), cell_dir(runs_dir, cell)
        if cell.split == "device":
            # Imported here because it imports torch, which processes that grow trees do not need.
            from lab.suites.transfer_cell import run_transfer_cell

            value = run_transfer_cell(cell, samples, own_dir, runs_dir)
        else:
            value = run_model_cell(cell, samples, own_dir)
    except NotApplicableError as error:
        status, reason = "not-applicable", str(error)
    except CdmppError as error:
        status, reason = "failed", str(error)
    except Exception as error:
        # Any error of a model is recorded; the traceback is in the log.
        _log.exception("cell %s failed", cell.id)
        status, reason = "failed", f"{type(error).__name__}: {error}"
    origin = {
        "cpu_s": time.process_time() - cpu,
        "wall_s": time.perf_counter() - started,
        "stamp": stamp(cell.id, schemas=PROGRAMS),
    }
    write_cell(runs_dir, cell, status=status, reason=reason, value={**origin, **value})


@dataclass
class _Run:
    """Finished, pending and running cells, and the remaining time."""

    cells: Sequence[SuiteCell]
    folders: Mapping[str, Path]
    runs_dir: Path
    load: Callable[[Path], Samples]
    jobs: int
    on_progress: OnProgress | None
    results: dict[str, CellResult]
    pending: list[SuiteCell] = field(init=False)
    running: dict[str, SuiteCell] = field(default_factory=dict)

    def __post_init__(self) -> None:
        finished = {name for name, result in self.results.items() if result.status != "failed"}
        self.pending = [cell for cell in self.cells if cell.id not in finished]
        for cell in self.pending:
            self.results.pop(cell.id, None)

    def here(self) -> None:
        """Runs all cells in this process; loads the samples of a folder once."""
        load = cache(self.load)
        while (cell := self._next_ready()) is not None:
            execute_cell(cell, self.folders[cell.dataset], self.runs_dir, load)
            self._finish(cell)

    def in_processes(self) -> None:
        """Runs all cells in `jobs` processes."""
        deaths: Counter[str] = Counter()
        while self.pending:
            # Cells that were running when a process died run first and alone, to identify the one
            # that killed it.
            suspects = sum(cell.id in deaths for cell in self.pending)
            width = 1 if suspects else self.jobs
            pool = ProcessPoolExecutor(width, mp_context=get_context("spawn"))
            try:
                self._fill(pool, width, most=suspects or None)
            except BrokenProcessPool:
                for cell in list(self.running.values()):
                    deaths[cell.id] += 1
                    if deaths[cell.id] < _MOST_DEATHS:
                        self.running.pop(cell.id)
                        self.pending.insert(0, cell)
                    else:
                        self._fail(
                            cell, "its process died twice, perhaps for want of memory; try --jobs 1"
                        )
            finally:
                pool.shutdown(cancel_futures=True)

    def _fill(self, pool: ProcessPoolExecutor, width: int, *, most: int | None) -> None:
        """Keeps `width` cells running until none is left, or `most` have been started.

        Raises:
            BrokenProcessPool: a process died; `running` has the interrupted cells.
        """
        started: dict[Future[None], SuiteCell] = {}
        count = 0
        while True:
            while len(started) < width and count != most and (cell := self._next_ready()):
                count += 1
                folder = self.folders[cell.dataset]
                started[pool.submit(execute_cell, cell, folder, self.runs_dir, self.load)] = cell
            if not started:
                return
            for future in wait(started, return_when=FIRST_COMPLETED).done:
                future.result()
                self._finish(started.pop(future))

    def _next_ready(self) -> SuiteCell | None:
        """Removes and returns a pending cell that can start; None if there is none. Cells whose
        needed cell failed are recorded as failed.
        """
        for cell in list(self.pending):
            if cell.needs and cell.needs not in self.results:
                continue
            self.pending.remove(cell)
            self.running[cell.id] = cell
            need = self.results.get(cell.needs)
            if need is None or need.status == "ok":
                return cell
            self._fail(cell, f"{cell.needs} is {need.status}: {need.reason}")
        return None

    def _fail(self, cell: SuiteCell, reason: str) -> None:
        write_cell(self.runs_dir, cell, status="failed", reason=reason, value={})
        self._finish(cell)

    def _finish(self, cell: SuiteCell) -> None:
        self.running.pop(cell.id, None)
        result = read_cell(self.runs_dir, cell)
        if result is None:
            result = CellResult(cell, "failed", "it left no cell.json", {})
        self.results[cell.id] = result
        if self.on_progress is not None:
            total = len(self.cells)
            self.on_progress(SuiteProgress(len(self.results), total, result, self._left_s()))

    def _left_s(self) -> float | None:
        """Estimates the remaining seconds from the times of finished cells of the same line."""
        spent: dict[str, list[float]] = {}
        for result in self.results.values():
            spent.setdefault(result.cell.line, []).append(float(result.value.get("wall_s", 0.0)))
        if not spent:
            return None
        means = {line: sum(values) / len(values) for line, values in spent.items()}
        typical = sum(means.values()) / len(means)
        waiting = [*self.pending, *self.running.values()]
        return sum(means.get(cell.line, typical) for cell in waiting) / self.jobs
