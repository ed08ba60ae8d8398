"""Tables of metrics on stdout, with colour on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from cdmpp.report.tables import Table, text_table

_DIM, _BOLD, _ITALIC, _CYAN, _PLAIN = "\033[2m", "\033[1m", "\033[3m", "\033[36m", "\033[0m"
_STYLES = {"model": _BOLD, "oracle": _ITALIC}


def print_metric_tables(tables: Iterable[Table]) -> None:
    """Prints tables, one below the other."""
    for table in tables:
        print(f"{table.title}\n{_painted(table) if sys.stdout.isatty() else text_table(table)}\n")


def _painted(table: Table) -> str:
    """Returns a table with dim titles, the model in bold, and the best values in colour."""

    def paint(row: int, column: int, text: str) -> str:
        if not row:
            return f"{_DIM}{text}{_PLAIN}"
        line = table.rows[row - 1]
        is_best = column > 0 and line.cells[column - 1].best
        style = _STYLES.get(line.role, "") + (_CYAN if is_best else "")
        return f"{style}{text}{_PLAIN}" if style else text

    return text_table(table, paint=paint)
