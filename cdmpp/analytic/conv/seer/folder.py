"""A folder of workbooks in the original's layout, one per kernel variant."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cdmpp.analytic.conv.algorithms import AlgoConvention
from cdmpp.analytic.conv.seer.fitting import table_names
from cdmpp.analytic.conv.seer.splits import SplitKind, divide
from cdmpp.analytic.conv.seer.table import ConvTable, PickTable, pick_table
from cdmpp.analytic.conv.seer.workbook import SHEETS, read_pick_workbook, read_workbook
from cdmpp.errors import DataError

LAYER_TABLE = "conv-test-set-II"
PICK_TABLE = "Algo-pick-set"
_TRAIN, _TEST = SHEETS


@dataclass(frozen=True)
class ConvFolder:
    """The tables of a folder, split into training and test rows.

    Attributes:
        train: table name -> training rows.
        test: table name -> test rows.
        layers: layers with the time of their best algorithm (Test-set-II); None without the table.
        picks: layers with the time of every algorithm; None without the table.
    """

    train: dict[str, ConvTable]
    test: dict[str, ConvTable]
    layers: PickTable | None
    picks: PickTable | None


def read_folder(
    folder: Path,
    *,
    algo_convention: AlgoConvention | None = None,
    split: SplitKind | None = None,
    seed: int = 0,
    is_checked: bool = True,
) -> ConvFolder:
    """Reads the workbooks of a folder, `.xlsx` or csv, named as in `fitting.table_names`.

    Args:
        algo_convention: convention of the algorithm numbers; None = the one that each file names.
        split: split of all rows of a workbook; None = its sheets `train` and `test`.
        seed: seed of the split.
        is_checked: whether rows that contradict the convention are rejected.

    Raises:
        UsageError: a convention is needed and not given, or openpyxl is missing.
        DataError: no workbook, a malformed one, or an unknown name.
    """
    folder = Path(folder)
    _check_names(folder)
    train: dict[str, ConvTable] = {}
    test: dict[str, ConvTable] = {}
    for name in table_names():
        path = _find(folder, name)
        if path is None:
            continue
        sheets = read_workbook(path, algo_convention=algo_convention, is_checked=is_checked)
        parts = _divided(sheets, split, seed, path)
        train[name], test[name] = parts
    layers_path, picks_path = _find(folder, LAYER_TABLE), _find(folder, PICK_TABLE)
    if not train and layers_path is None and picks_path is None:
        raise DataError(
            f"{folder}: no workbook found; expected e.g. {table_names()[0]}.xlsx or "
            f"{table_names()[0]}.train.csv"
        )
    layers = None
    if layers_path is not None:
        sheets = read_workbook(layers_path, algo_convention=algo_convention, is_checked=False)
        layers = pick_table(list(sheets.values()))
    picks = None
    if picks_path is not None:
        found = read_pick_workbook(picks_path, algo_convention=algo_convention)
        picks = next(iter(found.values()))
    return ConvFolder(
        {name: table for name, table in train.items() if len(table)},
        {name: table for name, table in test.items() if len(table)},
        layers,
        picks,
    )


def _divided(
    sheets: dict[str, ConvTable], split: SplitKind | None, seed: int, path: Path
) -> tuple[ConvTable, ConvTable]:
    if split is not None:
        table = ConvTable.concatenate(list(sheets.values()))
        train, test = divide(table.shapes, table.time_ms, split, seed=seed)
        return table[train], table[test]
    missing = [name for name in SHEETS if name not in sheets]
    if missing:
        raise DataError(
            f"{path}: got sheets {', '.join(sheets)}; expected {_TRAIN} and {_TEST} (or "
            "Training-set and Test-set-I), or a split with --split family"
        )
    others = [name for name in sheets if name not in SHEETS]
    if others:
        raise DataError(
            f"{path}: sheets {', '.join(others)} are neither {_TRAIN} nor {_TEST}; remove them, or "
            "use all rows with --split family"
        )
    return sheets[_TRAIN], sheets[_TEST]


def _check_names(folder: Path) -> None:
    """Checks that all tables of the folder have known names, so that none is ignored.

    Raises:
        DataError: unknown names.
    """
    known = {*table_names(), LAYER_TABLE, PICK_TABLE}
    unknown = [
        path.name
        for path in sorted(folder.glob("*"))
        if path.suffix in (".xlsx", ".csv")
        and not path.name.startswith(("~$", "."))
        and path.stem not in known
        and path.stem.rpartition(".")[0] not in known
    ]
    if unknown:
        raise DataError(
            f"{folder}: unknown kernel variant of {', '.join(unknown)}; a workbook is named "
            "after its kernel variant, NAME.xlsx or NAME.train.csv and NAME.test.csv with NAME "
            f"one of {', '.join(sorted(known))}: rename it, or move it out of the folder (times "
            "of other operators: cdmpp analytic conv fit --operators CSV)"
        )


def _find(folder: Path, name: str) -> Path | None:
    book = folder / f"{name}.xlsx"
    if book.exists():
        return book
    return folder / name if any(folder.glob(f"{name}.*.csv")) else None
