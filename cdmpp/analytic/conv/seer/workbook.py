"""The original's workbooks of 18 columns: one per kernel variant, with sheets `train` and `test`
(or `Training-set` and `Test-set-I`).

`NAME.xlsx` contains the sheets; as csv every sheet is a file `NAME.SHEET.csv`. The first row names
the columns. The ninth column is `algo_cudnn` or `algo_readme`, the convention of the file's
algorithm numbers. Files without names (the original's) can be read as well.
"""

from __future__ import annotations

import csv
import math
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np

from cdmpp.analytic.conv.algorithms import (
    ALGORITHM_COUNT,
    AlgoConvention,
    ConvAlgorithm,
    from_cudnn,
    is_supported,
    to_cudnn,
)
from cdmpp.analytic.conv.seer.table import ConvTable, PickTable
from cdmpp.analytic.conv.shapes import SHAPE_NAMES, ConvShapes
from cdmpp.arrays import FloatArray, IntArray
from cdmpp.errors import DataError, UsageError
from cdmpp.extras import require
from cdmpp.files.atomic import write_atomic, write_text
from cdmpp.text import csv_text

#: The two sheets of a kernel's workbook.
SHEETS = ("train", "test")
#: Alternative names of these sheets, ignoring case, blanks and underscores.
_OTHER_SHEETS = {
    "training-set": "train", "train-set": "train", "training": "train", "test-set-i": "test",
    "test-set-1": "test", "test-set": "test",
}  # fmt: skip
_MEASURED = (
    "time_ms", "fp32_instructions", "dram_reads", "dram_writes", "resident", "blocks", "waves",
    "fp32_level", "dram_level",
)  # fmt: skip
_ALGORITHM_COLUMN = 8
_COLUMN_COUNT = len(SHAPE_NAMES) + 1 + len(_MEASURED)
#: Minimum number of rows of one algorithm for which "3x3 with stride 1 only" indicates Winograd.
_TELLING_ROWS = 8
_WIDE_NUMBERS = (4, 5)


def read_workbook(
    path: Path, *, algo_convention: AlgoConvention | None = None, is_checked: bool = True
) -> dict[str, ConvTable]:
    """Reads a workbook (`NAME.xlsx`, or `NAME` or `NAME.SHEET.csv` for csv); returns sheet name ->
    rows. Alternative names of the sheets `train` and `test` become these.

    Args:
        algo_convention: convention of the algorithm numbers; None = the one that the file names.
        is_checked: whether rows that contradict the convention are rejected.

    Raises:
        UsageError: neither the file nor the caller names a convention, or openpyxl is missing.
        DataError: the file is missing or malformed, names another convention, or its rows
            contradict it.
    """
    found: dict[str, ConvTable] = {}
    for name, rows in _read_sheets(Path(path)).items():
        plain = name.strip().lower().replace(" ", "-").replace("_", "-")
        settled = plain if plain in SHEETS else _OTHER_SHEETS.get(plain, name)
        if settled in found:
            raise DataError(f"{path}: two sheets are {settled!r}, one of them {name!r}; keep one")
        found[settled] = _table(rows, f"{path} sheet {name!r}", algo_convention, is_checked)
    return found


def write_workbook(
    path: Path, sheets: Mapping[str, ConvTable], *, algo_convention: AlgoConvention = "cudnn"
) -> list[Path]:
    """Writes a workbook and returns its files: one `.xlsx`, or one csv per sheet.

    Raises:
        UsageError: openpyxl is missing.
        DataError: the file cannot be written.
    """
    return _write_sheets(
        Path(path),
        {name: _rows(table, algo_convention) for name, table in sheets.items()},
    )


def read_pick_workbook(
    path: Path, *, algo_convention: AlgoConvention | None = None
) -> dict[str, PickTable]:
    """Reads an algorithm-pick workbook; returns sheet name -> layers. Columns 9 to 16 are the times
    of algorithms 0 to 7, 17 the best algorithm, 18 cuDNN's pick.

    Raises:
        UsageError: neither the file nor the caller names a convention.
        DataError: the file is malformed, or the recorded best is not the fastest time.
    """
    found: dict[str, PickTable] = {}
    for name, rows in _read_sheets(Path(path)).items():
        where = f"{path} sheet {name!r}"
        header, values = _split_header(rows, where)
        said = _convention_of(header[-1], "pick") if header else None
        convention = _settled(said, algo_convention, where)
        order = to_cudnn(np.arange(ALGORITHM_COUNT), convention)
        times = np.full((len(values), ALGORITHM_COUNT), np.inf)
        measured = values[:, _ALGORITHM_COLUMN : _ALGORITHM_COLUMN + ALGORITHM_COUNT]
        times[:, order] = np.where(np.isfinite(measured), measured, np.inf)
        best = to_cudnn(_whole(values[:, 16], "best algorithm", where), convention)
        pick = np.where(np.isfinite(values[:, 17]), values[:, 17], -1).astype(np.int64)
        pick[pick >= 0] = to_cudnn(pick[pick >= 0], convention)
        table = PickTable(_shapes(values, where), times, pick)
        lost = times[np.arange(len(best)), best] > table.best_ms
        if lost.any():
            raise DataError(
                f"{where}: row {int(np.flatnonzero(lost)[0]) + 1} names algorithm "
                f"{int(best[lost][0])} as best, but another is faster. Check the convention "
                f"{convention!r}: give --algo-convention"
            )
        found[name] = table
    return found


def check_convention(table: ConvTable, convention: AlgoConvention, where: str) -> None:
    """Checks a table's algorithm numbers against the shapes that cuDNN's algorithms support.

    Raises:
        DataError: Winograd rows with another filter or stride, or FFT rows that are all 3x3 with
            stride 1, which indicates Winograd.
    """
    advice = (
        f"check the convention {convention!r} of its algorithm numbers; give the other one with "
        "--algo-convention"
    )
    for algorithm in (ConvAlgorithm.WINOGRAD, ConvAlgorithm.WINOGRAD_NONFUSED):
        rows = np.flatnonzero(table.algorithm == algorithm)
        bad = rows[~is_supported(algorithm, table.shapes[rows])]
        if len(bad):
            k, s = table.shapes.kernel[bad[0]], table.shapes.stride[bad[0]]
            raise DataError(
                f"{where}: row {int(bad[0]) + 1} has {algorithm.name} for a {k}x{k} filter with "
                f"stride {s}, which is not supported; {advice}"
            )
    for number in _WIDE_NUMBERS:
        rows = np.flatnonzero(table.algorithm == number)
        three = (table.shapes.kernel[rows] == 3) & (table.shapes.stride[rows] == 1)
        if len(rows) >= _TELLING_ROWS and three.all():
            raise DataError(
                f"{where}: all {len(rows)} rows of {ConvAlgorithm(number).name} are 3x3 with "
                f"stride 1, as only Winograd's are; {advice}"
            )


def _table(
    rows: Sequence[Sequence[Any]],
    where: str,
    algo_convention: AlgoConvention | None,
    is_checked: bool,
) -> ConvTable:
    header, values = _split_header(rows, where)
    said = _convention_of(header[_ALGORITHM_COLUMN], "algo") if header else None
    convention = _settled(said, algo_convention, where)
    columns = values[:, _ALGORITHM_COLUMN + 1 :].T
    measured = dict(zip(_MEASURED, columns, strict=True))
    waves = measured.pop("waves")
    algorithm = to_cudnn(_whole(values[:, _ALGORITHM_COLUMN], "algorithm", where), convention)
    table = ConvTable(_shapes(values, where), algorithm, **measured)
    counted = np.isfinite(waves) & np.isfinite(table.blocks) & np.isfinite(table.resident)
    wrong = counted & (np.ceil(table.blocks / table.resident) != waves)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise DataError(
            f"{where}: row {row + 1} has {waves[row]:g} waves; expected "
            f"{np.ceil(table.blocks[row] / table.resident[row]):g} from its blocks"
        )
    if is_checked:
        check_convention(table, convention, where)
    return table


def _settled(
    said: AlgoConvention | None, asked: AlgoConvention | None, where: str
) -> AlgoConvention:
    if said is None and asked is None:
        raise UsageError(
            f"{where} does not name the convention of its algorithm numbers; give "
            "--algo-convention cudnn (4, 5 = FFT) or readme (4, 5 = Winograd)"
        )
    if said is not None and asked is not None and said != asked:
        raise DataError(
            f"{where} names {said!r} as the convention of its algorithm numbers; got "
            f"--algo-convention {asked}"
        )
    settled = asked or said
    assert settled is not None
    return settled


def _convention_of(text: str, prefix: str) -> AlgoConvention | None:
    for convention in get_args(AlgoConvention):
        if text.strip() == f"{prefix}_{convention}":
            found: AlgoConvention = convention
            return found
    return None


def _shapes(values: FloatArray, where: str) -> ConvShapes:
    return ConvShapes(*(_whole(values[:, i], name, where) for i, name in enumerate(SHAPE_NAMES)))


def _whole(column: FloatArray, what: str, where: str) -> IntArray:
    wrong = np.flatnonzero(~np.isfinite(column) | (column != np.floor(column)))
    if len(wrong):
        raise DataError(
            f"{where}: row {wrong[0] + 1}: {what} is {column[wrong[0]]:g}; expected a whole number"
        )
    return column.astype(np.int64)


def _rows(table: ConvTable, convention: AlgoConvention) -> list[list[Any]]:
    header: list[Any] = [*SHAPE_NAMES, f"algo_{convention}", *_MEASURED]
    numbers = from_cudnn(table.algorithm, convention)
    waves = np.ceil(table.blocks / table.resident)
    columns = [waves if name == "waves" else getattr(table, name) for name in _MEASURED]
    return [header] + [
        [
            *(int(getattr(table.shapes, name)[row]) for name in SHAPE_NAMES),
            int(numbers[row]),
            *(_cell(column[row]) for column in columns),
        ]
        for row in range(len(table))
    ]


def _cell(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _split_header(rows: Sequence[Sequence[Any]], where: str) -> tuple[list[str], FloatArray]:
    """Returns (texts of the first row if it is a header, float64 [R, 18])."""
    rows = [row for row in rows if any(cell not in (None, "") for cell in row)]
    header: list[str] = []
    if rows and not _is_number(next(cell for cell in rows[0] if cell not in (None, ""))):
        header = [str(cell) for cell in rows[0]]
        rows = rows[1:]
    widths = {len(row) for row in rows} | ({len(header)} if header else set())
    if not rows or any(width < _COLUMN_COUNT for width in widths):
        raise DataError(
            f"{where}: got {len(rows)} rows of {sorted(widths)} columns; expected at least one row "
            f"of {_COLUMN_COUNT}"
        )
    try:
        values = [[_number(cell) for cell in row[:_COLUMN_COUNT]] for row in rows]
    except ValueError as error:
        raise DataError(f"{where}: {error}; expected numbers below the first row") from None
    return header[:_COLUMN_COUNT], np.array(values, np.float64)


def _is_number(cell: Any) -> bool:
    try:
        float(cell)
    except (TypeError, ValueError):
        return False
    return True


def _number(cell: Any) -> float:
    return math.nan if cell in (None, "") else float(cell)


def _read_sheets(path: Path) -> dict[str, list[list[Any]]]:
    if path.suffix == ".xlsx":
        return _read_xlsx(path)
    if path.suffix == ".csv":
        name = path.name.removesuffix(".csv").rpartition(".")[2]
        return {name: _read_csv(path)}
    files = sorted(path.parent.glob(f"{path.name}.*.csv"))
    if not files:
        raise DataError(
            f"{path}: no workbook found; expected a file .xlsx or {path.name}.train.csv beside "
            f"{path.name}.test.csv"
        )
    return {file.name[len(path.name) + 1 : -len(".csv")]: _read_csv(file) for file in files}


def _read_csv(path: Path) -> list[list[Any]]:
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            return [list(row) for row in csv.reader(stream)]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot read the table ({error})") from None


def _read_xlsx(path: Path) -> dict[str, list[list[Any]]]:
    openpyxl = require("openpyxl", extra="analytic", purpose="reading .xlsx workbooks")
    try:
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: cannot read the workbook ({error})") from None
    try:
        return {
            sheet.title: [list(row) for row in sheet.iter_rows(values_only=True)]
            for sheet in book.worksheets
        }
    finally:
        book.close()


def _write_sheets(path: Path, sheets: Mapping[str, Iterable[Sequence[Any]]]) -> list[Path]:
    if path.suffix == ".xlsx":
        openpyxl = require("openpyxl", extra="analytic", purpose="writing .xlsx workbooks")
        book = openpyxl.Workbook()
        book.remove(book.active)
        for name, rows in sheets.items():
            sheet = book.create_sheet(name)
            for row in rows:
                sheet.append(list(row))
        write_atomic(path, lambda temporary: book.save(temporary))
        return [path]
    base = path.with_suffix("") if path.suffix == ".csv" else path
    written = []
    for name, rows in sheets.items():
        file = base.with_name(f"{base.name}.{name}.csv")
        titles, *lines = rows
        write_text(file, csv_text(titles, lines))
        written.append(file)
    return written
