"""Plots as SVG text for HTML pages."""

from __future__ import annotations

import io
import json
import math
import re
import zlib
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from cdmpp.arrays import FloatArray, IntArray
from cdmpp.files.atomic import check_replaceable
from cdmpp.text import counted, seconds_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_INK = "#1f2933"
GRID = "#e4e7eb"
AXIS = "#8a94a0"
#: `--series-1` to `--series-7` of `style.css`, the grey one last but one.
COLOURS = (
    "#2b87b8", "#d9730d", "#4a9469", "#9a6cc0", "#cc5590", "#b08a12", AXIS, "#d44c47",
)  # fmt: skip
#: Colour -> CSS variable of a page, which may have a dark theme.
_IN_PAGE = {
    "#000000": "ink", _INK: "ink", GRID: "line", "#ffffff": "paper", AXIS: "axis",
    **{colour: f"series-{n}" for n, colour in enumerate((*COLOURS[:6], COLOURS[7]), 1)},
}  # fmt: skip
_COLOUR = re.compile("|".join(_IN_PAGE))
#: Coordinate units of dots per decade.
_PER_DECADE = 10_000
MOST_POINTS = 10_000
_SMALL = 9
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


class Mark(NamedTuple):
    """Tooltip of a point, or of a bar with a width and height, in data coordinates."""

    text: str
    x: float
    y: float
    width: float = 0.0
    height: float = 0.0


def predicted_against_measured(
    measured_s: FloatArray,
    predicted_s: FloatArray,
    group: IntArray,
    labels: Sequence[str],
    *,
    which: IntArray | None = None,
    words: Sequence[str] = (),
) -> str:
    """Returns a log-log scatter plot with the line of no error and a band of a factor of two.

    Args:
        group: int64 [N], index into `labels`, such as the device.
        which: int64 [N], index into `words`; None = points have no words.
        words: descriptions of points.
    """
    figure, axes = new_figure(height=4.3)
    chosen = np.random.default_rng(0).permutation(len(measured_s))[:MOST_POINTS]
    low = float(min(measured_s.min(), predicted_s.min())) / 1.5
    high = float(max(measured_s.max(), predicted_s.max())) * 1.5
    axes.fill_between(
        [low, high], [low / 2, high / 2], [low * 2, high * 2], color=COLOURS[0], alpha=0.1, lw=0
    )
    axes.plot([low, high], [low, high], color=_INK, lw=0.8)
    # Thousands of matplotlib's markers would make the page slow; one path per group is small.
    paths = []
    at = np.rint(_PER_DECADE * np.log10(np.stack([measured_s, predicted_s]))).astype(np.int64)
    for index, label in enumerate(labels):
        rows = chosen[group[chosen] == index]
        if not len(rows):
            continue
        colour = COLOURS[index % len(COLOURS)]
        axes.plot([], [], "o", ms=4, color=colour, label=label)
        dots = "".join(f"M{x} {y}h0" for x, y in at[:, rows].T.tolist())
        names = "" if which is None else " ".join(map(str, which[rows].tolist()))
        paths.append(
            f'<path stroke="{colour}" vector-effect="non-scaling-stroke" '
            f'style="stroke-linecap: round" data-name="{escape(label)}" '
            f'data-which="{names}" d="{dots}"/>'
        )
    log_scale(axes, "x", "y")
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    axes.set_xlabel("measured latency (s)")
    axes.set_ylabel("predicted latency (s)")
    legend(axes, loc="upper left", handletextpad=0.2)
    return svg_text(figure, dots=(paths, words))


def error_by_latency(measured_s: FloatArray, errors: dict[str, FloatArray]) -> str:
    """Returns a plot of the median error per half decade of measured latency, one line per model.

    Args:
        errors: line name -> float64 [N], absolute percentage errors as fractions.
    """
    figure, axes = new_figure()
    half_decade = np.floor(2 * np.log10(measured_s)).astype(np.int64)
    steps = np.unique(half_decade)
    marks = []
    for index, (name, error) in enumerate(errors.items()):
        points = []
        for step in steps.tolist():
            own = error[half_decade == step]
            centre, median = 10.0 ** ((step + 0.5) / 2), 100 * float(np.median(own))
            points.append((centre, median))
            low, high = (seconds_text(10.0 ** (edge / 2)) for edge in (step, step + 1))
            programs = f"{counted(len(own), 'program')} of {low} to {high}"
            text = f"{name}: median error {median:.1f} %\n{programs}"
            marks.append(Mark(text, centre, median))
        axes.plot(*np.array(points).T, marker="o", ms=4, **_line(index), label=name)
    log_scale(axes, "x", "y")
    axes.set_xlabel("measured latency (s)")
    axes.set_ylabel("median error (%)")
    legend(axes, ncols=2)
    return svg_text(figure, marks)


def error_distribution(errors: dict[str, FloatArray]) -> str:
    """Returns a plot of the cumulative distribution of errors, one line per model."""
    figure, axes = new_figure()
    marks = []
    for index, (name, error) in enumerate(errors.items()):
        ordered = np.sort(error)
        share = np.arange(1, len(ordered) + 1) / len(ordered)
        keep = np.unique(np.linspace(0, len(ordered) - 1, 400).astype(np.int64))
        axes.plot(
            100 * np.maximum(ordered[keep], 1e-3), 100 * share[keep], **_line(index), label=name
        )
        for limit in (2, 5, 10, 20, 50, 100, 200, 500):
            within = 100 * float(np.mean(error <= limit / 100))
            text = f"{name}: {within:.1f} % of programs\nwithin {limit} % of the measured latency"
            marks.append(Mark(text, limit, within))
    for limit in (5, 10, 20):
        axes.axvline(limit, color=GRID, lw=1, zorder=0)
    log_scale(axes, "x")
    axes.set_xlim(1, 1000)
    axes.set_ylim(0, 100)
    axes.set_xlabel("error at most (%)")
    axes.set_ylabel("share of programs (%)")
    legend(axes, loc="upper left")
    return svg_text(figure, marks)


def training_curve(history: Sequence[dict[str, Any]]) -> str:
    """Returns a plot of the training and validation loss by epoch."""
    from matplotlib.ticker import MaxNLocator

    figure, axes = new_figure()
    epochs = [entry["epoch"] for entry in history]
    names = {"validation_loss": "validation (averaged weights)", "training_loss": "training"}
    marks = []
    for index, (key, name) in enumerate(names.items()):
        values = [entry[key] for entry in history]
        axes.plot(epochs, values, **_line(index), label=name)
        marks += [
            Mark(f"epoch {epoch}\n{name}: {value:.4g}", epoch, value)
            for epoch, value in zip(epochs, values, strict=True)
        ]
    validation = [entry["validation_loss"] for entry in history]
    best = int(np.argmin(validation))
    axes.plot(epochs[best], validation[best], "o", color=COLOURS[0])
    axes.annotate(
        f"selected: epoch {epochs[best]}",
        (epochs[best], validation[best]),
        xytext=(0, 12),
        textcoords="offset points",
        ha="center",
        fontsize=_SMALL,
        color=_INK,
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("epoch")
    axes.set_ylabel("loss")
    legend(axes)
    return svg_text(figure, marks)


def _line(index: int) -> dict[str, Any]:
    """Returns the style of a line; line 0 is the model and is thicker."""
    return {"color": COLOURS[index % len(COLOURS)], "lw": 2.2 if index == 0 else 1.2}


def new_figure(width: float = 4.7, height: float = 3.4) -> tuple[Figure, Axes]:
    """Returns an empty figure in the style of the reports; sizes are in inches."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=160, layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.subplots()
    axes.grid(True, color=GRID, lw=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(AXIS)
    axes.tick_params(colors=_INK, labelsize=_SMALL, which="both", color=AXIS)
    axes.xaxis.label.set(color=_INK, fontsize=10)
    axes.yaxis.label.set(color=_INK, fontsize=10)
    return figure, axes


def legend(axes: Axes, **options: Any) -> None:
    """Adds a legend to axes."""
    axes.legend(frameon=False, fontsize=_SMALL, labelcolor=_INK, **options)


def log_scale(axes: Axes, *names: Literal["x", "y"]) -> None:
    """Makes axes logarithmic with plain-text labels like 10⁻³. Matplotlib's own labels are
    formulas, whose parsing takes longer than the rest of a plot.
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


def svg_text(
    figure: Figure,
    marks: Sequence[Mark] = (),
    *,
    dots: tuple[Sequence[str], Sequence[str]] = ((), ()),
) -> str:
    """Returns a figure as an SVG element; deterministic.

    Args:
        marks: tooltips of the first axes.
        dots: (paths in units of 1 / `_PER_DECADE` decades, words); a path's `data-which` has
            indices into the words.
    """
    import matplotlib

    text = io.StringIO()
    layout = figure.get_layout_engine()
    if layout is not None:  # laid out here, because saving would draw everything twice
        layout.execute(figure)
        figure.set_layout_engine(None)
    # A fixed salt and no date make the output deterministic.
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with matplotlib.rc_context({"svg.hashsalt": "cdmpp", "svg.fonttype": "none"}):
        figure.savefig(text, format="svg", metadata=nothing)
    content = text.getvalue()
    added = "".join([_dots_text(figure, *dots) if dots[0] else "", *_marks_text(figure, marks)])
    return content[content.index("<svg") : content.rindex("</svg>")] + added + "</svg>\n"


def check_plot_files(folder: Path | None, names: Sequence[str]) -> None:
    """Checks that plots are written to new files of a folder or over earlier plots.

    Raises:
        UsageError: something else has the name of one.
    """
    for path in [] if folder is None else [folder / name for name in names]:
        check_replaceable(path, "<svg", what="an SVG plot", option="--plots")


def svg_in_page(svg: str, caption: str) -> str:
    """Returns an SVG adapted to a page: themed colours, unique ids and an `aria-label`."""
    themed = _COLOUR.sub(lambda found: f"var(--{_IN_PAGE[found.group()]})", svg)
    themed = re.sub('<g id="[^"]*"', "<g", themed)
    themed = re.sub(r'( id="|url\(#|href="#)', rf"\1f{zlib.crc32(svg.encode()):x}-", themed)
    size = 'style="min-width:calc(.7*\\2);max-width:calc(1.2*\\2)"'
    # Limits the size of letters on a phone and on a wide screen.
    themed = re.sub(r'^([^>]*) width="([\d.]+pt)"', rf"\1 {size}", themed)
    return themed.replace(
        "<svg ", f'<svg tabindex="0" role="img" aria-label="{escape(caption)}" ', 1
    )


def _places(figure: Figure, points: Sequence[tuple[float, float]]) -> FloatArray:
    """Returns float64 [N, 2], SVG coordinates of points of the first axes."""
    pixels = figure.axes[0].transData.transform(points)
    return (pixels * [1, -1] + [0, figure.bbox.height]) * 72 / figure.dpi


def _dots_text(figure: Figure, paths: Sequence[str], words: Sequence[str]) -> str:
    (left, bottom), (right, top) = _places(figure, [(1e-3, 1e-3), (1e-2, 1e-2)]) / _PER_DECADE
    x, y = right - left, top - bottom
    shift = f"{_PER_DECADE * (left + 3 * x):.3f} {_PER_DECADE * (bottom + 3 * y):.3f}"
    found = escape(json.dumps(list(words), ensure_ascii=False, separators=(",", ":")))
    return (
        f'<g fill="none" stroke-width="3.6" stroke-opacity="0.55" '
        f'transform="matrix({x:.8f} 0 0 {y:.8f} {shift})" data-words="{found}">'
        f"{''.join(paths)}</g>"
    )


def _marks_text(figure: Figure, marks: Sequence[Mark]) -> Iterator[str]:
    yield '<g fill="none" pointer-events="all">'
    for mark in marks:
        ends = [(mark.x, mark.y), (mark.x + mark.width, mark.y + mark.height)]
        (x, y), (right, bottom) = _places(figure, ends).tolist()
        title = f"<title>{escape(mark.text)}</title>"
        if mark.width:
            place = f'x="{min(x, right):.1f}" y="{min(y, bottom):.1f}"'
            size = f'width="{abs(right - x):.1f}" height="{abs(bottom - y):.1f}"'
            yield f"<rect {place} {size}>{title}</rect>"
        else:
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5">{title}</circle>'
    yield "</g>"
