"""Comparison of run folders: training curves, errors by task and worst programs.

from cdmpp.report.run_comparison import RunsFolder

print(RunsFolder(Path("runs")).compared(["first", "second"])["tasks"][0])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.errors import CdmppError, DataError, NotFoundError, UsageError
from cdmpp.files.atomic import read_json
from cdmpp.files.json_text import parse_json
from cdmpp.files.open_text import read_text
from cdmpp.predict.saved_model import read_card
from cdmpp.text import short_task, task_words
from cdmpp.training.run_folder import read_predictions

_HINT = "give a finished run folder of `cdmpp train`"
_MOST_RUNS, _MOST_COMPARED = 500, 6
_TASKS, _WORST, _POINTS = 40, 25, 400
_CURVE = ("epoch", "training_loss", "validation_loss", "elapsed_s")


@dataclass(frozen=True)
class _Errors:
    """The predictions of a run.

    Attributes:
        key: (program id, device) -> row.
        task: object [N], (task, device).
        words: task -> readable name.
        part: object [N], `train`, `validation` or `test`.
        measured_s, predicted_s: float64 [N].
    """

    key: Mapping[tuple[str, str], int]
    task: NDArray[np.object_]
    words: Mapping[str, str]
    part: NDArray[np.object_]
    measured_s: NDArray[np.float64]
    predicted_s: NDArray[np.float64]

    @property
    def log_error(self) -> NDArray[np.float64]:
        """float64 [N], log of predicted over measured."""
        return np.log(self.predicted_s / self.measured_s)


class RunsFolder:
    """A folder with run folders one or two levels below it.

    Raises:
        DataError: the folder does not exist.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise DataError(f"{folder} not found; expected a folder of run folders")
        self.folder = folder

    def names(self) -> list[str]:
        """Returns the sorted relative paths of the run folders; at most 500."""
        places = (
            found for deep in ("*", "*/*") for found in self.folder.glob(f"{deep}/metrics.json")
        )
        runs = (place.parent for place in places if (place.parent / "model.json").is_file())
        return sorted(run.relative_to(self.folder).as_posix() for run in runs)[:_MOST_RUNS]

    def runs(self) -> list[dict[str, Any]]:
        """Returns the facts of every run; an unreadable run has `name` and `problem` only."""
        found = []
        for name in self.names():
            try:
                found.append(_facts(name, self.folder / name))
            except CdmppError as error:
                found.append({"name": name, "problem": str(error)})
        return found

    def report(self, name: str) -> Path:
        """Returns the path of a run's report.html.

        Raises:
            NotFoundError: the run or its report does not exist.
        """
        path = self._run(name) / "report.html"
        if not path.is_file():
            raise NotFoundError(f"run {name!r} has no report.html")
        return path

    def compared(self, names: Sequence[str]) -> dict[str, Any]:
        """Compares one to six runs.

        Returns:
            `runs`: facts, `test` (line -> metrics) and `curve` (one entry per epoch);
            `tasks`: tasks of the test parts, worst first: task, words, device, and `runs` with the
            number of programs `n` and the `median_log_error` per run, None if the run's test part
            lacks the task;
            `worst`: test programs with the largest errors: program_id, task, words, device,
            measured_s, and `runs` with predicted_s and part per run, None if the run lacks the
            program;
            `points`: per run a sample of its test programs, see `_points`.

        Raises:
            NotFoundError: a run does not exist.
            UsageError: there are none or more than six.
            DataError: a run cannot be read.
        """
        if not 0 < len(names) <= _MOST_COMPARED:
            raise UsageError(f"{len(names)} runs; expected 1 to {_MOST_COMPARED} to compare")
        folders = [self._run(name) for name in names]
        errors = [_errors(folder) for folder in folders]
        runs = [
            {**_facts(name, folder), "curve": _curve(folder / "log.jsonl")}
            for name, folder in zip(names, folders, strict=True)
        ]
        return {
            "runs": runs, "tasks": _tasks(errors), "worst": _worst(errors),
            "points": _points(errors),
        }  # fmt: skip

    def _run(self, name: str) -> Path:
        if name not in self.names():
            raise NotFoundError(
                f"no run {name[:100]!r} in {self.folder}; list runs with `cdmpp runs` or `/v1/runs`"
            )
        return self.folder / name


def _facts(name: str, folder: Path) -> dict[str, Any]:
    card = read_card(folder)
    metrics = _metrics(folder)
    return {
        "name": name, "problem": None, "kind": metrics.get("model", card.kind),
        "data_hash": card.data_hash,
        "devices": [spec.name for spec in card.devices],
        "split": card.split.get("description", ""), "seed": card.split.get("seed"),
        "training_s": metrics.get("training_s"), "test": _test(metrics),
        "has_report": (folder / "report.html").is_file(),
    }  # fmt: skip


def _metrics(folder: Path) -> dict[str, Any]:
    value = read_json(folder / "metrics.json", what="metrics", hint=_HINT)
    if not isinstance(value, dict) or not isinstance(value.get("test"), dict):
        raise DataError(f"{folder / 'metrics.json'} has no metrics of a test part; {_HINT}")
    return value


def _test(metrics: dict[str, Any]) -> dict[str, Any]:
    """Returns the metrics of every line on the test part over all devices."""
    lines = metrics["test"]
    return {
        line: {key: value for key, value in found.items() if isinstance(value, int | float)}
        for line, found in lines.items()
        if isinstance(found, dict)
    }


def _curve(path: Path) -> list[dict[str, Any]]:
    """Returns the epochs of a training; empty for models without epochs, such as trees."""
    if not path.is_file():
        return []
    try:
        entries = [parse_json(line) for line in read_text(path, expected="a log").splitlines()]
        return [{key: entry.get(key) for key in _CURVE} for entry in entries]
    except (ValueError, AttributeError) as error:
        raise DataError(f"{path} is damaged ({error}); {_HINT}") from None


def _errors(folder: Path) -> _Errors:
    table = read_predictions(folder / "predictions.parquet")
    devices, tasks = table["device"].tolist(), table["task"].tolist()
    keys = zip(table["program_id"].tolist(), devices, strict=True)
    places = np.empty(len(tasks), object)
    places[:] = list(zip(tasks, devices, strict=True))
    operators = dict(zip(tasks, table["operator"].tolist(), strict=True))
    return _Errors(
        {key: row for row, key in enumerate(keys)}, places,
        {task: task_words(task, operator) for task, operator in operators.items()}, table["part"],
        table["measured_s"], table["predicted_s"],
    )  # fmt: skip


def _tasks(errors: Sequence[_Errors]) -> list[dict[str, Any]]:
    found: dict[tuple[str, str], list[dict[str, Any] | None]] = {}
    for number, one in enumerate(errors):
        rows = np.flatnonzero(one.part == "test")
        size = np.abs(one.log_error[rows])
        by_task: dict[tuple[str, str], list[float]] = {}
        for place, value in zip(one.task[rows].tolist(), size.tolist(), strict=True):
            by_task.setdefault(place, []).append(value)
        for place, values in by_task.items():
            entry = found.setdefault(place, [None] * len(errors))
            entry[number] = {"n": len(values), "median_log_error": float(np.median(values))}

    def largest(item: tuple[Any, list[dict[str, Any] | None]]) -> float:
        return max(float(one["median_log_error"]) for one in item[1] if one is not None)

    worst = sorted(found.items(), key=largest, reverse=True)[:_TASKS]
    words = _words(errors)
    return [
        {"task": short_task(task, ""), "words": words[task], "device": device, "runs": runs}
        for (task, device), runs in worst
    ]


def _words(errors: Sequence[_Errors]) -> dict[str, str]:
    return {task: words for one in errors for task, words in one.words.items()}


def _worst(errors: Sequence[_Errors]) -> list[dict[str, Any]]:
    """Returns the test programs with the largest error in any run, largest first."""
    size: dict[tuple[str, str], float] = {}
    for one in errors:
        error = np.where(one.part == "test", np.abs(one.log_error), -1.0)
        ids = list(one.key)
        rows = np.array(list(one.key.values()), int)
        for place in np.argsort(-error[rows], kind="stable")[:_WORST].tolist():
            if error[rows[place]] >= 0:
                key = ids[place]
                size[key] = max(size.get(key, 0.0), float(error[rows[place]]))
    return [_program(key, errors) for key in sorted(size, key=lambda key: -size[key])[:_WORST]]


def _points(errors: Sequence[_Errors]) -> list[list[dict[str, Any]]]:
    """Returns up to 400 test programs per run, evenly spaced in rank by measured time: words,
    device, measured_s, predicted_s.
    """
    found = []
    for one in errors:
        rows = np.flatnonzero(one.part == "test")
        rows = rows[np.argsort(one.measured_s[rows], kind="stable")]
        chosen = rows[np.unique(np.linspace(0, len(rows) - 1, min(len(rows), _POINTS)).astype(int))]
        found.append([
            {"words": one.words[one.task[row][0]], "device": one.task[row][1],
             "measured_s": float(one.measured_s[row]), "predicted_s": float(one.predicted_s[row])}
            for row in chosen.tolist()
        ])  # fmt: skip
    return found


def _program(key: tuple[str, str], errors: Sequence[_Errors]) -> dict[str, Any]:
    runs: list[dict[str, Any] | None] = []
    facts: dict[str, Any] = {}
    for one in errors:
        row = one.key.get(key)
        if row is None:
            runs.append(None)
            continue
        runs.append({"predicted_s": float(one.predicted_s[row]), "part": str(one.part[row])})
        task, device = one.task[row]
        facts = {
            "program_id": key[0], "task": short_task(task, ""), "words": one.words[task],
            "device": device,
            "measured_s": float(one.measured_s[row]),
        }  # fmt: skip
    return {**facts, "runs": runs}
