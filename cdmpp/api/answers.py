"""Lists of results with a table, a plot and a data frame for notebooks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar, overload

from cdmpp.errors import UsageError
from cdmpp.text import counted, seconds_text, shortened

if TYPE_CHECKING:
    from typing import Self

    import pandas as pd
    from matplotlib.axes import Axes

Row = TypeVar("Row")
#: Maximum number of rows in a notebook's table.
_MOST_SHOWN = 30
_WIDTH = 80


class Answers(Sequence[Row]):
    """A list of results of one kind.

    Attributes:
        notes: remarks on the results.
    """

    notes: tuple[str, ...]

    def __init__(self, found: Iterable[Row] = (), *, notes: Iterable[str] = ()) -> None:
        self._found = tuple(found)
        self.notes = tuple(notes)

    def __len__(self) -> int:
        return len(self._found)

    @overload
    def __getitem__(self, place: int) -> Row: ...

    @overload
    def __getitem__(self, place: slice) -> Self: ...

    def __getitem__(self, place: int | slice) -> Row | Self:
        if isinstance(place, slice):
            return self._part(self._found[place])
        return self._found[place]

    def _part(self, found: tuple[Row, ...]) -> Self:
        return type(self)(found, notes=self.notes)

    @abstractmethod
    def to_json(self) -> list[dict[str, Any]]:
        """Returns one JSON object per row, as the command prints with `--json`."""

    @abstractmethod
    def table(self) -> list[list[str]]:
        """Returns the titles and the formatted lines."""

    @abstractmethod
    def plot(self, axes: Axes | None = None) -> Axes:
        """Draws the results with their intervals.

        Args:
            axes: matplotlib axes; None = a new figure.
        """

    def to_frame(self) -> pd.DataFrame:
        """Returns the rows of `to_json` as a `pandas.DataFrame`, times in seconds.

        Raises:
            UsageError: pandas is not installed.
        """
        try:
            pandas = import_module("pandas")
        except ImportError:
            raise UsageError(
                "to_frame() needs pandas, which is not installed; install it with: pip install "
                "pandas, or use to_json()"
            ) from None
        frame: pd.DataFrame = pandas.DataFrame(self.to_json())
        return frame

    def __str__(self) -> str:
        return "\n".join(map(str, self._found))

    def __repr__(self) -> str:
        shown = [shortened(str(one), _WIDTH) for one in self._found[:3]]
        more = [f"{len(self) - 3} more"] if len(self) > 3 else []
        return f"<{type(self).__name__}: {'; '.join([*shown, *more]) or 'none'}>"

    def _repr_html_(self) -> str:
        if not len(self):
            return f"<p>{escape(repr(self))}</p>"
        titles, *lines = self.table()
        head = "".join(f"<th>{escape(title)}</th>" for title in titles)
        body = "".join(
            f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in line)}</tr>"
            for line in lines[:_MOST_SHOWN]
        )
        left = len(lines) - _MOST_SHOWN
        more = [f"{counted(left, 'more row')}: to_frame() has all"] if left > 0 else []
        below = "".join(f"<p>{escape(note)}</p>" for note in (*more, *self.notes))
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}"


def new_axes(axes: Axes | None, height: float = 3.6) -> Axes:
    """Returns `axes`, or the axes of a new pyplot figure."""
    if axes is not None:
        return axes
    import matplotlib.pyplot as plt

    found: Axes = plt.subplots(figsize=(7.0, height), layout="constrained")[1]
    found.spines[["top", "right"]].set_visible(False)
    return found


def time_axis(axes: Axes) -> None:
    """Makes the x axis logarithmic, with ticks such as `200 µs`."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis = axes.xaxis
    axes.set_xscale("log")
    low, high = sorted(axes.get_xlim())
    steps = (1.0, 2.0, 5.0) if high / low < 300 else (1.0,)
    axis.set_major_locator(LogLocator(subs=steps))
    axis.set_major_formatter(FuncFormatter(lambda value, _: seconds_text(value, digits=1)))
    axis.set_minor_formatter(NullFormatter())
    axes.grid(True, axis="x", alpha=0.25)


def draw_times(
    axes: Axes | None,
    rows: Sequence[tuple[str, float, float | None, float | None, float | None]],
    *,
    predicted: str = "predicted, 90 % interval",
    measured: str = "measured",
) -> Axes:
    """Draws one line per row: predicted time with its interval, and the measured time if known.

    Args:
        rows: name, predicted seconds, both ends of the interval, measured seconds.
        predicted, measured: legend labels.

    Raises:
        UsageError: there is no row.
    """
    if not rows:
        raise UsageError("nothing to plot: no result has a time; see `reasons` of each")
    axes = new_axes(axes, max(1.6, 0.32 * len(rows) + 0.9))
    for place, (_, value, low, high, other) in enumerate(rows):
        if low is not None and high is not None:
            axes.hlines(place, low, high, color="C0", lw=3, alpha=0.35)
        axes.plot(value, place, "o", color="C0", label=predicted)
        if other is not None:
            axes.plot(other, place, "x", color="C1", label=measured)
    axes.set_yticks(range(len(rows)), [shortened(row[0], _WIDTH) for row in rows])
    axes.invert_yaxis()
    axes.margins(y=0.6 / len(rows))
    time_axis(axes)
    axes.set_xlabel("latency")
    handles, labels = axes.get_legend_handles_labels()
    if measured in labels:
        shown = dict(zip(labels, handles, strict=True))
        axes.legend(shown.values(), shown.keys(), frameon=False, fontsize="small")
    return axes
