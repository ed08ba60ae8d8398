"""Cells as tables of text, the same for the terminal and the page."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from cdmpp.compare.cell import CompareCell, Objective, front, ranked
from cdmpp.text import interval_text

_FITS = {True: "yes", False: "no", None: "not sure"}
_UNKNOWN = "unknown"
_GIB = 1024.0**3


def groups(cells: Sequence[CompareCell]) -> list[tuple[str, list[CompareCell]]]:
    """Returns title and cells of every network at every batch, in the order of the cells."""

    def title(cell: CompareCell) -> str:
        each = f", {cell.degree} devices" if cell.degree > 1 else ""
        return f"{cell.network}, batch {cell.batch}{each}"

    order = {name: place for place, name in enumerate(dict.fromkeys(map(title, cells)))}
    gathered = sorted(cells, key=lambda cell: order[title(cell)])
    return [(name, list(part)) for name, part in groupby(gathered, title)]


def axes_of(cells: Sequence[CompareCell]) -> tuple[Objective, Objective]:
    """Returns what the front of these cells weighs: cost and latency, or energy and latency where
    fewer than two have a price.
    """
    priced = [cell for cell in cells if cell.cost_per_million is not None]
    return ("cost" if len(priced) > 1 else "energy"), "latency"


def json_rows(cells: Sequence[CompareCell]) -> list[dict[str, Any]]:
    """Returns one flat JSON object a cell, in their order, with whether it is on its front."""
    best = {id(cell) for _, part in groups(cells) for cell in front(part, *axes_of(part))}
    return [cell.to_json() | {"is_on_front": id(cell) in best} for cell in cells]


def titles(cells: Sequence[CompareCell]) -> list[str]:
    """Returns the titles of one network's table."""
    item = cells[0].item
    return [
        "device", "latency [90 %]", "memory", "fits", f"{item}s/s", f"$/million {item}s",
        f"J/{item}, at most", "answered by",
    ]  # fmt: skip


def rows(cells: Sequence[CompareCell], objective: Objective) -> list[list[str]]:
    """Returns the lines of one network's table below `titles`, best first, of the devices that have
    a latency; `notes` says why others have none.
    """
    on_front = {cell.device for cell in front(cells, *axes_of(cells))}
    known = [cell for cell in ranked(cells, objective) if cell.latency_s is not None]
    return [_row(cell, cell.device in on_front) for cell in known]


def _row(cell: CompareCell, is_on_front: bool) -> list[str]:
    name = cell.device + (" *" if is_on_front else "") + (" ?" if cell.is_hypothetical else "")
    return [
        name, interval_text(cell.latency_s, cell.low_s, cell.high_s),
        memory_text(cell), _fits(cell), number(cell.throughput_per_s),
        number(cell.cost_per_million), number(cell.energy_bound_j), cell.method or "-",
    ]  # fmt: skip


def _fits(cell: CompareCell) -> str:
    return _UNKNOWN if cell.memory_limit_bytes is None else _FITS[cell.fits]


def memory_text(cell: CompareCell) -> str:
    """Returns e.g. `15.9 of 80 GiB`."""
    if cell.memory_bytes is None:
        return _UNKNOWN
    needed = cell.memory_bytes / _GIB
    limit = "" if cell.memory_limit_bytes is None else f" of {cell.memory_limit_bytes / _GIB:.0f}"
    return f"{needed:.3g}{limit} GiB"


def number(value: float | None) -> str:
    """Returns three significant digits without an exponent, e.g. `1,230` or `0.0456`."""
    if value is None:
        return _UNKNOWN
    if value >= 1000:
        digits = len(str(int(value))) - 3
        return f"{round(value, -digits):,.0f}"
    return f"{value:#.3g}".rstrip(".") if value >= 1e-4 else f"{value:.2e}"


def notes(cells: Sequence[CompareCell]) -> list[str]:
    """Returns why cells have no latency or are guesses: equal reasons once, with their devices."""
    devices: dict[tuple[str, ...], list[str]] = {}
    for cell in cells:
        if cell.reasons:
            reasons = tuple(reason.replace(cell.device, "it") for reason in cell.reasons)
            devices.setdefault(reasons, []).append(cell.device)
    return [
        f"{', '.join(dict.fromkeys(names))}: {'; '.join(reasons)}"
        for reasons, names in devices.items()
    ]
