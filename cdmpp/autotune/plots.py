"""Plots of a study as SVG text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cdmpp.autotune.trial_rows import TrialRow, best_so_far, front
from cdmpp.report.plots import AXIS, COLOURS, GRID, Mark, legend, log_scale, new_figure, svg_text

_PRUNED = AXIS
_MOST_BARS = 15
_MOST_AXES = 10
_GOOD_SHARE = 0.2


def history_plot(rows: Sequence[TrialRow], what: str) -> str:
    """Returns the plot of each trial's value and the best so far, against CPU minutes."""
    figure, axes = new_figure()
    spent = np.cumsum([row.cpu_s for row in rows]) / 60.0
    for state, colour, mark in (("complete", COLOURS[0], "o"), ("pruned", _PRUNED, "x")):
        chosen = [i for i, row in enumerate(rows) if row.state == state and row.values]
        if chosen:
            axes.scatter(
                spent[chosen],
                [rows[i].values[0] for i in chosen],
                s=20,
                color=colour,
                marker=mark,
                lw=1,
                label="finished" if state == "complete" else "stopped early (its last value)",
            )
    best = best_so_far(list(rows))
    if np.any(np.isfinite(best)):
        axes.step(spent, best, where="post", color=COLOURS[1], lw=2, label="best so far")
    log_scale(axes, "y")
    axes.set_xlabel("CPU minutes of all trials")
    axes.set_ylabel(what)
    legend(axes)
    shown = [(row, at) for row, at in zip(rows, spent.tolist(), strict=True) if row.values]
    return svg_text(figure, [Mark(_said(row, what), at, row.values[0]) for row, at in shown])


def importance_plot(shares: Mapping[str, float]) -> str:
    """Returns a bar plot with one bar per setting, most important first."""
    names = sorted(shares, key=lambda name: -shares[name])[:_MOST_BARS][::-1]
    figure, axes = new_figure(height=0.9 + 0.24 * len(names))
    axes.barh(names, [100 * shares[name] for name in names], color=COLOURS[0], height=0.65)
    axes.set_xlabel("share of the variance (%)")
    axes.grid(False, axis="y")
    marks = [
        Mark(f"{name}: {100 * shares[name]:.1f} %", 0, place - 0.33, 100 * shares[name], 0.65)
        for place, name in enumerate(names)
    ]
    return svg_text(figure, marks)


def parallel_plot(rows: Sequence[TrialRow], names: Sequence[str]) -> str:
    """Returns a plot with a line per finished trial through its settings, the best fifth coloured.

    Args:
        names: setting names, most important first; only the `varied_settings` are shown.
    """
    done = [row for row in rows if row.is_done]
    shown = varied_settings(rows, names)[:_MOST_AXES]
    figure, axes = new_figure(11.4, 3.8)
    places = np.stack([_places([row.settings[name] for row in done])[0] for name in shown])
    order = np.argsort([row.values[0] for row in done])[::-1]
    good = len(done) - max(1, round(_GOOD_SHARE * len(done)))
    for rank, index in enumerate(order):
        is_good = rank >= good
        axes.plot(
            range(len(shown)),
            places[:, index],
            color=COLOURS[1] if is_good else _PRUNED,
            lw=1.8 if is_good else 0.8,
            alpha=0.9 if is_good else 0.5,
        )
    for column, name in enumerate(shown):
        axes.axvline(column, color=GRID, lw=1, zorder=0)
        for place, text in _places([row.settings[name] for row in done])[1]:
            axes.text(column + 0.02, place, text, fontsize=6.5, va="center")
    axes.set_xticks(range(len(shown)), [_short(name) for name in shown], fontsize=7)
    axes.set_yticks([])
    axes.set_ylim(-0.06, 1.06)
    return svg_text(figure)


def front_plot(rows: Sequence[TrialRow], what: str) -> str:
    """Returns the plot of error against prediction time of the finished trials, with the front."""
    figure, axes = new_figure()
    done = [row for row in rows if row.is_done and row.predict_s]
    axes.scatter(
        [1e6 * (row.predict_s or 0.0) for row in done],
        [row.values[0] for row in done],
        s=16,
        color=_PRUNED,
        lw=0,
        label="finished",
    )
    best = front(list(rows))
    axes.plot(
        [1e6 * (row.predict_s or 0.0) for row in best],
        [row.values[0] for row in best],
        "o-",
        ms=4,
        lw=1.2,
        color=COLOURS[1],
        label="Pareto front",
    )
    log_scale(axes, "x", "y")
    axes.set_xlabel("prediction (µs per program and device, in a batch)")
    axes.set_ylabel(what)
    legend(axes)
    marks = [Mark(_said(row, what), 1e6 * (row.predict_s or 0.0), row.values[0]) for row in done]
    return svg_text(figure, marks)


def varied_settings(rows: Sequence[TrialRow], names: Sequence[str]) -> list[str]:
    """Returns the names that all finished trials have and whose values vary."""
    done = [row for row in rows if row.is_done]
    return [
        name
        for name in names
        if all(name in row.settings for row in done)
        and len({row.settings[name] for row in done}) > 1
    ]


def _said(row: TrialRow, what: str) -> str:
    return f"trial {row.number}, {row.model}, {row.state}\n{what}: {row.values[0]:.4g}"


def _places(values: Sequence[Any]) -> tuple[np.ndarray[Any, Any], list[tuple[float, str]]]:
    """Returns positions on an axis, float64 [N] in [0, 1], and its labels as (position, text)."""
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        numbers = np.array(values, float)
        low, high = float(numbers.min()), float(numbers.max())
        if low > 0 and high / low > 20:
            places = (np.log(numbers) - np.log(low)) / (np.log(high) - np.log(low))
        else:
            places = (numbers - low) / (high - low)
        return places, [(0.0, f"{low:.3g}"), (1.0, f"{high:.3g}")]
    labels = sorted({str(value) for value in values})
    places = np.array([labels.index(str(value)) / max(len(labels) - 1, 1) for value in values])
    return places, [(i / max(len(labels) - 1, 1), label) for i, label in enumerate(labels)]


def _short(name: str) -> str:
    """Returns the last two parts of a dotted name on two lines."""
    return "\n".join(name.split(".")[-2:])
