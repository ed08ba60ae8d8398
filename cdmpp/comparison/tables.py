"""Cells as text tables for the terminal and the HTML page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from cdmpp.comparison.cell import CompareCell, Objective, is_on_front, ranked, ranks
from cdmpp.text import interval_text, listed, seconds_text

_FITS = {True: "yes", False: "no", None: "not sure"}
_UNKNOWN = "unknown"
_GIB = 1024.0**3
#: Maximum number of tied devices to name.
_MOST_NAMED = 6


def groups(cells: Sequence[CompareCell]) -> list[tuple[str, list[CompareCell]]]:
    """Returns the title and cells of every network and batch, in cell order."""

    def title(cell: CompareCell) -> str:
        each = f", {cell.degree} devices" if cell.degree > 1 else ""
        return f"{cell.network}, batch {cell.batch}{each}"

    order = {name: place for place, name in enumerate(dict.fromkeys(map(title, cells)))}
    gathered = sorted(cells, key=lambda cell: order[title(cell)])
    return [(name, list(part)) for name, part in groupby(gathered, title)]


def axes_of(cells: Sequence[CompareCell]) -> tuple[Objective, Objective]:
    """Returns the objectives of the Pareto front: cost and latency, or energy and latency if fewer
    than two devices have a price.
    """
    priced = [cell for cell in cells if cell.cost_per_million is not None]
    return ("cost" if len(priced) > 1 else "energy"), "latency"


@dataclass(frozen=True)
class _Place:
    """Position of a cell among those of its network.

    Attributes:
        rank: see `ranks`.
        is_tied: whether another cell has the same rank.
        is_on_front: see `is_on_front`.
    """

    rank: int | None
    is_tied: bool
    is_on_front: bool | None


def _places(cells: Sequence[CompareCell], objective: Objective) -> dict[int, _Place]:
    """Returns the position of each cell of one network, by the cell's `id`."""
    found = ranks(cells, objective)
    fronts = is_on_front(cells, *axes_of(cells))
    return {
        id(cell): _Place(rank, rank is not None and found.count(rank) > 1, on_front)
        for cell, rank, on_front in zip(cells, found, fronts, strict=True)
    }


def json_rows(cells: Sequence[CompareCell], objective: Objective) -> list[dict[str, Any]]:
    """Returns a flat JSON object per cell, in order, with its position in its network: `rank`,
    `is_tied`, `is_on_front` (null = unknown, e.g. without a price).
    """
    places: dict[int, _Place] = {}
    for _, part in groups(cells):
        places |= _places(part, objective)
    return [cell.to_json() | vars(places[id(cell)]) for cell in cells]


def titles(cells: Sequence[CompareCell]) -> list[str]:
    """Returns the titles of a table; with different kinds of networks the unit is `item`."""
    items = {cell.item for cell in cells}
    item = items.pop() if len(items) == 1 else "item"
    return [
        "device", "rank", "latency [interval]", "memory", "fits", f"{item}s/s",
        f"$/million {item}s", f"J/{item}, at most", "answered by",
    ]  # fmt: skip


def rows(cells: Sequence[CompareCell], objective: Objective) -> list[list[str]]:
    """Returns the rows of one network's table below `titles`, best first, for devices with a
    latency. Numbers refer to `notes`, which also explain missing devices.
    """
    places, remarks = _places(cells, objective), _remarks(cells, objective)
    numbers = _numbers(remarks)
    return [
        _row(cell, places[id(cell)], [numbers[text] for text in said]) for cell, said in remarks
    ]


def _row(cell: CompareCell, place: _Place, numbers: Sequence[int]) -> list[str]:
    name = cell.device + (" *" if place.is_on_front else "")
    name += (" ?" if cell.is_hypothetical else "") + (" " if numbers else "")
    rank = "-" if place.rank is None else f"{place.rank}{'=' if place.is_tied else ''}"
    name += "".join(f"[{one}]" for one in numbers)
    return [
        name, rank, interval_text(cell.latency_s, cell.low_s, cell.high_s),
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
    """Returns three significant digits, e.g. `1,230` or `0.0456`; an exponent below 1e-4."""
    if value is None:
        return _UNKNOWN
    if value >= 999.5:
        digits = len(str(int(value))) - 3
        return f"{round(value, -digits):,.0f}"
    return f"{value:#.3g}".rstrip(".") if value >= 1e-4 else f"{value:.2e}"


def operator_tables(cells: Sequence[CompareCell]) -> list[tuple[str, list[list[str]]]]:
    """Returns a table for each kind of layer: the seconds of its operators, all launches together,
    on every device with a latency.
    """
    known = [cell for cell in cells if cell.operators]
    found: dict[tuple[str, str], list[str]] = {}
    for place, cell in enumerate(known):
        sums: dict[tuple[str, str], float] = {}
        for one in cell.operators:
            key = one.layer, one.what
            sums[key] = sums.get(key, 0.0) + one.seconds
        for key, seconds in sums.items():
            line = found.setdefault(key, ["-"] * len(known))
            line[place] = seconds_text(seconds)
    titles = ["operator", *(cell.device for cell in known)]
    return [
        (layer, [titles, *([what, *line] for (own, what), line in found.items() if own == layer)])
        for layer in dict.fromkeys(layer for layer, _ in found)
    ]


def notes(cells: Sequence[CompareCell], objective: Objective) -> list[str]:
    """Returns the notes on the `rows` of one network: ties, mixed methods, the numbered notes, and
    why devices have no row.
    """
    remarks = _remarks(cells, objective)
    found = _general(cells, objective)
    found += [f"[{number}] {text}" for text, number in _numbers(remarks).items()]
    missing: dict[tuple[str, ...], list[str]] = {}
    for cell in cells:
        if cell.latency_s is None:
            missing.setdefault(_said(cell), []).append(cell.device)
    found += [
        f"{', '.join(dict.fromkeys(names))}: {'; '.join(said) or 'no prediction'}"
        for said, names in missing.items()
    ]
    return found


def _general(cells: Sequence[CompareCell], objective: Objective) -> list[str]:
    """Returns the notes on all rows of one network."""
    places, found = _places(cells, objective), []
    first = [cell.device for cell in ranked(cells, objective) if places[id(cell)].rank == 1]
    if len(first) > 1:
        more = len(first) - _MOST_NAMED
        named = first if more <= 1 else [*first[:_MOST_NAMED], f"{more} more"]
        found.append(f"{listed(named)} are tied: their intervals of {objective} overlap")
    if axes_of(cells)[0] == "energy" and sum(cell.latency_s is not None for cell in cells) > 1:
        found.append("fewer than two prices are known: the Pareto front is of energy and latency")
    methods = sorted({cell.method for cell in cells if cell.method})
    if len(methods) > 1:
        found.append(
            f"{listed(methods)} are compared, and a device may rank better only because of its "
            "method: rooflines are usually faster than measurements"
        )
    return found


def _remarks(
    cells: Sequence[CompareCell], objective: Objective
) -> list[tuple[CompareCell, list[str]]]:
    """Returns the cells of one network with a row, best first, and the notes on each."""
    places, (first, second) = _places(cells, objective), axes_of(cells)
    lacks = "price" if first == "cost" else "power limit"
    found = []
    for cell in ranked(cells, objective):
        if cell.latency_s is None:
            continue
        said = list(_said(cell))
        if cell.value(first) is None:
            is_best = places[id(cell)].is_on_front
            place = f"on the front by {second} only" if is_best else "its place is unknown"
            said.append(f"{lacks} unknown, {place}: the Pareto front is of {first} and {second}")
        found.append((cell, said))
    return found


def _numbers(remarks: Sequence[tuple[CompareCell, list[str]]]) -> dict[str, int]:
    """Returns the distinct notes with their numbers."""
    texts = dict.fromkeys(text for _, said in remarks for text in said)
    return {text: number for number, text in enumerate(texts, start=1)}


def _said(cell: CompareCell) -> tuple[str, ...]:
    """Returns the reasons of a cell with its device as `it`, so that equal reasons are merged."""
    name = re.compile(rf"(?<![\w-]){re.escape(cell.device)}(?![\w-])")
    return tuple(name.sub("it", reason) for reason in cell.reasons)
