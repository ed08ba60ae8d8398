"""Browsing of a folder of result tables: tidy CSV files with their facts and pages.

from cdmpp.report.tidy_results import ResultsFolder

board = ResultsFolder(Path("runs/results")).board("tenset", {"group": "test"})
print([(line["model"], line["values"]["mape"]["mean"]) for line in board["lines"]])
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cdmpp.errors import DataError, NotFoundError
from cdmpp.files.atomic import read_json
from cdmpp.files.open_text import read_text
from cdmpp.metrics import mean_and_interval
from cdmpp.report.tables import COLUMNS, Column
from cdmpp.text import TIDY_COLUMNS

#: Columns that filter a board, in this order; each has one chosen value.
FACETS = ("suite", "dataset", "split", "device", "group")
#: Preferred default values of a facet; otherwise the first in the alphabet.
_FIRST = ("all", "mean", "test")
_FACTS = ("command", "commit", "seeds")
_KNOWN = {column.key: column for column in COLUMNS}
_HINT = "expected the output of `python -m lab benchmark`"
_Row = dict[str, str]


class ResultsFolder:
    """A folder with, for each NAME, some of NAME.csv (`TIDY_COLUMNS`), NAME.json, NAME.md and
    NAME.html.

    Raises:
        DataError: the folder does not exist.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise DataError(f"--results {folder}: expected a folder of results")
        self.folder = folder

    def tables(self) -> list[dict[str, Any]]:
        """Returns name, title, has_numbers and has_page of every table with numbers or a page."""
        names = {path.stem for path in self.folder.iterdir() if path.suffix in (".csv", ".json")}
        found = []
        for name in sorted(names):
            path = self.folder / f"{name}.csv"
            has_numbers = path.is_file() and _is_tidy(path)
            page = self.page(name)
            if has_numbers or page is not None:
                title = self._title(name)
                found.append({
                    "name": name, "title": title, "has_numbers": has_numbers,
                    "has_page": page is not None,
                })  # fmt: skip
        return found

    def page(self, name: str) -> Path | None:
        """Returns the path of a table's HTML page; None if there is none."""
        path = self.folder / f"{name}.html"
        return path if path.is_file() else None

    def board(self, name: str, chosen: Mapping[str, str]) -> dict[str, Any]:
        """Returns a table filtered to one value per facet, with its facts and verdict.

        Args:
            name: name from `tables`.
            chosen: facet -> value; a missing or unknown value selects the default (see `_FIRST`).

        Returns:
            `facets`: name, values, chosen; `columns`: key, title, unit, better; `lines`: model,
            seeds, n, and `values` with the mean over seeds and the half width of its 95 % interval
            for every metric; `facts`; `verdict`: title -> sentences; and the fields of `tables`.

        Raises:
            NotFoundError: the table does not exist.
            DataError: a file is damaged.
        """
        known = next((one for one in self.tables() if one["name"] == name), None)
        if known is None:
            raise NotFoundError(f"no results {name[:100]!r}; list them with `/v1/results`")
        path = self.folder / f"{name}.csv"
        rows = _rows(path) if known["has_numbers"] else []
        facets = []
        for facet in FACETS if rows else ():
            values = sorted({row[facet] for row in rows})
            value = _chosen(values, chosen.get(facet))
            rows = [row for row in rows if row[facet] == value]
            facets.append({"name": facet, "values": values, "chosen": value})
        columns = _columns(rows)
        lines = [_line(model, of, columns) for model, of in _by(rows, "model").items()]
        facts, verdict = self._said(name)
        return {
            **known, "facets": facets, "columns": [asdict(column) for column in columns],
            "lines": lines, "facts": facts, "verdict": verdict,
        }  # fmt: skip

    def _title(self, name: str) -> str:
        path = self.folder / f"{name}.md"
        if not path.is_file():
            return name
        first = read_text(path, expected="a page of results").lstrip().split("\n", 1)[0]
        return first.removeprefix("# ").strip() or name

    def _said(self, name: str) -> tuple[dict[str, str], dict[str, list[str]]]:
        path = self.folder / f"{name}.json"
        value = read_json(path, what="file of results", hint=_HINT) if path.is_file() else {}
        if not isinstance(value, dict):
            return {}, {}
        facts = {key: str(value[key]) for key in _FACTS if value.get(key)}
        verdict = value.get("verdict")
        if not isinstance(verdict, dict):
            return facts, {}
        texts = {
            title: [one["text"] for one in found if isinstance(one, dict) and "text" in one]
            for title, found in verdict.items()
            if isinstance(found, list)
        }
        return facts, {title: found for title, found in texts.items() if found}


def _is_tidy(path: Path) -> bool:
    with path.open(encoding="utf-8", errors="replace", newline="") as stream:
        return stream.readline().strip() == ",".join(TIDY_COLUMNS)


def _rows(path: Path) -> list[_Row]:
    text = read_text(path, expected="a table of results")
    rows = list(csv.DictReader(text.splitlines()))
    if any(None in row or None in row.values() for row in rows):
        raise DataError(f"{path.name} has rows of another length than its header; {_HINT}")
    return rows


def _chosen(values: Sequence[str], asked: str | None) -> str:
    if asked in values:
        return str(asked)
    return next((value for value in _FIRST if value in values), values[0])


def _by(rows: Sequence[_Row], key: str) -> dict[str, list[_Row]]:
    found: dict[str, list[_Row]] = {}
    for row in rows:
        found.setdefault(row[key], []).append(row)
    return found


def _columns(rows: Sequence[_Row]) -> list[Column]:
    """Returns the columns of the rows' metrics, those of `COLUMNS` first."""
    found = list(dict.fromkeys(row["metric"] for row in rows))
    known = [column for column in COLUMNS if column.key in found]
    others = [key for key in found if key not in _KNOWN]
    units = ("seconds" if key.endswith("_s") and "per_" not in key else "number" for key in others)
    return known + [
        Column(key, key.replace("_", " "), unit, None)
        for key, unit in zip(others, units, strict=True)
    ]


def _line(model: str, rows: Sequence[_Row], columns: Sequence[Column]) -> dict[str, Any]:
    # Rows without a numeric seed hold for all seeds; they are used only if there are no others.
    rows = [row for row in rows if row["seed"].isdigit()] or rows
    by_metric = _by(rows, "metric")
    counts = [value for row in rows if (value := _number(row["n"])) is not None]
    values = {}
    for column in columns:
        read = (_number(row["value"]) for row in by_metric.get(column.key, ()))
        known = [value for value in read if value is not None]
        mean, half = mean_and_interval(known) if known else (None, None)
        values[column.key] = {"mean": mean, "half": half}
    return {
        "model": model, "seeds": len({row["seed"] for row in rows}),
        "n": max(counts, default=None), "values": values,
    }  # fmt: skip


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
