"""cell.json: the stored result of a cell, and when it may be reused."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from cdmpp.errors import DataError
from cdmpp.files.atomic import make_folder, read_json, write_json
from cdmpp.files.json_text import parse_json
from lab.suites.plan import DatasetFacts, SuiteCell

Status = Literal["ok", "not-applicable", "failed"]

_FACTS = "datasets.json"


@dataclass(frozen=True)
class CellResult:
    """A cell and its result.

    Attributes:
        cell: the cell.
        status: `ok`, `not-applicable` (the kind of model cannot use the data) or `failed`.
        reason: one sentence; empty if `ok`.
        value: content of cell.json.
    """

    cell: SuiteCell
    status: Status
    reason: str
    value: dict[str, Any]


def write_cell(
    runs_dir: Path, cell: SuiteCell, *, status: Status, reason: str, value: Mapping[str, Any]
) -> None:
    """Writes cell.json; call this after all other files of the cell.

    Raises:
        DataError: it cannot be written.
    """
    entry = {"id": cell.id, "status": status, "reason": reason, "key": cell.key, **value}
    write_json(cell_dir(runs_dir, cell) / "cell.json", entry)


def read_cell(runs_dir: Path, cell: SuiteCell) -> CellResult | None:
    """Returns the stored result of a cell; None if missing, or made with other options or data."""
    try:
        value = parse_json((runs_dir / cell.id / "cell.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    # Round trip through JSON: tuples of the key are lists in the file.
    if not isinstance(value, dict) or value.get("key") != json.loads(json.dumps(cell.key)):
        return None
    return CellResult(cell, value["status"], value["reason"], value)


def read_cells(runs_dir: Path, cells: Iterable[SuiteCell]) -> dict[str, CellResult]:
    """Returns the stored results of the cells, by id."""
    found = ((cell.id, read_cell(runs_dir, cell)) for cell in cells)
    return {name: result for name, result in found if result is not None}


def cell_dir(runs_dir: Path, cell: SuiteCell) -> Path:
    """Returns the cell's folder; creates it if missing."""
    return make_folder(runs_dir / cell.id, what="cell of the suite")


def write_facts(runs_dir: Path, facts: dict[str, DatasetFacts]) -> None:
    """Stores facts of a suite's datasets, so that tables can be written without the datasets.

    Facts of datasets of earlier runs are kept.
    """
    make_folder(runs_dir, what="cells of the suite")
    try:
        known = read_facts(runs_dir)
    except DataError:
        known = {}
    write_json(runs_dir / _FACTS, {name: asdict(one) for name, one in (known | facts).items()})


def read_facts(runs_dir: Path) -> dict[str, DatasetFacts]:
    """Returns the facts of datasets that earlier runs of the suite used.

    Raises:
        DataError: there was no earlier run, or the file is damaged.
    """
    hint = "run the suite once without --report-only"
    path = runs_dir / _FACTS
    try:
        found = read_json(path, what="list of data sets", hint=hint)
        return {
            name: DatasetFacts(one["data_hash"], dict(one["tasks"])) for name, one in found.items()
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is damaged ({error!r}); {hint}") from error
