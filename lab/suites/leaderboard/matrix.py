"""Tables of lines by groups: errors and ranks per dataset, device, budget or operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cdmpp.report.tables import Cell, Row, Table, format_value, over_seeds, role_of
from lab.suites.plan import is_reference


def matrix_table(
    title: str,
    note: str,
    lines: Sequence[str],
    groups: Mapping[str, Mapping[str, Mapping[int, Mapping[str, Any]]]],
    *,
    subject: str,
) -> Table:
    """Returns one cell per line and group: MAPE ± interval, and mean Spearman within a task.

    The lowest MAPE of a group is marked.

    Args:
        lines: rows, in order.
        groups: column title -> line -> seed -> metrics.
    """
    rows: dict[str, list[Cell]] = {line: [] for line in lines}
    for by_line in groups.values():
        seeds = {line: list(by_line.get(line, {}).values()) for line in lines}
        errors = {line: over_seeds(seeds[line], "mape") for line in lines}
        rivals = [m for line, (m, _) in errors.items() if not is_reference(line) and m is not None]
        for line, (mape, half) in errors.items():
            rank = over_seeds(seeds[line], "spearman_by_task")[0]
            text = "-"
            if mape is not None or rank is not None:
                spread = "" if half is None else f" ± {format_value(half, 'percent')}"
                rank_text = "-" if rank is None else f"{rank:.2f}"
                text = f"{format_value(mape, 'percent')}{spread} / {rank_text}"
            is_best = not is_reference(line) and mape is not None and mape == min(rivals)
            rows[line].append(Cell(text, best=is_best))
    references = [line for line in lines if is_reference(line)]
    return Table(
        title,
        note,
        ("", *groups),
        tuple(Row(n, role_of(n, subject, references), tuple(cells)) for n, cells in rows.items()),
    )
