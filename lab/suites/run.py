"""Runs the unfinished cells of a suite, in this process or in several."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from cdmpp.datasets.samples import Samples
from cdmpp.errors import CdmppError, DataError, NotApplicableError, UsageError
from cdmpp.models.loop.one_thread import one_thread_each
from cdmpp.processes.campaign import Clock
from cdmpp.processes.pool import run_in_processes
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
        jobs: processes of one thread each; 0 or 1 for this process.
    """
    results = read_cells(runs_dir, cells)
    pending = [one for one in cells if one.id not in results or results[one.id].status == "failed"]
    for cell in pending:
        results.pop(cell.id, None)
    clock = Clock(len(pending))

    def finish(cell: SuiteCell) -> None:
        left_no_file = CellResult(cell, "failed", "it left no cell.json", {})
        results[cell.id] = result = read_cell(runs_dir, cell) or left_no_file
        clock.add()
        if on_progress is not None:
            on_progress(SuiteProgress(len(results), len(cells), result, clock.seconds_left()))

    def fail(cell: SuiteCell, reason: str) -> None:
        write_cell(runs_dir, cell, status="failed", reason=reason, value={})
        finish(cell)

    # Calls in this process load the samples of a folder once.
    load = load if jobs > 1 else cache(load)
    for has_need in (False, True):
        ready = [one for one in pending if bool(one.needs) == has_need]
        for cell in [one for one in ready if has_need and not _is_ok(results.get(one.needs))]:
            need = results[cell.needs]
            ready.remove(cell)
            fail(cell, f"{cell.needs} is {need.status}: {need.reason}")
        calls = [(cell, folders[cell.dataset], runs_dir, load) for cell in ready]
        try:
            with one_thread_each():
                for place, _ in run_in_processes(execute_cell, calls, jobs=max(jobs, 1)):
                    finish(ready[place])
        except DataError as error:  # worker processes died
            for cell in ready:
                if cell.id not in results:
                    fail(cell, str(error))
    return results


def _is_ok(result: CellResult | None) -> bool:
    return result is not None and result.status == "ok"


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
