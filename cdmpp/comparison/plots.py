"""Plots of a comparison as SVG text: the front, and where the time goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cdmpp.comparison.cell import CompareCell, Objective, front
from cdmpp.report.plots import COLOURS, log_scale, new_figure, svg_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WORDS: dict[Objective, str] = {
    "cost": "US dollars per million items", "energy": "joules per item, upper bound",
    "latency": "latency (ms)", "throughput": "items per second",
}  # fmt: skip
_BEST, _BEATEN = COLOURS[0], COLOURS[6]
_MS = 1e3


def front_svg(cells: Sequence[CompareCell], first: Objective, second: Objective) -> str:
    """Returns the cells as points with their intervals, and the front as a line. A cell of which
    `first` is unknown is a dashed line at its `second`.

    Args:
        second: `latency`, or what has no interval.
    """
    figure, axes = new_figure(6.0, 4.0)
    draw_front(axes, cells, first, second)
    return svg_text(figure)


def draw_front(
    axes: Axes, cells: Sequence[CompareCell], first: Objective, second: Objective
) -> None:
    """Draws `front_svg` on axes."""
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
            cell.device, (x, scale * y), xytext=(5, 5 if place % 2 else -11),
            textcoords="offset points", fontsize=8, color=colour,
        )  # fmt: skip
    for cell in cells:
        y = cell.value(second)
        if y is not None and cell.value(first) is None:  # known in one way only
            axes.axhline(scale * y, color=_BEATEN, lw=0.8, ls="--", zorder=0)
            axes.annotate(
                cell.device, (1.0, scale * y), xycoords=axes.get_yaxis_transform(),
                xytext=(-3, 3), textcoords="offset points", ha="right", fontsize=8, color=_BEATEN,
            )  # fmt: skip
    line = [(cell.value(first) or 0.0, scale * (cell.value(second) or 0.0)) for cell in best]
    axes.plot(*zip(*line, strict=True), color=_BEST, lw=1.3, zorder=0, drawstyle="steps-post")
    log_scale(axes, "x", "y")
    axes.margins(x=0.18)
    axes.set_xlabel(_WORDS[first])
    axes.set_ylabel(_WORDS[second])


def parts_svg(cells: Sequence[CompareCell]) -> str:
    """Returns a bar a device: its latency by kinds of kernels, in the order of the cells."""
    kinds = list(dict.fromkeys(kind for cell in cells for kind in cell.parts))
    figure, axes = new_figure(6.0, max(1.6, 0.36 * len(cells) + 1.0))
    names = [cell.device for cell in cells][::-1]
    left = [0.0] * len(cells)
    for place, kind in enumerate(kinds):
        widths = [_MS * cell.parts.get(kind, 0.0) for cell in cells][::-1]
        axes.barh(
            names, widths, left=left, height=0.66, label=kind, color=COLOURS[place % len(COLOURS)]
        )
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.set_xlabel(_WORDS["latency"])
    axes.grid(False, axis="y")
    axes.legend(frameon=False, fontsize=8, ncols=3, loc="lower right", bbox_to_anchor=(1.0, 1.0))
    return svg_text(figure)
