"""The page of a comparison: fronts, tables, what answered and how that was judged."""

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

#: Method -> what it is and how it was judged.
METHODS = {
    METHOD: "the transformer's kernels one after the other: products, attention and collectives "
    "by models that were judged on devices left out of their fit (docs/results/gpu-kernels.md), "
    "what only moves elements by the operator model; whole passes judged on figures that NVIDIA "
    "published (docs/results/compare.md)",
    MEASURED: "a model of whole networks, judged on architectures it never saw, on this very "
    "device (docs/results/networks.md)",
    OPERATORS: "the network's operators one after the other, each by the model of its kind for "
    "float32 on NVIDIA GPUs; judged on whole transformers that were measured elsewhere, on GPUs of "
    "the fit and on others, where the intervals hold less than they say (docs/results/compare.md)",
    OPERATOR_ROOFLINES: "the network's operators one after the other, each by the device's peak "
    "and bandwidth, from a quarter of that to a twentieth of the rates; judged on whole "
    "transformers on two AMD GPUs (docs/results/compare.md)",
    WHOLE_ROOFLINE: "the whole-network model on a device that nobody measured: it follows the "
    "device's roofline, its interval is from a quarter of that to a twentieth of the rates; never "
    "judged there",
    COMPILED: "kernels as TVM compiles them by default, by the cost model (docs/results/replay.md)",
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
        f"Hypothetical: {', '.join(dict.fromkeys(guessed))}; nobody sells or measured it as "
        "described here."
    )
    return Page(
        title="Which device?",
        lead=f"{len(groups(cells))} networks on {len({cell.device for cell in cells})} devices, "
        f"best {objective} first; predicted without running anything.",
        sections=sections,
        warnings=[warning] if guessed else [],
        tiles=_tiles(cells, objective),
        notes=[
            "Latency is one run after the other on an idle device. The interval is made to hold "
            "nine of ten truths; what it held where it was judged is in the pages named above. "
            "Rank: 1 and 1 more for every device that is surely better; = marks devices of one "
            "rank, which cannot be told apart.",
            "Throughput is items over latency: no overlap of runs. An item is an inference, or a "
            "token that a transformer takes in (prefill) or makes (decode).",
            "Cost is the price of the devices for as long as a run takes: they are rented for "
            "nothing else and never idle.",
            "Energy is what the devices may take at most (TDP) for as long as a run takes: an "
            "upper bound, without the host.",
            "Memory is what the network needs; a library's own is not in it. Above 90 % of a "
            "device's memory it is not sure that it fits.",
            "* no other device is better in both of what the front weighs, as far as both are "
            "known; ? hypothetical; [1] see the note below; unknown is never counted as 0.",
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
        f"Latency against {'cost' if first == 'cost' else 'the energy bound'}; the line joins the "
        "devices that no other beats in both (Pareto front). Bars are the intervals. Dashed: a "
        f"latency without a known {'price' if first == 'cost' else 'power limit'}."
    )


def _tiles(cells: Sequence[CompareCell], objective: Objective) -> list[tuple[str, str]]:
    """Returns the best device of every network, and how many cannot be told apart from it."""
    bests = [(title, _best(part, objective)) for title, part in groups(cells)[:6]]
    return [(best[0], f"{title}: {best[1]}") for title, best in bests if best is not None]


def _best(cells: Sequence[CompareCell], objective: Objective) -> tuple[str, str] | None:
    """Returns the best device, with how many are tied with it, and its value."""
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
        "throughput": f"{number(value)} {cell.item}s a second",
        "cost": f"${number(value)} a million {cell.item}s",
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
    note = f"No price is known of {', '.join(unknown)}." if unknown else ""
    table = plain_table(header, lines)
    return Section("Prices", note=note, points=sorted(lists), tables=[table])
