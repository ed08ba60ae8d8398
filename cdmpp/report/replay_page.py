"""HTML page of a replay: timeline, operators and critical path."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from cdmpp.replay.engine import Replay
from cdmpp.replay.summary import ReplayOutcome, by_kind, uncovered_groups
from cdmpp.report.page import Page, Section
from cdmpp.report.tables import plain_table
from cdmpp.text import counted, interval_text, percent_text, seconds_text, shortened

_WIDTH, _LANE, _LEFT = 1040.0, 26.0, 150.0
#: Operators narrower than this (pixels) are merged with their neighbours.
_NARROWEST = 0.4
#: Number of kinds with their own colour in `style.css`; all others share series 0.
_SERIES = 7
_LEGEND_WIDTH, _LEGEND_LINE, _LETTERS = 297.0, 20.0, 36


def timeline_page(outcome: ReplayOutcome) -> Page:
    """Returns the page: total, timeline, operators by kind, critical path, uncovered operators."""
    graph, run, uncovered = outcome.costs.graph, outcome.expected, outcome.costs.uncovered
    kinds = by_kind(outcome)
    series = {row["kind"]: place + 1 for place, row in enumerate(kinds[:_SERIES])}
    chain = sorted(run.chain, key=lambda step: -run.times_s[step.index])[:40]
    tables = {
        "Operators by kind": plain_table(
            ["kind", "calls", "time", "share", "source"],
            [[row["kind"], str(row["calls"]), seconds_text(row["time_s"]),
              percent_text(row["share"]), ", ".join(row["sources"])] for row in kinds[:40]],
        ),
        "Critical path, longest operators": plain_table(
            ["operator", "time", "starts at", "waited for"],
            [[graph.operators[step.index].label, seconds_text(run.times_s[step.index]),
              seconds_text(run.start_s[step.index]), step.reason] for step in chain],
        ),
    }  # fmt: skip
    if uncovered:
        tables["Operators without a model"] = plain_table(
            ["operator", "calls", "at least", "at most", "why"],
            [[name, str(calls), seconds_text(cost.low_s), seconds_text(cost.high_s), cost.reason]
             for name, calls, cost in uncovered_groups(outcome)[:200]],
        )  # fmt: skip
    schedules = f"; schedules: {outcome.schedule}" if outcome.schedule else ""
    warning = (
        f"{counted(len(uncovered), 'operator', 'have')} no model: each has a roofline estimate, "
        "which widens the interval."
    )
    return Page(
        title=graph.name,
        lead=f"{outcome.device or 'replayed'}{schedules}",
        sections=[
            Section("Timeline", plots=[("Operators by queue.", _timeline(run, series))]),
            *(Section(title, tables=[table]) for title, table in tables.items()),
        ],
        warnings=[warning] if uncovered else [],
        tiles=[
            (
                interval_text(run.total_s, outcome.low_s, outcome.high_s),
                "end to end, with the operators' intervals",
            ),
            (seconds_text(run.sum_s), "sum of all operators"),
            (seconds_text(run.longest_path_s), "longest chain of data edges"),
            (f"{len(graph.operators):,}", "operators"),
        ],
    )


def _timeline(run: Replay, series: dict[str, int]) -> str:
    """Returns the timeline as SVG.

    Args:
        series: kind -> number of its colour, most expensive kind first.
    """
    places = sorted(run.busy_s)
    lane = {place: number for number, place in enumerate(places)}
    top_of_legend = _LANE * len(places) + 36
    scale = _WIDTH / run.total_s if run.total_s > 0 else 0.0
    bars: dict[tuple[str, str], list[tuple[float, float, int, str]]] = {p: [] for p in places}
    order = sorted(range(len(run.start_s)), key=lambda index: run.start_s[index])
    for index in order:
        one = run.graph.operators[index]
        left, width = scale * run.start_s[index], scale * run.times_s[index]
        text = f"{one.label}: {seconds_text(run.times_s[index])}"
        for place in one.places:
            own = bars[place]
            if own and width < _NARROWEST and left + width - own[-1][0] < 1.0:
                own[-1] = (own[-1][0], left + width - own[-1][0], 0, "short operators")
            else:
                own.append((left, width, series.get(one.kind or one.label, 0), text))
    legend = list(series.items())
    if any(number == 0 for drawn in bars.values() for _, _, number, _ in drawn):
        legend.append(("others", 0))
    height = top_of_legend + _LEGEND_LINE * -(-len(legend) // 4)
    found = [
        f"<svg viewBox='0 0 {_LEFT + _WIDTH:.0f} {height:.0f}' font-size='12' "
        "style='min-width:840px'>"
    ]
    for place in places:
        top = _LANE * lane[place] + 2
        share = run.busy_s[place] / run.total_s if run.total_s > 0 else 0.0
        found.append(
            f"<text x='0' y='{top + 15:.0f}'>{escape(place[0])} {escape(place[1])} "
            f"({100 * share:.0f} %)</text>"
        )
        found += [
            f"<rect x='{_LEFT + left:.2f}' y='{top:.0f}' width='{max(width, 0.2):.2f}' "
            f"height='{_LANE - 6:.0f}' class='series-{number}'><title>{escape(text)}</title></rect>"
            for left, width, number, text in bars[place]
        ]
    bottom = _LANE * len(places) + 18
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        anchor = "end" if share == 1 else "middle" if share else "start"
        label = seconds_text(share * run.total_s) if share else "0"
        found.append(
            f"<text x='{_LEFT + share * _WIDTH:.0f}' y='{bottom:.0f}' text-anchor='{anchor}' "
            f"class='soft'>{label}</text>"
        )
    return "".join([*found, *_legend(legend, top_of_legend), "</svg>"])


def _legend(kinds: Sequence[tuple[str, int]], top: float) -> Iterator[str]:
    for place, (kind, number) in enumerate(kinds):
        left, line = _LEGEND_WIDTH * (place % 4), top + _LEGEND_LINE * (place // 4)
        yield (
            f"<rect x='{left:.0f}' y='{line:.0f}' width='11' height='11' class='series-{number}'/>"
            f"<text x='{left + 17:.0f}' y='{line + 10:.0f}'>{escape(shortened(kind, _LETTERS))}"
            "</text>"
        )
