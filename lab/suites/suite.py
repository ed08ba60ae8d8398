"""Runs a suite and writes its leaderboard."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cdmpp.datasets.cache import load_samples
from lab.suites.cell_store import read_cells, read_facts, write_facts
from lab.suites.leaderboard.board import Board
from lab.suites.leaderboard.write import Leaderboard, leaderboard, write_leaderboard
from lab.suites.options import SuiteOptions
from lab.suites.plan import dataset_facts, plan_cells
from lab.suites.run import SuiteProgress, run_cells, select_cells


def run_suite(
    suite: SuiteOptions,
    folders: Mapping[str, Path],
    runs_dir: Path,
    *,
    pattern: str | None = None,
    config: Path | None = None,
    overrides: Sequence[str] = (),
    jobs: int = 1,
    on_progress: Callable[[SuiteProgress], None] | None = None,
) -> None:
    """Runs the unfinished cells of a suite.

    Args:
        folders: dataset -> extracted folder.
        runs_dir: folder of the cells.
        pattern: selects cells; None for all.
        config, overrides: of the training, see `plan_cells`.
        jobs: processes; 0 for this one.

    Raises:
        UsageError: no cell matches.
    """
    facts = {name: dataset_facts(load_samples(folder)) for name, folder in folders.items()}
    write_facts(runs_dir, facts)
    cells = plan_cells(suite, facts, config=config, overrides=overrides)
    run_cells(
        select_cells(cells, pattern), folders, runs_dir,
        load=load_samples, jobs=jobs, on_progress=on_progress,
    )  # fmt: skip


def report_suite(
    suite: SuiteOptions,
    runs_dir: Path,
    out: Path,
    *,
    config: Path | None = None,
    overrides: Sequence[str] = (),
    command: str,
) -> tuple[Leaderboard, list[Path]]:
    """Writes the tables of the finished cells of all datasets that ever ran; returns the
    leaderboard and its files.

    Args:
        command: command line for the stamp.
    """
    facts = read_facts(runs_dir)
    cells = plan_cells(suite, facts, config=config, overrides=overrides)
    found = leaderboard(Board(suite, facts, cells, read_cells(runs_dir, cells), command))
    return found, write_leaderboard(found, out)
