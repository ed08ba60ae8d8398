"""Tables on stdout; those of metrics with rich on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from cdmpp.report.tables import COLUMNS, Group, text_table

_STYLES = {"model": "bold", "oracle": "italic dim", "baseline": ""}


def print_groups(groups: Iterable[Group]) -> None:
    """Prints one table a group."""
    if not sys.stdout.isatty():
        for group in groups:
            print(f"{group.title}\n{text_table(group)}\n")
        return
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for group in groups:
        table = Table(title=group.title, title_justify="left", header_style="dim")
        table.add_column("")
        for column in COLUMNS:
            table.add_column(column.title, justify="right")
        for row in group.rows:
            cells = [f"[cyan]{cell.text}[/]" if cell.best else cell.text for cell in row.cells]
            table.add_row(row.name, *cells, style=_STYLES[row.role])
        console.print(table)
