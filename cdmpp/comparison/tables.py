"""Cells as tables of text, the same for the terminal and the page."""

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
#: So many devices of one rank are named.
_MOST_NAMED = 6


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


@dataclass(frozen=True)
class _Place:
    """Where a cell stands among those of its network.

    Attributes:
        rank: see `ranks`.
        is_tied: whether another has its rank: they cannot be told apart.
        is_on_front: see `is_on_front`.
    """

    rank: int | None
    is_tied: bool
    is_on_front: bool | None


def _places(cells: Sequence[CompareCell], objective: Objective) -> dict[int, _Place]:
    """Returns the place of each cell of one network, by its `id`."""
    found = ranks(cells, objective)
    fronts = is_on_front(cells, *axes_of(cells))
    return {
        id(cell): _Place(rank, rank is not None and found.count(rank) > 1, on_front)
        for cell, rank, on_front in zip(cells, found, fronts, strict=True)
    }


def json_rows(cells: Sequence[CompareCell], objective: Objective) -> list[dict[str, Any]]:
    """Returns one flat JSON object a cell, in their order, with its place among those of its
    network: `rank`, `is_tied`, `is_on_front` (null = not known, e.g. without a price).
    """
    places: dict[int, _Place] = {}
    for _, part in groups(cells):
        places |= _places(part, objective)
    return [cell.to_json() | vars(places[id(cell)]) for cell in cells]


def titles(cells: Sequence[CompareCell]) -> list[str]:
    """Returns the titles of a table; one of several kinds of networks counts items."""
    items = {cell.item for cell in cells}
    item = items.pop() if len(items) == 1 else "item"
    return [
        "device", "rank", "latency [interval]", "memory", "fits", f"{item}s/s",
        f"$/million {item}s", f"J/{item}, at most", "answered by",
    ]  # fmt: skip


def rows(cells: Sequence[CompareCell], objective: Objective) -> list[list[str]]:
    """Returns the lines of one network's table below `titles`, best first, of the devices that have
    a latency, with the numbers of their `notes`, which also say why others have none.
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
    """Returns three significant digits without an exponent, e.g. `1,230` or `0.0456`."""
    if value is None:
        return _UNKNOWN
    if value >= 1000:
        digits = len(str(int(value))) - 3
        return f"{round(value, -digits):,.0f}"
    return f"{value:#.3g}".rstrip(".") if value >= 1e-4 else f"{value:.2e}"


def operator_tables(cells: Sequence[CompareCell]) -> list[tuple[str, list[list[str]]]]:
    """Returns for each kind of layer titles and lines of what its operators take, all launches
    together, on every device that has a latency.
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
    """Returns what is to be known beside the `rows` of one network: which devices cannot be told
    apart and whether methods are mixed, then the numbered notes, then why devices have no row.
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
    """Returns the cells of one network that have a row, best first, and what is said of each."""
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
    """Returns each note once, with its number."""
    texts = dict.fromkeys(text for _, said in remarks for text in said)
    return {text: number for number, text in enumerate(texts, start=1)}


def _said(cell: CompareCell) -> tuple[str, ...]:
    """Returns the reasons of a cell, its device being `it`: equal ones are said once."""
    name = re.compile(rf"(?<![\w-]){re.escape(cell.device)}(?![\w-])")
    return tuple(name.sub("it", reason) for reason in cell.reasons)
