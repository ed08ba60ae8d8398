"""Measurement of programs and search of schedules on a device; both need TVM."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdmpp.api.answers import Answers, draw_times
from cdmpp.api.arguments import PATH, check_type, several
from cdmpp.api.dataset import Dataset
from cdmpp.config import from_dict
from cdmpp.errors import UsageError
from cdmpp.text import counted, interval_text, seconds_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from cdmpp.processes.campaign import CampaignProgress
    from tvm_helper.search.progress import SearchProgress


def measure(
    out: str | Path,
    device: str,
    *,
    sample: str | Sequence[str] = (),
    network: str | Path | Sequence[str | Path] = (),
    on_progress: Callable[[CampaignProgress], None] | None = None,
    **options: Any,
) -> Dataset:
    """Builds and times programs on a device, as `cdmpp measure` does. The same call resumes.

    Args:
        out: folder of the campaign and of the dataset.
        device: label of the measured device.
        sample: tasks to sample schedules of, `KIND:SIZE=N,...` or Python files with programs.
        network: files (`.onnx`, `.pt2`) whose tasks are sampled.
        on_progress: called with the progress of the campaign.
        **options: other options of the command by name, e.g. `per_task=16`, `seed=1`,
            `schedules=["default", "random"]`, `most_programs=200`,
            `timing={"spread": 0.01}`.

    Returns:
        the measured programs.

    Raises:
        UsageError: nothing to measure, or an unknown or impossible option.
        DataError: nothing could be measured, or the folder contains another campaign.
        DeviceError: the device is not the one of this machine.
    """
    from tvm_helper.measure.campaign import run_campaign
    from tvm_helper.measure.options import MeasureOptions

    check_type("out", out, PATH, "a folder")
    given = {
        **options, "device": device,
        "sample": _texts("sample", sample, "a task or file"),
        "network": _texts("network", network, "a file"),
    }  # fmt: skip
    asked = from_dict(MeasureOptions, _as_lists(given))
    asked.check()
    run_campaign(asked, Path(out), on_progress=on_progress)
    return Dataset.read(out, device)


class Search(Answers[dict[str, Any]]):
    """Results of a search: one row per task, the `tasks` of `cdmpp search show DIR --json`.

    Attributes:
        folder: folder of the search, with its database and `module.so`.
        summary: all values of the search.
    """

    folder: Path
    summary: dict[str, Any]

    def __init__(
        self, summary: Mapping[str, Any], tasks: Sequence[dict[str, Any]] | None = None
    ) -> None:
        found = summary["tasks"] if tasks is None else tasks
        whole = summary["end_to_end"]
        notes = [
            f"{summary['trials']} of {counted(summary['trials_wanted'], 'trial')} on "
            f"{summary['device']}: {summary['state']}; {summary['failed']} failed"
        ]
        if whole is not None and whole["tuned_s"] is not None:
            tuned, untuned = (seconds_text(whole[f"{way}_s"]) for way in ("tuned", "untuned"))
            notes.append(f"whole network: {tuned}, untuned {untuned}")
        if summary["advice"]:
            notes.append(summary["advice"])
        super().__init__(found, notes=notes)
        self.summary = dict(summary)
        self.folder = Path(summary["folder"])

    def _part(self, found: tuple[dict[str, Any], ...]) -> Search:
        return Search(self.summary, found)

    def to_json(self) -> list[dict[str, Any]]:
        """Returns one row per task."""
        return list(self._found)

    def table(self) -> list[list[str]]:
        """Returns titles and lines, one per task."""
        titles = [
            "task",
            "operator",
            "calls",
            "trials",
            "best measured",
            "tuned",
            "untuned",
            "faster",
        ]
        return [titles, *(
            [
                one["name"], one["operator"], str(one["weight"]), str(one["trials"]),
                interval_text(one["best_s"]), seconds_text(one["tuned_s"]),
                seconds_text(one["untuned_s"]),
                f"{one['speedup']:.2f} x" if one["speedup"] else "-",
            ]
            for one in self._found
        )]  # fmt: skip

    def plot(self, axes: Axes | None = None) -> Axes:
        """Draws the best measured time of each task, and that of the untuned program as a cross.

        Raises:
            UsageError: no task has a measured time.
        """
        return draw_times(axes, [
            (one["name"], one["best_s"], None, None, one["untuned_s"])
            for one in self._found
            if one["best_s"] is not None
        ], predicted="best measured", measured="untuned")  # fmt: skip

    def __str__(self) -> str:
        return "\n".join(f"{one['name']}: {interval_text(one['best_s'])}" for one in self._found)

    def __repr__(self) -> str:
        return f"<Search {str(self.folder)!r}, {counted(len(self), 'task')}: {self.notes[0]}>"


def search(
    what: str | Path | Sequence[str | Path],
    out: str | Path,
    device: str = "this-cpu",
    *,
    on_progress: Callable[[SearchProgress], None] | None = None,
    **options: Any,
) -> Search:
    """Finds fast schedules with TVM's MetaSchedule, as `cdmpp search` does. The same call resumes.

    Args:
        what: a network (`.onnx`, `.pt2`), Python files with programs, or tasks `KIND:SIZE=N,...`.
        out: folder of the search.
        device: label of the measured device; by default this machine's CPU.
        on_progress: called with the progress of the search.
        **options: other options of the command by name, e.g. `trials=200`, `cost_model="xgb"`,
            `minutes=5`, `model="runs/mine"`.

    Returns:
        the results; `folder` contains the compiled module.

    Raises:
        UsageError: nothing to search, or an unknown or impossible option.
        DataError: a file cannot be read, or nothing could be measured.
        DeviceError: the device is not the one of this machine.
    """
    from tvm_helper.search.options import SearchOptions
    from tvm_helper.search.run import plan_search, run_search

    check_type("out", out, PATH, "a folder")
    texts = _texts("what", what, "a network, a file with programs, a task")
    networks = [text for text in texts if text.endswith((".onnx", ".pt2"))]
    tasks = tuple(text for text in texts if text not in networks)
    if len(networks) > 1:
        raise UsageError(f"got {len(networks)} networks ({', '.join(networks)}); expected one")
    given = {**options, "device": device, "task": tasks, "network": next(iter(networks), None)}
    asked = from_dict(SearchOptions, _as_lists(given))
    asked.check()
    return Search(run_search(plan_search(asked), Path(out), on_progress=on_progress))


def _texts(name: str, given: str | Path | Sequence[str | Path], expected: str) -> tuple[str, ...]:
    return tuple(map(str, several(name, given, PATH, expected)))


def _as_lists(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options as in a file: tuples become lists, None means the default."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in given.items()
        if value is not None
    }
