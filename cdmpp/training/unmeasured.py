"""Training for unmeasured devices on others of their kind, evaluated by leaving devices out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cdmpp.arrays import FloatArray, IntArray
from cdmpp.calibration.intervals import (
    LatencyCalibration,
    calibrate,
    interval_metrics,
)
from cdmpp.datasets.find import next_step, record_folders
from cdmpp.datasets.judge import judge_in_detail
from cdmpp.datasets.samples import Samples
from cdmpp.datasets.selection import capped_rows
from cdmpp.datasets.splits import Split, workload_of
from cdmpp.devices.device_file import DeviceKind
from cdmpp.devices.registry import check_known, find_device, get_devices
from cdmpp.devices.spec import DeviceSpec, architecture_of
from cdmpp.errors import DataError, UsageError, last_line
from cdmpp.files.atomic import write_columns, write_json
from cdmpp.metrics import mean_metrics
from cdmpp.models.loop.progress import RunProgress, TrainProgress
from cdmpp.models.loop.shards import process_count
from cdmpp.predict.saved_model import describe_new_devices
from cdmpp.text import listed
from cdmpp.training.baselines import judge_lines
from cdmpp.training.options import TrainOptions
from cdmpp.training.run import RunResult, split_samples, train_run
from cdmpp.training.run_folder import part_sizes

#: Subfolder of a run with one folder per training that leaves devices out.
LEFT_OUT = "left-out"
#: Maximum programs per device in a training that leaves devices out: enough to estimate its errors
#: within minutes.
PROGRAMS_PER_DEVICE = 2000
#: Last file written to such a folder: predictions of every line for the left-out devices.
_PREDICTED = "left_out.parquet"


@dataclass(frozen=True)
class Unmeasured:
    """Devices without measurements.

    Attributes:
        devices: their descriptions, of one kind.
        kind: the kind of the devices.
        sources: labels of the measured devices of this kind, sorted.
    """

    devices: tuple[DeviceSpec, ...]
    kind: DeviceKind
    sources: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """Description of the training data that replaces measurements of the devices."""
        names = listed([spec.name for spec in self.devices])
        return (
            f"no measurements of {names} found: the model is trained on {listed(self.sources)} "
            f"and uses only the description of {names}"
        )


@dataclass(frozen=True)
class _LeftOut:
    """Predictions for left-out devices by a training without them.

    Attributes:
        labels: the left-out devices.
        rows: int64, their samples in the test part.
        predicted_s: line -> float64, predictions for these samples.
        train: numbers of samples and tasks in the training part.
    """

    labels: tuple[str, ...]
    rows: IntArray
    predicted_s: dict[str, FloatArray]
    train: dict[str, int]

    @property
    def name(self) -> str:
        return "+".join(self.labels)


def find_unmeasured(labels: Sequence[str], cache_dir: Path) -> Unmeasured | None:
    """Returns the requested devices if none has measurements; None if all have, or without labels.

    Args:
        cache_dir: folder with fetched datasets.

    Raises:
        DeviceError: a label is unknown.
        UsageError: only some have measurements, or they are of several kinds.
        DataError: no device of their kind has measurements.
    """
    here = sorted({label for folder in record_folders(cache_dir) for label in folder.devices})
    check_known(labels, here)
    missing = [label for label in labels if label not in here]
    if not missing:
        return None
    if len(missing) < len(labels):
        raise UsageError(
            f"no measurements of {listed(missing)} found, but some of "
            f"{listed([label for label in labels if label in here])}; expected devices that were "
            "all measured, or all not: train one model of each"
        )
    specs = tuple(get_devices(missing))
    if len({spec.kind for spec in specs}) > 1:
        kinds = ", ".join(f"{spec.name} is of kind {spec.kind}" for spec in specs)
        raise UsageError(
            f"no measurements of {listed(missing)} found, and one model is trained on devices of "
            f"one kind: {kinds}; train one model of each kind"
        )
    kind = specs[0].kind
    sources = tuple(
        label for label in here if (spec := find_device(label)) is not None and spec.kind == kind
    )
    if not sources:
        raise DataError(
            f"no measurements of {listed(missing)} found, and none of another device of kind "
            f"{kind}; measured devices: {', '.join(here) or 'none'}; {next_step(specs[0].name)}"
        )
    return Unmeasured(specs, kind, sources)


def check_alone() -> None:
    """Checks that only one process trains.

    Raises:
        UsageError: torchrun started several processes.
    """
    if process_count() > 1:
        raise UsageError(
            "training for devices without measurements runs in one process; start it without "
            "torchrun"
        )


def train_unmeasured(
    options: TrainOptions,
    found: Unmeasured,
    samples: Samples,
    run_dir: Path,
    *,
    on_progress: RunProgress,
    programs_per_device: int = PROGRAMS_PER_DEVICE,
) -> RunResult:
    """Trains a model for unmeasured devices and calibrates its intervals on left-out devices.

    For each architecture among the measured devices, a model is trained without it and evaluated on
    its tasks that are not in the training data. The run's model is then trained on all devices; its
    intervals for unmeasured devices come from the errors on left-out devices.

    Finished trainings are not repeated. The test samples of the result are those of the left-out
    devices. `metrics` has the additional entry `unmeasured`; its `test` entry is on held-out tasks
    of trained devices.

    Args:
        options: options with `devices` = `found.sources`.
        samples: measurements of these devices.
        programs_per_device: maximum programs per device in a training that leaves devices out.

    Raises:
        UsageError: the folder holds another run, or several processes train together.
        DataError: all measured devices are of one architecture, a folder cannot be written, or a
            part of the split is empty.
    """
    check_alone()
    groups = architectures(samples.devices)
    if len(groups) < 2:
        raise DataError(
            f"all measured devices of kind {found.kind} are of one architecture "
            f"({', '.join(found.sources)}), so errors on another architecture cannot be "
            "estimated; " + next_step(found.devices[0].name)
        )
    parts = [left_out_parts(options, samples, own, most=programs_per_device) for own in groups]
    everything = split_samples(options, samples)
    clock = _Clock([len(one.train) for one in (*parts, everything)], on_progress)
    left_out = []
    for labels, own in zip(groups, parts, strict=True):
        show = clock.show(f"without {listed(labels)}")
        folder = run_dir / LEFT_OUT / "+".join(labels)
        one, is_new = _leave_out(options, samples, labels, own, folder, show)
        left_out.append(one)
        clock.done(is_new=is_new)
    show = clock.show("with all")
    result = train_run(options, samples, run_dir, on_progress=show, parts=everything)
    widths = _calibration(samples, left_out, options.model)
    describe_new_devices(run_dir, found.devices, widths)
    judged = _judged(samples, left_out, options.model)
    mean = {
        line: mean_metrics([device["test"][line] for device in judged.values()])
        for line in next(iter(judged.values()))["test"]
    }
    result.metrics["unmeasured"] = {
        "devices": [spec.name for spec in found.devices],
        "sources": list(found.sources),
        "programs_per_device": programs_per_device,
        "calibration_tasks": None if widths is None else widths.tasks,
        "left_out": judged,
        "mean": mean,
    }
    if recognised := _mean_recognised(list(judged.values())):
        result.metrics["unmeasured"]["mean_recognised"] = recognised
    write_json(run_dir / "metrics.json", result.metrics)
    rows = np.concatenate([one.rows for one in left_out])
    predicted_s = {
        line: np.concatenate([one.predicted_s[line] for one in left_out])
        for line in left_out[0].predicted_s
    }
    return replace(result, test=samples.take(rows), predicted_s=predicted_s)


def architectures(devices: Sequence[DeviceSpec]) -> list[tuple[str, ...]]:
    """Returns the labels of the devices, grouped by architecture.

    A device must be left out together with others of its architecture for an unbiased error.
    """
    groups: dict[object, list[str]] = {}
    for spec in devices:
        groups.setdefault(architecture_of(spec) or spec.name, []).append(spec.name)
    return sorted(tuple(labels) for labels in groups.values())


def left_out_parts(
    options: TrainOptions, samples: Samples, labels: Sequence[str], *, most: int
) -> Split:
    """Returns the parts of a training without some devices.

    Training and validation part have at most `most` samples of each other device, chosen by task.
    The test part has the samples of the left-out devices whose workload is in neither.

    Raises:
        DataError: a part is empty.
    """
    parts = split_samples(replace(options, split="task", test_networks=()), samples)
    is_out = np.isin([spec.name for spec in samples.devices], labels)[samples.device]
    known = np.concatenate([parts.train, parts.validation])
    known = known[~is_out[known]]
    workloads = np.array([workload_of(str(task)) for task in samples.programs.tasks], object)
    seen = set(workloads[np.unique(samples.task_id[known])])
    is_seen = np.array([workload in seen for workload in workloads], bool)[samples.task_id]
    learned = samples.take(known)
    kept = np.sort(known[capped_rows(learned, most, seed=options.seed)])
    train, validation = (kept[np.isin(kept, part)] for part in (parts.train, parts.validation))
    test = np.flatnonzero(is_out & ~is_seen)
    if not (len(train) and len(validation) and len(test)):
        raise DataError(
            f"without {listed(labels)} a part is empty ({len(train)} training, {len(validation)} "
            f"validation and {len(test)} test samples); use another --seed, or set fractions"
        )
    return replace(
        parts, kind="task", train=train, validation=validation, test=test,
        description=
            f"without {listed(labels)}, evaluated on tasks of {listed(labels)} outside the "
            f"training data (seed {options.seed})",
    )  # fmt: skip


def _leave_out(
    options: TrainOptions,
    samples: Samples,
    labels: tuple[str, ...],
    parts: Split,
    folder: Path,
    show: RunProgress,
) -> tuple[_LeftOut, bool]:
    """Trains without some devices; returns predictions for them and whether it trained now."""
    sizes = part_sizes(train=samples.take(parts.train))["train"]
    test = samples.take(parts.test)
    found = _read(folder / _PREDICTED, test)
    is_new = found is None
    if found is None:
        others = tuple(label for label in options.devices if label not in labels)
        own = replace(options, devices=others, split="task", test_networks=())
        result = train_run(own, samples, folder, on_progress=show, parts=parts)
        found = result.predicted_s
        columns = {"program_id": test.programs.program_id[test.program], **found}
        write_columns(folder / _PREDICTED, columns)
    return _LeftOut(labels, parts.test, found, sizes), is_new


def _read(path: Path, test: Samples) -> dict[str, FloatArray] | None:
    """Reads the predictions of a finished training; None if there are none for these samples.

    Raises:
        DataError: the file is damaged.
    """
    if not path.is_file():
        return None
    try:
        table = pq.read_table(path)
        identities = table["program_id"].to_pylist()
    except (OSError, KeyError, pa.ArrowException) as error:
        raise DataError(
            f"{path} is damaged ({last_line(error)}); delete it and start the training again"
        ) from None
    if identities != list(test.programs.program_id[test.program]):
        return None
    names = [name for name in table.column_names if name != "program_id"]
    return {name: table[name].to_numpy() for name in names}


def _calibration(
    samples: Samples, left_out: Sequence[_LeftOut], model: str
) -> LatencyCalibration | None:
    """Returns intervals of the device with the largest errors; None if there are too few tasks."""
    rows = np.concatenate([one.rows for one in left_out])
    predicted_s = np.concatenate([one.predicted_s[model] for one in left_out])
    found = calibrate(samples.take(rows), predicted_s)
    return None if found is None else found.of_the_worst_device()


def _judged(
    samples: Samples, left_out: Sequence[_LeftOut], model: str
) -> dict[str, dict[str, Any]]:
    """Returns left-out device -> entry of metrics.json.

    It has the metrics of each line, and those of intervals calibrated on the other left-out
    devices.
    """
    found: dict[str, dict[str, Any]] = {}
    for one in left_out:
        others = [other for other in left_out if other is not one]
        widths = _calibration(samples, others, model)
        for index, spec in enumerate(samples.devices):
            if spec.name not in one.labels:
                continue
            own = samples.device[one.rows] == index
            test = samples.take(one.rows[own])
            lines = {name: values[own] for name, values in one.predicted_s.items()}
            whole, recognised = judge_lines(test, lines, _flat)
            found[spec.name] = {
                "without": list(one.labels),
                "train": one.train,
                "test": whole,
                **({"recognised": recognised} if recognised else {}),
                **_intervals(test, lines[model], widths),
            }
    return found


def _mean_recognised(devices: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Returns the recognised metrics of `judge_lines`, averaged over devices with any."""
    means: dict[str, dict[str, Any]] = {}
    for kind in devices[0].get("recognised", {}):
        parts = [own for one in devices if (own := one["recognised"][kind])]
        lines = parts[0] if parts else {}
        means[kind] = {line: mean_metrics([own[line] for own in parts]) for line in lines}
    return means


def _flat(samples: Samples, predicted_s: FloatArray) -> dict[str, Any]:
    """Returns the metrics of the samples of one device."""
    values = judge_in_detail(samples, predicted_s)
    values.pop("by_device")
    return values


def _intervals(
    samples: Samples, predicted_s: FloatArray, widths: LatencyCalibration | None
) -> dict[str, float | None]:
    half = np.full(len(samples), np.nan) if widths is None else widths.half_width(samples)
    return interval_metrics(samples, predicted_s * np.exp(-half), predicted_s * np.exp(half))


class _Clock:
    """Reports the number of the current training and the estimated time left.

    Args:
        sizes: number of training samples of each training, in order.
    """

    def __init__(self, sizes: Sequence[int], report: RunProgress) -> None:
        self._sizes, self._report = sizes, report
        self._finished, self._began = 0, time.monotonic()
        self._spent_s, self._learned = 0.0, 0

    def done(self, *, is_new: bool) -> None:
        """Records the end of a training, finished now or in an earlier run."""
        now = time.monotonic()
        if is_new:
            self._spent_s += now - self._began
            self._learned += self._sizes[self._finished]
        self._began = now
        self._finished += 1

    def show(self, what: str) -> Callable[[str, TrainProgress | None], None]:
        """Returns a progress callback for the next training."""
        ahead = sum(self._sizes[self._finished :])
        left_s = self._spent_s / self._learned * ahead if self._learned else None
        time_left = "" if left_s is None else f", about {max(1, round(left_s / 60))} min left"
        head = f"training {self._finished + 1} of {len(self._sizes)} ({what}{time_left})"
        return lambda part, progress: self._report(f"{head}: {part}", progress)
