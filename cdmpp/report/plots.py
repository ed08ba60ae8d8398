"""Plots as SVG text, ready to be put into a page."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from cdmpp.arrays import FloatArray, IntArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_INK = "#1f2933"
_GRID = "#e4e7eb"
_ACCENT = "#0b6e99"
COLOURS = (
    "#0b6e99", "#d9730d", "#448361", "#9065b0", "#c14c8a", "#cb912f", "#787774", "#2e5aac",
)  # fmt: skip
_MOST_POINTS = 20_000
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def predicted_against_measured(
    measured_s: FloatArray,
    predicted_s: FloatArray,
    device: IntArray,
    labels: Sequence[str],
) -> str:
    """Returns a log-log scatter plot with the lines of no error and of a factor of two."""
    figure, axes = new_figure(5.6, 5.2)
    rng = np.random.default_rng(0)
    chosen = rng.permutation(len(measured_s))[:_MOST_POINTS]
    low = float(min(measured_s.min(), predicted_s.min())) / 1.5
    high = float(max(measured_s.max(), predicted_s.max())) * 1.5
    axes.fill_between(
        [low, high], [low / 2, high / 2], [low * 2, high * 2], color=_ACCENT, alpha=0.07, lw=0
    )
    axes.plot([low, high], [low, high], color=_INK, lw=0.8)
    for index, label in enumerate(labels):
        rows = chosen[device[chosen] == index]
        if len(rows):
            axes.scatter(
                measured_s[rows],
                predicted_s[rows],
                s=7,
                lw=0,
                alpha=0.55,
                color=COLOURS[index % len(COLOURS)],
                label=label,
                # Thousands of vector marks would make the page slow; axes and text stay vectors.
                rasterized=True,
            )
    log_scale(axes, "x", "y")
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    axes.set_xlabel("measured latency (s)")
    axes.set_ylabel("predicted latency (s)")
    axes.legend(frameon=False, fontsize=8, markerscale=2.2, loc="upper left", handletextpad=0.2)
    return svg_text(figure)


def error_by_latency(measured_s: FloatArray, errors: dict[str, FloatArray]) -> str:
    """Returns the median error per half decade of measured latency, one line a model.

    Args:
        errors: line name -> float64 [N], absolute percentage errors as fractions.
    """
    figure, axes = new_figure(5.6, 3.6)
    half_decade = np.floor(2 * np.log10(measured_s)).astype(np.int64)
    steps = np.unique(half_decade)
    centre = 10.0 ** ((steps + 0.5) / 2)
    for index, (name, error) in enumerate(errors.items()):
        median = [100 * float(np.median(error[half_decade == step])) for step in steps]
        axes.plot(
            centre,
            median,
            marker="o",
            ms=4,
            lw=2.2 if index == 0 else 1.2,
            color=COLOURS[index % len(COLOURS)],
            label=name,
        )
    log_scale(axes, "x", "y")
    axes.set_xlabel("measured latency (s)")
    axes.set_ylabel("median error (%)")
    axes.legend(frameon=False, fontsize=8, ncols=2)
    return svg_text(figure)


def error_distribution(errors: dict[str, FloatArray]) -> str:
    """Returns the share of programs whose error is at most x, one line a model."""
    figure, axes = new_figure(5.6, 3.6)
    for index, (name, error) in enumerate(errors.items()):
        ordered = np.sort(error)
        share = np.arange(1, len(ordered) + 1) / len(ordered)
        keep = np.unique(np.linspace(0, len(ordered) - 1, 400).astype(np.int64))
        axes.plot(
            100 * np.maximum(ordered[keep], 1e-3),
            100 * share[keep],
            lw=2.2 if index == 0 else 1.2,
            color=COLOURS[index % len(COLOURS)],
            label=name,
        )
    for limit in (5, 10, 20):
        axes.axvline(limit, color=_GRID, lw=1, zorder=0)
    log_scale(axes, "x")
    axes.set_xlim(1, 1000)
    axes.set_ylim(0, 100)
    axes.set_xlabel("error at most (%)")
    axes.set_ylabel("share of programs (%)")
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    return svg_text(figure)


def training_curve(history: Sequence[dict[str, Any]]) -> str:
    """Returns training and validation loss by epoch."""
    from matplotlib.ticker import MaxNLocator

    figure, axes = new_figure(5.6, 3.6)
    epochs = [entry["epoch"] for entry in history]
    validation = [entry["validation_loss"] for entry in history]
    axes.plot(
        epochs, [entry["training_loss"] for entry in history], color=COLOURS[1], label="training"
    )
    axes.plot(epochs, validation, color=COLOURS[0], lw=2, label="validation (averaged weights)")
    best = int(np.argmin(validation))
    axes.plot(epochs[best], validation[best], "o", color=COLOURS[0])
    axes.annotate(
        f"selected: epoch {epochs[best]}",
        (epochs[best], validation[best]),
        xytext=(0, 12),
        textcoords="offset points",
        ha="center",
        fontsize=8,
        color=_INK,
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("epoch")
    axes.set_ylabel("loss")
    axes.legend(frameon=False, fontsize=8)
    return svg_text(figure)


def new_figure(width: float, height: float) -> tuple[Figure, Axes]:
    """Returns an empty figure of this size in inches, in the style of the reports."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=160, layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.subplots()
    axes.grid(True, color=_GRID, lw=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#9aa5b1")
    axes.tick_params(colors=_INK, labelsize=8, which="both", color="#9aa5b1")
    axes.xaxis.label.set(color=_INK, fontsize=9)
    axes.yaxis.label.set(color=_INK, fontsize=9)
    return figure, axes


def log_scale(axes: Axes, *names: Literal["x", "y"]) -> None:
    """Makes axes logarithmic, with labels like 10⁻³ that are plain text: matplotlib parses those of
    its own as formulas, which takes longer than the rest of a plot.
    """
    from matplotlib.ticker import LogFormatter

    class Powers(LogFormatter):
        def __call__(self, x: float, pos: int | None = None) -> str:
            return _power_text(x) if super().__call__(x, pos) else ""

    for name in names:
        axes.set(**{f"{name}scale": "log"})
        one = axes.xaxis if name == "x" else axes.yaxis
        one.set_major_formatter(Powers())
        one.set_minor_formatter(Powers(labelOnlyBase=False))


def _power_text(value: float) -> str:
    """Returns a positive number as `200`, `10⁻³` or `2·10⁻³`."""
    exponent = math.floor(math.log10(value) + 1e-9)
    if -1 <= exponent <= 3:
        return f"{value:g}"
    power = f"10{str(exponent).translate(_SUPERSCRIPTS)}"
    factor = value / 10.0**exponent
    return power if abs(factor - 1.0) < 1e-6 else f"{factor:.3g}·{power}"


def svg_text(figure: Figure) -> str:
    """Returns a figure as an SVG element; the same figure gives the same text."""
    import matplotlib

    text = io.StringIO()
    layout = figure.get_layout_engine()
    if layout is not None:  # at once, or saving draws everything twice
        layout.execute(figure)
        figure.set_layout_engine(None)
    # Fixed salt and no date: the same data gives the same bytes.
    with matplotlib.rc_context({"svg.hashsalt": "cdmpp", "svg.fonttype": "none"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    content = text.getvalue()
    return content[content.index("<svg") :]
