"""Plots of a comparison as SVG text: the Pareto front, and the latency by kind of kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cdmpp.comparison.cell import CompareCell, Objective, front
from cdmpp.report.plots import COLOURS, Mark, legend, log_scale, new_figure, svg_text
from cdmpp.text import interval_text, seconds_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WORDS: dict[Objective, str] = {
    "cost": "US dollars per million items", "energy": "joules per item, upper bound",
    "latency": "latency (ms)", "throughput": "items per second",
}  # fmt: skip
_BEST, _BEATEN = COLOURS[0], COLOURS[6]
_MS = 1e3


def front_svg(cells: Sequence[CompareCell], first: Objective, second: Objective) -> str:
    """Returns a plot of the cells with their intervals, and of the Pareto front. A cell with an
    unknown `first` is a dashed line at its `second`.

    Args:
        second: `latency`, or an objective without intervals.
    """
    figure, axes = new_figure()
    draw_front(axes, cells, first, second)
    scale = _MS if second == "latency" else 1.0
    marks = [
        Mark(_said(cell, first), x, scale * y)
        for cell in cells
        if (x := cell.value(first)) is not None and (y := cell.value(second)) is not None
    ]
    return svg_text(figure, marks)


def _said(cell: CompareCell, first: Objective) -> str:
    latency = interval_text(cell.latency_s, cell.low_s, cell.high_s)
    return f"{cell.device}\n{latency}\n{cell.value(first) or 0.0:.3g} {_WORDS[first]}"


def draw_front(
    axes: Axes, cells: Sequence[CompareCell], first: Objective, second: Objective
) -> None:
    """Draws the plot of `front_svg` on axes."""
    best = front(cells, first, second)
    scale = _MS if second == "latency" else 1.0
    known = [
        (x, y, cell)
        for cell in cells
        if (x := cell.value(first)) is not None and (y := cell.value(second)) is not None
    ]
    for place, (x, y, cell) in enumerate(sorted(known, key=lambda one: one[:2])):
        colour = _BEST if cell in best else _BEATEN
        if second == "latency" and cell.low_s is not None and cell.high_s is not None:
            axes.vlines(x, scale * cell.low_s, scale * cell.high_s, color=colour, lw=1, alpha=0.4)
        filled = "white" if cell.is_hypothetical else colour
        axes.plot(x, scale * y, "o", ms=5.5, color=colour, mfc=filled)
        axes.annotate(
            cell.device, (x, scale * y), xytext=(5, (-11, 5, -20, 14)[place % 4]),
            textcoords="offset points", fontsize=8,
        )  # fmt: skip
    for cell in cells:
        y = cell.value(second)
        if y is not None and cell.value(first) is None:  # only one value is known
            axes.axhline(scale * y, color=_BEATEN, lw=0.8, ls="--", zorder=0)
            axes.annotate(
                cell.device, (1.0, scale * y), xycoords=axes.get_yaxis_transform(),
                xytext=(-3, 3), textcoords="offset points", ha="right", fontsize=8,
            )  # fmt: skip
    line = [(cell.value(first) or 0.0, scale * (cell.value(second) or 0.0)) for cell in best]
    axes.plot(*zip(*line, strict=True), color=_BEST, lw=1.3, zorder=0, drawstyle="steps-post")
    log_scale(axes, "x", "y")
    axes.margins(x=0.18)
    axes.set_xlabel(_WORDS[first])
    axes.set_ylabel(_WORDS[second])


def parts_svg(cells: Sequence[CompareCell]) -> str:
    """Returns a bar plot of latencies by kind of kernel, one bar per device, in cell order."""
    kinds = list(dict.fromkeys(kind for cell in cells for kind in cell.parts))
    figure, axes = new_figure(height=max(1.6, 0.36 * len(cells) + 1.0))
    names = [cell.device for cell in cells][::-1]
    left = [0.0] * len(cells)
    marks: list[Mark] = []
    for place, kind in enumerate(kinds):
        widths = [_MS * cell.parts.get(kind, 0.0) for cell in cells][::-1]
        axes.barh(
            names, widths, left=left, height=0.66, label=kind, color=COLOURS[place % len(COLOURS)]
        )
        marks += [
            Mark(f"{name}\n{kind}: {seconds_text(width / _MS)}", start, row - 0.33, width, 0.66)
            for row, (name, start, width) in enumerate(zip(names, left, widths, strict=True))
            if width
        ]
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.set_xlabel(_WORDS["latency"])
    axes.grid(False, axis="y")
    legend(axes, ncols=3, loc="lower right", bbox_to_anchor=(1.0, 1.0))
    return svg_text(figure, marks)
