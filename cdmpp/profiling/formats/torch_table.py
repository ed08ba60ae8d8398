"""The printed table of torch.profiler: `profiler.key_averages().table()`, saved as text."""

from __future__ import annotations

import re
from pathlib import Path

from cdmpp.errors import DataError
from cdmpp.files.open_text import bad_line
from cdmpp.profiling.formats.names import short_name
from cdmpp.profiling.formats.summary_rows import device_kind
from cdmpp.profiling.formats.units import number, seconds
from cdmpp.profiling.schema import Kind, Profile, ProfileRow

FORMAT = "torch.profiler table"
_CALLS = "# of Calls"
_NEEDED = ("Name", "Self CPU", "CPU total", _CALLS)
#: The line above and below the header: a run of dashes per column.
_RULE = re.compile(r"^-+(?:  -+)+ *$")
_ON_DEVICE = re.compile(r"^Self (?!CPU)(\w+)$")
_TOTAL = re.compile(r"^Self CPU time total: (\d+(?:\.\d+)?[mun]?s)\s*$", re.MULTILINE)
_MOST_OF_IT = 0.95


def is_torch_table(text: str) -> bool:
    """Whether a text contains a table of torch.profiler."""
    lines = text.splitlines() if _CALLS in text else []
    return any(_columns(lines, rule) for rule in _rules(lines))


def read_torch_table(path: Path, text: str) -> Profile:
    """Returns the rows of the table. Rows with GPU time but no CPU time are GPU kernels.

    Raises:
        DataError: several tables, no row, or an invalid line.
    """
    lines = text.splitlines()
    starts = [rule for rule in _rules(lines) if _columns(lines, rule)]
    if len(starts) > 1:
        raise DataError(
            f"{path}: {len(starts)} tables of torch.profiler, expected one; save each to a file"
        )
    spans = _columns(lines, starts[0])
    rows = []
    for place in range(starts[0] + 3, len(lines)):
        if _RULE.match(lines[place]):
            break
        cells = {name: lines[place][begin:end].strip() for name, (begin, end) in spans.items()}
        try:
            rows.append(_row(cells))
        except ValueError as error:
            expected = "a row with the columns of the header"
            raise bad_line(path, place + 1, error, expected) from None
    if not rows:
        raise DataError(f"{path}: a table of torch.profiler without rows; expected at least one")
    return Profile(str(path), FORMAT, tuple(rows), notes=_notes(text, rows))


def _rules(lines: list[str]) -> list[int]:
    return [place for place, line in enumerate(lines) if _RULE.match(line)]


def _columns(lines: list[str], rule: int) -> dict[str, tuple[int, int]]:
    """Returns name -> (begin, end) of the columns below a rule; empty without a header."""
    if rule + 2 >= len(lines) or not _RULE.match(lines[rule + 2]):
        return {}
    spans = [found.span() for found in re.finditer("-+", lines[rule])]
    names = re.split(" {2,}", lines[rule + 1].strip())  # `CUDA time avg` exceeds its column
    is_whole = len(names) == len(spans) and {*names} >= {*_NEEDED}
    return dict(zip(names, spans, strict=True)) if is_whole else {}


def _row(cells: dict[str, str]) -> ProfileRow:
    name, calls = cells["Name"], int(number(cells[_CALLS]))
    self_s, total_s = seconds(cells["Self CPU"]), seconds(cells["CPU total"])
    kind: Kind = "api" if re.match(r"(cuda|hip|cu)[A-Z]", name) else "cpu_op"
    device = next((key for key in cells if _ON_DEVICE.match(key)), None)
    if device is not None and not total_s and seconds(cells[device]):
        kind = "memcpy" if name.startswith("Memcpy") else device_kind(name)
        self_s = total_s = seconds(cells[device])
    return ProfileRow(
        kind=kind, name=name, short_name=short_name(name), calls=calls, total_s=total_s,
        min_s=None, max_s=None, self_s=self_s,
    )  # fmt: skip


def _notes(text: str, rows: list[ProfileRow]) -> tuple[str, ...]:
    found = _TOTAL.search(text)
    shown = sum(row.self_s or 0.0 for row in rows if row.kind in ("api", "cpu_op"))
    if found is None or shown >= _MOST_OF_IT * (total := seconds(found[1])):
        return ()
    return (f"the table has {100 * shown / total:.0f} % of the time of the CPU: print it with "
            "row_limit=-1",)  # fmt: skip
