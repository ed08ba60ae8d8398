"""Tables on stdout; those of metrics with rich on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from cdmpp.report.tables import Table, text_table

_STYLES = {"model": "bold", "oracle": "italic dim", "baseline": ""}


def print_metric_tables(tables: Iterable[Table]) -> None:
    """Prints tables, one below the other."""
    if not sys.stdout.isatty():
        for table in tables:
            print(f"{table.title}\n{text_table(table)}\n")
        return
    from rich.console import Console
    from rich.table import Table as RichTable

    console = Console()
    for table in tables:
        shown = RichTable(title=table.title, title_justify="left", header_style="dim")
        for place, title in enumerate(table.header):
            shown.add_column(title, justify="right" if place else "left")
        for row in table.rows:
            cells = [f"[cyan]{cell.text}[/]" if cell.best else cell.text for cell in row.cells]
            shown.add_row(row.name, *cells, style=_STYLES[row.role])
        console.print(shown)
