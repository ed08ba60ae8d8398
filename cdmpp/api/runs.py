"""List and comparison of the run folders of trainings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdmpp.api.answers import Answers, new_axes
from cdmpp.api.arguments import PATH, check_type
from cdmpp.errors import UsageError
from cdmpp.report.run_comparison import RunsFolder
from cdmpp.text import percent_text, seconds_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Runs(Answers[dict[str, Any]]):
    """Run folders: `name`, `kind`, `devices`, `split`, `seed`, `test` (line -> metrics) and
    `problem`, the reason if a folder cannot be read.

    Attributes:
        folder: folder that contains them.
    """

    folder: Path

    def __init__(
        self, folder: Path, found: Iterable[dict[str, Any]], *, notes: Iterable[str] = ()
    ) -> None:
        super().__init__(found, notes=notes)
        self.folder = folder

    def _part(self, found: tuple[dict[str, Any], ...]) -> Runs:
        return Runs(self.folder, found, notes=self.notes)

    def to_json(self) -> list[dict[str, Any]]:
        """Returns the rows that `cdmpp runs --json` prints."""
        return list(self._found)

    def table(self) -> list[list[str]]:
        """Returns titles and lines, one per run."""
        titles = ["run", "model", "devices", "seed", "test error", "constant", "training"]
        return [titles, *(_line(one) for one in self._found)]

    def plot(self, axes: Axes | None = None) -> Axes:
        """Draws the mean absolute percentage error of each run's model on its own test part.

        Raises:
            UsageError: no run has been evaluated.
        """
        known = [(one["name"], 100 * value) for one in self._found if (value := _error(one))]
        if not known:
            raise UsageError("nothing to plot: no run has errors on a test part")
        axes = new_axes(axes, max(1.6, 0.32 * len(known) + 0.9))
        names, errors = zip(*known, strict=True)
        axes.bar_label(axes.barh(names, errors), fmt="%.1f %%", padding=3)
        axes.margins(x=0.12)
        axes.invert_yaxis()
        axes.set_xlabel("mean absolute percentage error on the run's test part (%)")
        return axes

    def compared(self, names: Sequence[str] = ()) -> dict[str, Any]:
        """Compares up to six runs; see `cdmpp.report.run_comparison.RunsFolder`.

        Args:
            names: names of runs; empty = all of the list.

        Raises:
            UsageError: a name is not that of a run, or there are more than six.
            DataError: a run cannot be read.
        """
        return RunsFolder(self.folder).compared(names or [one["name"] for one in self._found])

    def __str__(self) -> str:
        return "\n".join(one["name"] for one in self._found)

    def __repr__(self) -> str:
        return f"<Runs of {str(self.folder)!r}: {len(self)}>"


def runs(folder: str | Path = "runs") -> Runs:
    """Returns the run folders in a folder or its subfolders, as `cdmpp runs` lists them.

    Raises:
        UsageError: not a path.
        DataError: the folder does not exist.
    """
    check_type("folder", folder, PATH, "a folder")
    found = RunsFolder(Path(folder)).runs()
    return Runs(
        Path(folder),
        found,
        notes=[f"{one['name']}: {one['problem']}" for one in found if one["problem"]],
    )


def compared_tables(compared: dict[str, Any]) -> list[tuple[str, list[list[str]]]]:
    """Returns tables of compared runs, each with title and lines: settings and worst tasks."""
    found = compared["runs"]
    names = [one["name"] for one in found]
    facts = [
        ["model", *(one["kind"] for one in found)],
        ["devices", *(", ".join(one["devices"]) for one in found)],
        ["test part", *(one["split"] or "-" for one in found)],
        ["error", *(percent_text(_error(one)) for one in found)],
        ["constant", *(percent_text(_metric(one, "constant")) for one in found)],
        ["training", *(seconds_text(one["training_s"]) for one in found)],
    ]
    tasks = [
        [one["words"], one["device"], *(
            "-" if run is None else f"{run['median_log_error']:.3f} ({run['n']})"
            for run in one["runs"]
        )]
        for one in compared["tasks"][:15]
    ]  # fmt: skip
    return [
        ("each run on its test part", [["", *names], *facts]),
        ("worst tasks: median absolute log error (programs)", [["task", "device", *names], *tasks]),
    ]


def _line(one: dict[str, Any]) -> list[str]:
    if one["problem"]:
        return [one["name"], "not complete", "", "", "", "", ""]
    return [
        one["name"], one["kind"], ", ".join(one["devices"]), str(one["seed"]),
        percent_text(_error(one)), percent_text(_metric(one, "constant")),
        seconds_text(one["training_s"]),
    ]  # fmt: skip


def _error(one: dict[str, Any]) -> float | None:
    return None if one["problem"] else _metric(one, one["kind"])


def _metric(one: dict[str, Any], line: str) -> float | None:
    value = one["test"].get(line, {}).get("mape")
    return None if value is None else float(value)
