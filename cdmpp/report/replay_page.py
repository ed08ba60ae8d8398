"""The timeline of a replay as one self-contained HTML page: no scripts, no links."""

from __future__ import annotations

import html
from pathlib import Path

from cdmpp.files.atomic import write_atomic
from cdmpp.files.places import package_folder
from cdmpp.replay.engine import Replay
from cdmpp.replay.summary import Outcome, by_kind
from cdmpp.text import interval_text, seconds_text

_WIDTH, _LANE, _LEFT = 1040.0, 26.0, 150.0
#: Operators narrower than this (pixels) are drawn together with their neighbours.
_NARROWEST = 0.4
_COLOURS = ("#0b6e99", "#d9730d", "#448361", "#9065b0", "#c14c8a", "#cb912f", "#d44c47", "#787774")


def write_timeline_page(path: Path, outcome: Outcome) -> None:
    """Writes the page.

    Raises:
        DataError: the file cannot be written.
    """
    text = timeline_page(outcome)
    write_atomic(path, lambda temporary: _write(temporary, text))


def timeline_page(outcome: Outcome) -> str:
    """Returns the page: total, timeline, kinds of operators, critical path, uncovered operators."""
    graph, run = outcome.costs.graph, outcome.expected
    style = (package_folder("cdmpp.report") / "_style.html").read_text(encoding="utf-8")
    kinds = by_kind(outcome)
    colours = {row["kind"]: _COLOURS[place % len(_COLOURS)] for place, row in enumerate(kinds)}
    total = interval_text(run.total_s, outcome.low_s, outcome.high_s)
    tiles = [
        (total, "end to end, with the operators' intervals"),
        (seconds_text(run.sum_s), "sum of all operators"),
        (seconds_text(run.longest_path_s), "longest chain of data edges"),
        (f"{len(graph.operators):,}", "operators"),
    ]
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        f"<title>{_e(graph.name)}</title>{style}</head><body><main>",
        f"<h1>{_e(graph.name)}</h1><p class='lead'>{_e(outcome.device or 'replayed')}"
        + (f"; schedules: {_e(outcome.schedule)}" if outcome.schedule else "")
        + "</p><div class='tiles'>",
        *(f"<div class='tile'><b>{_e(big)}</b><span>{_e(what)}</span></div>"
          for big, what in tiles),
        "</div>",
    ]  # fmt: skip
    if outcome.costs.uncovered:
        parts.append(
            f"<p class='warning'>{len(outcome.costs.uncovered)} operators have no model: a "
            "roofline bound stands in for each, and widens the interval.</p>"
        )
    parts += ["<h2>Timeline</h2>", _timeline(run, colours), "<h2>Operators by kind</h2>"]
    parts.append(
        _table(
            ["kind", "calls", "time", "share", "source"],
            [[row["kind"], str(row["calls"]), seconds_text(row["time_s"]),
              f"{100 * row['share']:.1f} %", ", ".join(row["sources"])] for row in kinds[:40]],
        )
    )  # fmt: skip
    parts.append("<h2>Critical path, longest operators</h2>")
    chain = sorted(run.chain, key=lambda step: -run.times_s[step.index])[:40]
    parts.append(
        _table(
            ["operator", "time", "starts at", "waited for"],
            [[graph.operators[step.index].label, seconds_text(run.times_s[step.index]),
              seconds_text(run.start_s[step.index]), step.reason] for step in chain],
        )
    )  # fmt: skip
    if outcome.costs.uncovered:
        parts.append("<h2>Operators without a model</h2>")
        parts.append(
            _table(
                ["operator", "at least", "at most", "why"],
                [[one.label, seconds_text(cost.low_s), seconds_text(cost.high_s), cost.reason]
                 for one, cost in outcome.costs.uncovered[:200]],
            )
        )  # fmt: skip
    return "\n".join([*parts, "</main></body></html>\n"])


def _timeline(run: Replay, colours: dict[str, str]) -> str:
    places = sorted(run.busy_s)
    lane = {place: number for number, place in enumerate(places)}
    height = _LANE * len(places) + 30
    scale = _WIDTH / run.total_s if run.total_s > 0 else 0.0
    bars: dict[tuple[str, str], list[tuple[float, float, str, str]]] = {p: [] for p in places}
    order = sorted(range(len(run.start_s)), key=lambda index: run.start_s[index])
    for index in order:
        one = run.graph.operators[index]
        left, width = scale * run.start_s[index], scale * run.times_s[index]
        text = f"{one.label}: {seconds_text(run.times_s[index])}"
        for place in one.places:
            own = bars[place]
            if own and width < _NARROWEST and left + width - own[-1][0] < 1.0:
                own[-1] = (own[-1][0], left + width - own[-1][0], "#9aa5b1", "short operators")
            else:
                own.append((left, width, colours[one.kind or one.label], text))
    found = [
        f"<div class='scroll'><svg width='{_LEFT + _WIDTH:.0f}' height='{height:.0f}' "
        "font-size='12' role='img' aria-label='timeline'>"
    ]
    for place in places:
        top = _LANE * lane[place] + 2
        share = run.busy_s[place] / run.total_s if run.total_s > 0 else 0.0
        found.append(
            f"<text x='0' y='{top + 15:.0f}'>{_e(place[0])} {_e(place[1])} "
            f"({100 * share:.0f} %)</text>"
        )
        found += [
            f"<rect x='{_LEFT + left:.2f}' y='{top:.0f}' width='{max(width, 0.2):.2f}' "
            f"height='{_LANE - 6:.0f}' fill='{colour}'><title>{_e(text)}</title></rect>"
            for left, width, colour, text in bars[place]
        ]
    bottom = _LANE * len(places) + 18
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        anchor = "end" if share == 1 else "middle" if share else "start"
        label = seconds_text(share * run.total_s) if share else "0"
        found.append(
            f"<text x='{_LEFT + share * _WIDTH:.0f}' y='{bottom:.0f}' text-anchor='{anchor}' "
            f"fill='#616e7c'>{label}</text>"
        )
    return "".join([*found, "</svg></div>"])


def _table(titles: list[str], rows: list[list[str]]) -> str:
    head = "".join(f"<th>{_e(title)}</th>" for title in titles)
    cells = ["".join(f"<td>{_e(cell)}</td>" for cell in row) for row in rows]
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f"<div class='scroll'>{table}</div>"


def _e(text: str) -> str:
    return html.escape(str(text))


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
