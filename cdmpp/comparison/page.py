"""HTML page of a comparison: Pareto fronts, tables, methods and their evaluation."""

from __future__ import annotations

from collections.abc import Sequence

from cdmpp.comparison.cell import CompareCell, Objective, front, ranked, ranks
from cdmpp.comparison.compiled import METHOD as COMPILED
from cdmpp.comparison.plots import front_svg, parts_svg
from cdmpp.comparison.serving import METHOD
from cdmpp.comparison.tables import axes_of, groups, notes, number, rows, titles
from cdmpp.networks.gpu_operators import MEASURED, OPERATOR_ROOFLINES, OPERATORS, WHOLE_ROOFLINE
from cdmpp.report.page import Page, Section
from cdmpp.report.tables import plain_table
from cdmpp.text import seconds_text

#: Method -> description and evaluation.
METHODS = {
    METHOD: "sum of the transformer's kernels: matrix products, attention and collectives by "
    "models evaluated on devices left out of their fit (docs/results/gpu-kernels.md), "
    "element-wise kernels by the operator model; whole passes evaluated on figures published "
    "by NVIDIA (docs/results/compare.md)",
    MEASURED: "a model of whole networks, evaluated on unseen architectures on this device "
    "(docs/results/networks.md)",
    OPERATORS: "sum of the network's operators, each by the model of its kind for float32 on "
    "NVIDIA GPUs; evaluated on whole transformers from another source, on GPUs of the fit and "
    "on unseen GPUs, where the intervals cover less than their nominal share "
    "(docs/results/compare.md)",
    OPERATOR_ROOFLINES: "sum of the network's operators, each by the device's peak and "
    "bandwidth, at a quarter to a twentieth of these rates; evaluated on whole transformers on "
    "two AMD GPUs (docs/results/compare.md)",
    WHOLE_ROOFLINE: "the whole-network model on an unseen device: it follows the device's "
    "roofline, its interval is from a quarter to a twentieth of these rates; not evaluated there",
    COMPILED: "kernels compiled by TVM with default schedules, by the cost model "
    "(docs/results/replay.md)",
}


def comparison_page(cells: Sequence[CompareCell], objective: Objective, command: str) -> Page:
    """Returns the page of a comparison."""
    sections = [
        _section(title, part, objective, is_folded=place > 0)
        for place, (title, part) in enumerate(groups(cells))
    ]
    sections.append(_methods(cells))
    prices = _prices(cells)
    if prices is not None:
        sections.append(prices)
    guessed = [cell.device for cell in cells if cell.is_hypothetical]
    warning = (
        f"Hypothetical: {', '.join(dict.fromkeys(guessed))}; no such device is sold or was "
        "measured."
    )
    return Page(
        title="Which device?",
        lead=f"networks: {len(groups(cells))}, devices: {len({cell.device for cell in cells})}, "
        f"best {objective} first; predicted without running anything.",
        sections=sections,
        warnings=[warning] if guessed else [],
        tiles=_tiles(cells, objective),
        notes=[
            "Latency is one run at a time on an idle device. The intervals are calibrated to 90 "
            "%; the pages named above have their measured coverage. Rank: 1 plus the number of "
            "devices that are certainly better; = marks ties.",
            "Throughput is items over latency: runs do not overlap. An item is an inference, or "
            "a token that a transformer reads (prefill) or generates (decode).",
            "Cost is the price of the devices for the time of a run, assuming that they are "
            "never idle.",
            "Energy is the TDP of the devices times the time of a run: an upper bound, without "
            "the host.",
            "Memory is what the network needs, without the memory of libraries. Above 90 % of a "
            "device's memory the network may not fit.",
            "* on the Pareto front of the two quantities, if both are known; ? hypothetical; "
            "[1] see the note; unknown values are never counted as 0.",
        ],
        command=command,
    )


def _section(
    title: str, cells: Sequence[CompareCell], objective: Objective, *, is_folded: bool
) -> Section:
    first, second = axes_of(cells)
    plots = (
        [(_caption(first), front_svg(cells, first, second))] if front(cells, first, second) else []
    )
    split = [cell for cell in ranked(cells, "latency") if cell.parts]
    if split:
        plots.append(("Where the time goes, by kind of kernel.", parts_svg(split)))
    table = plain_table(titles(cells), rows(cells, objective))
    found = _best(cells, objective) or ("unknown", "no device has a value")
    return Section(
        title, "{} is best: {}.".format(*found), points=notes(cells, objective), plots=plots,
        tables=[table], is_folded=is_folded,
    )  # fmt: skip


def _caption(first: Objective) -> str:
    return (
        f"Latency against {'cost' if first == 'cost' else 'the energy bound'}; the line is the "
        "Pareto front. Bars are the intervals. Dashed: a latency without a known "
        f"{'price' if first == 'cost' else 'power limit'}."
    )


def _tiles(cells: Sequence[CompareCell], objective: Objective) -> list[tuple[str, str]]:
    """Returns the best device of every network and the number of devices tied with it."""
    bests = [(title, _best(part, objective)) for title, part in groups(cells)[:6]]
    return [(best[0], f"{title}: {best[1]}") for title, best in bests if best is not None]


def _best(cells: Sequence[CompareCell], objective: Objective) -> tuple[str, str] | None:
    """Returns the best device, with the number of ties, and its value."""
    known = [cell for cell in cells if cell.value(objective) is not None]
    if not known:
        return None
    best = min(known, key=lambda cell: cell.value(objective) or 0.0)
    ties = ranks(cells, objective).count(1) - 1
    return best.device + (f" (tied with {ties})" if ties else ""), _big(best, objective)


def _big(cell: CompareCell, objective: Objective) -> str:
    value = abs(cell.value(objective) or 0.0)
    return {
        "latency": seconds_text(value),
        "throughput": f"{number(value)} {cell.item}s per second",
        "cost": f"${number(value)} per million {cell.item}s",
        "energy": f"at most {number(value)} J of energy for each {cell.item}",
    }[objective]


def _methods(cells: Sequence[CompareCell]) -> Section:
    used = dict.fromkeys(cell.method for cell in cells if cell.method)
    return Section("What answered", points=[f"{name}: {METHODS[name]}" for name in used])


def _prices(cells: Sequence[CompareCell]) -> Section | None:
    found = {cell.device: cell.price for cell in cells if cell.price is not None}
    if not found:
        return None
    header = ["device", "$ an hour", "provider", "part of"]
    lines = [
        [device, f"{one.per_hour:g}", one.provider, one.instance or "-"]
        for device, one in found.items()
    ]
    lists = {f"{one.provider}, {one.region}, {one.date}: {one.source}" for one in found.values()}
    unknown = dict.fromkeys(cell.device for cell in cells if cell.price is None)
    note = f"Devices without a price: {', '.join(unknown)}." if unknown else ""
    table = plain_table(header, lines)
    return Section("Prices", note=note, points=sorted(lists), tables=[table])
