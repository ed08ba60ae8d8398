"""One cell of a suite, whatever it trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cdmpp.datasets.samples import Samples
from lab.suites.model_cell import _run_model_cell
from lab.suites.plan import SuiteCell


def run_cell(cell: SuiteCell, samples: Samples, cell_dir: Path, runs_dir: Path) -> dict[str, Any]:
    """Returns what cell.json says of a finished cell: metrics, parts, CPU seconds, speed.

    Args:
        samples: all samples of the cell's data set.
        cell_dir: the cell's folder; it exists.
        runs_dir: folder of all cells of the suite.

    Raises:
        NotApplicableError: the kind of model cannot use these samples.
        CdmppError: the cell cannot be run.
    """
    if cell.split == "device":
        # Here, as it brings torch: a process that grows trees has no use for it.
        from lab.suites.transfer_cell import run_transfer_cell

        return run_transfer_cell(cell, samples, cell_dir, runs_dir)
    return _run_model_cell(cell, samples, cell_dir)
