"""Plots of the leaderboards as SVG text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cdmpp.report.plots import AXIS, COLOURS, Mark, legend, log_scale, new_figure, svg_text

#: (mean, half width of the 95 % interval or None)
Estimate = tuple[float, float | None]

_SUBJECT = COLOURS[0]
_PEER = "#9fb3c8"
_REFERENCE = "#e4e7eb"
#: Errors longer than this many times the median one are cut; the number is beside the name.
_LONGEST = 4.0


def line_bars(
    values: Mapping[str, Estimate],
    *,
    subject: str,
    references: Sequence[str],
    label: str,
    is_percent: bool,
) -> str:
    """Returns one bar a line with its 95 % interval.

    Args:
        values: line -> estimate, in the order of the bars.
        label: of the axis.
        is_percent: whether the values are errors, fractions to be shown as percent (very long bars
            are cut); otherwise scores of at most 1.
    """
    scale = 100.0 if is_percent else 1.0
    figure, axes = new_figure(5.6, 0.6 + 0.3 * len(values))
    means = [scale * mean for mean, _ in values.values()]
    limit = (_LONGEST * sorted(means)[len(means) // 2] or 1.0) if is_percent else 1.0
    ticks, marks = [], []
    for place, (name, (mean, half)) in enumerate(values.items()):
        colour = _SUBJECT if name == subject else _REFERENCE if name in references else _PEER
        axes.barh(place, min(scale * mean, limit), color=colour, height=0.7)
        if half is not None and scale * mean <= limit:
            axes.errorbar(
                scale * mean, place, xerr=scale * half, color="#1f2933", lw=1, capsize=2.5
            )
        text = f"{scale * mean:.1f} %" if is_percent else f"{mean:.3f}"
        ticks.append(f"{name}  {text}")
        interval = "" if half is None else f" ± {scale * half:.3g}"
        width = min(scale * mean, limit)
        marks.append(Mark(f"{name}: {text}{interval}", 0, place - 0.35, width, 0.7))
    axes.set_yticks(range(len(ticks)), ticks)
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    axes.set_xlim(min(0.0, *means), min(axes.get_xlim()[1], 1.15 * limit) if is_percent else 1.0)
    axes.set_xlabel(label)
    return svg_text(figure, marks)


def budget_curves(
    curves: Mapping[str, Mapping[int, Estimate]],
    levels: Mapping[str, float],
    *,
    title: str,
    ticks: Mapping[int, str],
) -> str:
    """Returns the error against the number of measured tasks, one line a method.

    Args:
        curves: method -> budget -> MAPE as a fraction with its interval; budget 0 is drawn at the
            left edge.
        levels: name -> MAPE as a fraction, drawn as horizontal lines.
        ticks: budget -> its label on the axis.
    """
    figure, axes = new_figure(5.6, 3.8)
    places = {budget: place for place, budget in enumerate(sorted(ticks))}
    for index, (name, curve) in enumerate(curves.items()):
        budgets = [budget for budget in sorted(curve) if budget in places]
        means = [100 * curve[budget][0] for budget in budgets]
        halves = [100 * (curve[budget][1] or 0.0) for budget in budgets]
        axes.errorbar(
            [places[budget] for budget in budgets],
            means,
            yerr=[
                [min(half, 0.9 * mean) for half, mean in zip(halves, means, strict=True)],
                halves,
            ],
            marker="o",
            ms=4,
            lw=2.2 if name.startswith("finetune") else 1.3,
            elinewidth=0.8,
            capsize=2,
            color=COLOURS[index % len(COLOURS)],
            label=name,
        )
    for name, level in levels.items():
        axes.axhline(100 * level, color=AXIS, lw=1, ls="--")
        axes.annotate(
            name,
            (1, 100 * level),
            xycoords=("axes fraction", "data"),
            xytext=(-2, 2),
            textcoords="offset points",
            ha="right",
            fontsize=7,
            color="#616e7c",
        )
    log_scale(axes, "y")
    axes.set_xticks(list(places.values()), [ticks[budget] for budget in places])
    axes.set_xlabel("measured tasks of the new device")
    axes.set_ylabel("MAPE (%)")
    axes.set_title(title, fontsize=10, loc="left")
    legend(axes, ncols=2)
    return svg_text(figure)
