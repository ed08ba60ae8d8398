"""Out-of-distribution programs, and the training tasks nearest to a program."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from lzma import LZMAError
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from cdmpp.arrays import BoolArray, FloatArray, IntArray
from cdmpp.datasets.samples import ProgramArrays, Samples
from cdmpp.errors import DataError
from cdmpp.files.checked_tensors import read_tensors, write_tensors
from cdmpp.files.json_text import parse_json
from cdmpp.models.parts.pooling import pooled_features
from cdmpp.programs.added_columns import LEAF_EXTRA_NAMES
from cdmpp.programs.schema import LEAF_FEATURE_NAMES

FILE_NAME = "training_tasks.safetensors"
#: Format 1 had float16 centres without steps, format 2 uncompressed steps, format 3 zlib-compressed
#: steps and uncompressed names.
FORMAT = 4
NEAREST = 3

#: Share of training programs that are nearer than the threshold to a task other than their own.
_THRESHOLD_QUANTILE = 0.99
#: Lower bound on the deviation of a column; most columns are logarithms to base 2.
_LEAST_DEVIATION = 0.1
#: A column that is constant over at least `_LEAST_TASKS` training tasks counts as unseen more than
#: `_UNSEEN` deviations away.
_LEAST_TASKS, _UNSEEN = 30, 2.0
_CHUNK = 4096
_CENTRES_AT_ONCE = 1024
#: Maximum number of quantisation steps from the mean of a column to a centre.
_STEPS = 127
#: Minimum step as a share of the threshold, and minimum unit. Such steps change a distance at the
#: threshold by 0.5 %.
_LEAST_STEP, _LEAST_UNIT = 1 / 3, 1e-6
#: LZMA options for bytes without alignment; neighbouring steps of a column are similar.
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9, "lc": 0, "lp": 0, "pb": 0}]
_MOST_NAME_BYTES = 1 << 28
_NAMES = ("tasks", "operators")
_HINT = "retrain with `cdmpp train`"


@dataclass(frozen=True)
class NearTask:
    """A training task near a program.

    Attributes:
        task: `"<workload key>|<target kind>"`.
        operator: its operator, such as `conv2d+add+relu`.
        distance: root mean square of the standardised difference over columns.
    """

    task: str
    operator: str
    distance: float


@dataclass(frozen=True)
class ColumnDifference:
    """A leaf column in which a program differs from a training task.

    Attributes:
        column: as in `docs/reference/features.md`.
        here: its maximum over the program's leaves.
        there: the mean of that maximum over the task's programs.
    """

    column: str
    here: float
    there: float


@dataclass(frozen=True)
class Familiarity:
    """Distances of programs to the training tasks.

    Attributes:
        distance: float64 [N], distance to the nearest training task.
        is_far: bool [N], whether a program of an untrained task is above the distance threshold, or
            differs in a column that is constant over the training tasks of its kind of device.
        nearest: nearest training tasks of each program, nearest first.
    """

    distance: FloatArray
    is_far: BoolArray
    nearest: list[list[NearTask]]


@dataclass(frozen=True)
class TrainingTasks:
    """The tasks of a training part as points in the space of pooled leaf columns.

    A program is represented by the mean and the maximum of each leaf column over its leaves and the
    log of their number, standardised over the programs of the training part. A task is the mean of
    its programs.

    Attributes:
        tasks: T names, `"<workload key>|<target kind>"`.
        operators: T operator names.
        mean: float32 [F].
        deviation: float32 [F], positive.
        centre: float32 [T, F], standardised.
        threshold: distance above which a program is far: the 0.99 quantile of the distances of
            training programs to the nearest task other than their own, each task with the same
            weight. Infinite if there was only one task.
    """

    tasks: tuple[str, ...]
    operators: tuple[str, ...]
    mean: NDArray[np.float32]
    deviation: NDArray[np.float32]
    centre: NDArray[np.float32]
    threshold: float

    @classmethod
    def fit(cls, train: Samples) -> TrainingTasks:
        """Fits the tasks of a training part; each program counts once."""
        rows = np.unique(train.program)
        columns = _Columns(train.programs, rows)
        mean, deviation = _moments(columns)
        tasks, owner = np.unique(train.programs.task_id[rows], return_inverse=True)
        centre = _centres(columns, mean, deviation, owner, len(tasks))
        found = cls(
            tasks=tuple(str(train.programs.tasks[task]) for task in tasks),
            operators=_operators(train.programs, rows, owner),
            mean=mean,
            deviation=deviation,
            centre=centre,
            threshold=np.inf,
        )
        return found if len(tasks) < 2 else found._with_threshold(columns, owner)

    def extended(self, train: Samples) -> TrainingTasks:
        """Returns these tasks plus the new tasks of `train`; standardisation and threshold stay."""
        rows = np.unique(train.program)
        known = set(self.tasks)
        names = train.programs.tasks[train.programs.task_id[rows]]
        rows = rows[np.array([str(name) not in known for name in names], bool)]
        if len(rows) == 0:
            return self
        tasks, owner = np.unique(train.programs.task_id[rows], return_inverse=True)
        columns = _Columns(train.programs, rows)
        self._check_width(columns)
        centre = _centres(columns, self.mean, self.deviation, owner, len(tasks))
        return TrainingTasks(
            tasks=(*self.tasks, *(str(train.programs.tasks[task]) for task in tasks)),
            operators=(*self.operators, *_operators(train.programs, rows, owner)),
            mean=self.mean,
            deviation=self.deviation,
            centre=np.concatenate([self.centre, centre]),
            threshold=self.threshold,
        )

    def familiarity(self, samples: Samples, *, nearest: int = NEAREST) -> Familiarity:
        """Returns the distances of the samples' programs; devices and latencies are ignored.

        Args:
            nearest: number of nearest tasks to return per sample.

        Raises:
            DataError: the columns differ from those of the training part.
        """
        rows, sample_row = np.unique(samples.program, return_inverse=True)
        columns = _Columns(samples.programs, rows)
        if len(rows):
            self._check_width(columns)
        count = min(nearest, len(self.tasks))
        near = np.zeros((len(rows), count), np.int64)
        distance = np.zeros((len(rows), count))
        is_unseen = np.zeros(len(rows), bool)
        names = samples.programs.tasks[samples.programs.task_id[rows]]
        for_cpu = _are_for_cpus(names)
        for start, values in columns.chunks():
            part = slice(start, start + len(values))
            is_unseen[part] = self._do_unseen(self._standardised(values), for_cpu[part])
            found = _distances(self._standardised(values), self.centre)
            order = np.argsort(found, axis=1, kind="stable")[:, :count]
            near[start : start + len(values)] = order
            distance[start : start + len(values)] = np.take_along_axis(found, order, axis=1)
        known = set(self.tasks)
        is_new = np.array([str(name) not in known for name in names], bool)
        is_far = is_new & ((distance[:, 0] > self.threshold) | is_unseen)
        named = [
            [
                NearTask(self.tasks[task], self.operators[task], float(how_far))
                for task, how_far in zip(near[row].tolist(), distance[row].tolist(), strict=True)
            ]
            for row in range(len(rows))
        ]
        return Familiarity(
            distance=distance[sample_row, 0],
            is_far=is_far[sample_row],
            nearest=[named[row] for row in sample_row.tolist()],
        )

    def differences(self, samples: Samples, task: str, *, count: int = 3) -> list[ColumnDifference]:
        """Returns the leaf columns in which a program differs most from a training task.

        The largest difference comes first.

        Args:
            samples: one sample.
            task: a name of `tasks`.
            count: number of columns.

        Raises:
            DataError: the columns differ from those of the training part.
        """
        columns = _Columns(samples.programs, samples.program)
        self._check_width(columns)
        ((_, values),) = columns.chunks()
        leaf = (columns.width - 1) // 2
        greatest = slice(leaf, 2 * leaf)  # a mean over leaves need not be the value of any leaf
        own = self._standardised(values)[0][greatest]
        theirs = self.centre[self.tasks.index(task)][greatest]
        names = [*LEAF_FEATURE_NAMES, *LEAF_EXTRA_NAMES]
        found = []
        for place in np.argsort(-np.abs(own - theirs), kind="stable")[:count].tolist():
            logs = np.array([own[place], theirs[place]], np.float64)
            logs = logs * self.deviation[greatest][place] + self.mean[greatest][place]
            here, there = np.sign(logs) * (np.exp2(np.abs(logs)) - 1.0)
            # Rounding and adding 0.0 remove residues and negative zeros of the round trip.
            own_value, other = (round(float(value), 3) + 0.0 for value in (here, there))
            found.append(ColumnDifference(names[place], own_value, other))
        return found

    def save(self, directory: Path) -> None:
        """Writes training_tasks.safetensors.

        Tasks are sorted by operator. Centres are quantised to at most 255 steps per column and
        compressed by LZMA column by column.

        Raises:
            DataError: the file cannot be written.
        """
        order = sorted(range(len(self.tasks)), key=lambda task: self.operators[task])
        names = {name: [getattr(self, name)[task] for task in order] for name in _NAMES}
        described = {
            "format": FORMAT,
            "count": len(order),
            "threshold": None if np.isinf(self.threshold) else self.threshold,
        }
        unit = max(self.threshold, _LEAST_UNIT) if np.isfinite(self.threshold) else 1.0
        step = np.maximum(np.abs(self.centre).max(axis=0, initial=0.0) / _STEPS, _LEAST_STEP * unit)
        steps = np.rint(self.centre[order] / step).astype(np.int8)
        tensors = {
            "mean": self.mean,
            "deviation": self.deviation,
            "centre": _packed(steps.T.tobytes()),
            "step": step.astype(np.float32),
            "names": _packed(json.dumps(names).encode()),
        }
        metadata = {"training_tasks": json.dumps(described, allow_nan=False)}
        write_tensors(directory / FILE_NAME, save(tensors, metadata=metadata))

    @classmethod
    def load(cls, directory: Path) -> TrainingTasks | None:
        """Reads the file that `save` wrote; None if the folder has none.

        Raises:
            DataError: the file is damaged or of another format.
        """
        path = Path(directory) / FILE_NAME
        if not path.exists():
            return None
        try:
            content, metadata = read_tensors(path)
            described: dict[str, Any] = parse_json(metadata["training_tasks"])
            if described["format"] != FORMAT:
                raise DataError(
                    f"{path} has format {described['format']!s:.80}, expected {FORMAT}; {_HINT}"
                )
            tensors = load(content)
            mean, deviation, packed, step, packed_names = (
                tensors[name] for name in ("mean", "deviation", "centre", "step", "names")
            )
            threshold, count = described["threshold"], int(described["count"])
            names = parse_json(_unpacked(packed_names, _MOST_NAME_BYTES))
            tasks, operators = (tuple(map(str, names[name])) for name in _NAMES)
            content = _unpacked(packed, len(mean) * len(tasks))
            if not len(tasks) == len(operators) == count or len(content) != len(mean) * count:
                raise ValueError(f"it does not have {count} tasks of {len(mean)} columns")
            if not all(np.isfinite(one).all() for one in (mean, deviation, step)):
                raise ValueError("it has values that are not finite")
            steps = np.frombuffer(content, np.int8).reshape(len(mean), count).T
            return cls(
                tasks=tasks,
                operators=operators,
                mean=mean,
                deviation=deviation,
                centre=np.asarray(steps.astype(np.float32) * step, np.float32),
                threshold=np.inf if threshold is None else float(threshold),
            )
        except (OSError, SafetensorError, KeyError, TypeError, ValueError, LZMAError) as error:
            raise DataError(f"{path} is damaged ({error}); {_HINT}") from error

    def _do_unseen(
        self, values: NDArray[np.float32], for_cpu: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Returns bool [n], whether a program differs in a column that is constant in training.

        Training tasks of CPUs and of other devices are compared separately.

        Args:
            values: float32 [n, F], standardised.
            for_cpu: bool [n], whether a program is for CPUs.
        """
        found = np.zeros(len(values), bool)
        for kind, (same, centre) in self._same_in_all.items():
            rows = np.flatnonzero(for_cpu == kind)
            away = np.abs(values[np.ix_(rows, same)] - centre)
            found[rows] = (away > _UNSEEN).any(axis=1)
        return found

    @cached_property
    def _same_in_all(self) -> dict[bool, tuple[IntArray, NDArray[np.float32]]]:
        """Whether for CPUs -> columns that are constant over these tasks, and their values.

        A kind with fewer than `_LEAST_TASKS` tasks is missing.
        """
        own, found = _are_for_cpus(np.array(self.tasks, object)), {}
        for kind in (True, False):
            centre = self.centre[own == kind]
            if len(centre) >= _LEAST_TASKS:
                same = np.flatnonzero((centre == centre[0]).all(axis=0))
                found[kind] = same, centre[0, same]
        return found

    def _standardised(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        return (values - self.mean) / self.deviation

    def _with_threshold(self, columns: _Columns, owner: IntArray) -> TrainingTasks:
        to_others = np.zeros(len(owner))
        for start, values in columns.chunks():
            rows = slice(start, start + len(values))
            distance = _distances(self._standardised(values), self.centre)
            distance[np.arange(len(values)), owner[rows]] = np.inf
            to_others[rows] = distance.min(axis=1)
        order = np.argsort(to_others, kind="stable")
        weight = np.cumsum(1.0 / np.bincount(owner)[owner[order]])
        place = int(np.searchsorted(weight / weight[-1], _THRESHOLD_QUANTILE - 1e-9))
        threshold = float(to_others[order[min(place, len(order) - 1)]])
        return TrainingTasks(
            self.tasks, self.operators, self.mean, self.deviation, self.centre, threshold
        )

    def _check_width(self, columns: _Columns) -> None:
        if columns.width != len(self.mean):
            raise DataError(
                f"the programs have {columns.width} pooled leaf columns, the training part had "
                f"{len(self.mean)}; extract them again with `cdmpp dataset extract`, or {_HINT}"
            )


def _are_for_cpus(tasks: NDArray[np.object_]) -> NDArray[np.bool_]:
    """Returns bool [n], whether tasks, `"<workload key>|<target kind>"`, are for CPUs."""
    return np.array([str(task).endswith("|llvm") for task in tasks], bool)


def _packed(content: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(lzma.compress(content, lzma.FORMAT_RAW, filters=_FILTERS), np.uint8)


def _unpacked(packed: NDArray[np.uint8], most: int) -> bytes:
    """Decompresses the output of `_packed`; stops after `most` + 1 bytes.

    Raises:
        ValueError: the content has more than `most` bytes.
        LZMAError: the content is damaged.
    """
    reader = lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=_FILTERS)
    content = reader.decompress(packed.tobytes(), most + 1)
    if len(content) > most:
        raise ValueError(f"it unpacks to more than {most} bytes")
    return content


class _Columns:
    """Pooled columns of chosen programs, in chunks."""

    def __init__(self, programs: ProgramArrays, rows: IntArray) -> None:
        self._programs = programs
        self._rows = rows
        leaf = programs.leaf_features.shape[1] + programs.leaf_extra.shape[1]
        self.width = 2 * leaf + 1

    def chunks(self) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Yields (first row, float32 [n, F])."""
        for start in range(0, len(self._rows), _CHUNK):
            pooled = pooled_features(self._programs, self._rows[start : start + _CHUNK])
            leaf = (self.width - 1) // 2
            pooled[:, :leaf] /= np.maximum(pooled[:, -1:], 1.0)
            pooled[:, -1] = np.log2(1.0 + pooled[:, -1])
            yield start, pooled


def _moments(columns: _Columns) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Returns mean and standard deviation (at least `_LEAST_DEVIATION`) of every column."""
    count = 0
    total = np.zeros(columns.width)
    for _, values in columns.chunks():
        count += len(values)
        total += values.sum(axis=0, dtype=np.float64)
    mean = total / max(count, 1)
    square = np.zeros(columns.width)
    for _, values in columns.chunks():
        square += np.square(values - mean).sum(axis=0)
    deviation = np.maximum(np.sqrt(square / max(count, 1)), _LEAST_DEVIATION)
    return mean.astype(np.float32), deviation.astype(np.float32)


def _centres(
    columns: _Columns,
    mean: NDArray[np.float32],
    deviation: NDArray[np.float32],
    owner: IntArray,
    tasks: int,
) -> NDArray[np.float32]:
    """Returns float32 [T, F], the mean of each task's standardised programs."""
    total = np.zeros((tasks, columns.width))
    for start, values in columns.chunks():
        np.add.at(total, owner[start : start + len(values)], (values - mean) / deviation)
    return np.asarray(total / np.bincount(owner, minlength=tasks)[:, None], np.float32)


def _distances(values: NDArray[np.float32], centre: NDArray[np.float32]) -> FloatArray:
    """Returns float64 [n, T], the root mean square difference of each pair of rows."""
    exact = values.astype(np.float64)
    own = np.square(exact).sum(axis=1)[:, None]
    found = np.empty((len(values), len(centre)))
    # All centres of the shipped model in float64 take 280 MB; a block stays in the cache.
    for start in range(0, len(centre), _CENTRES_AT_ONCE):
        block = slice(start, start + _CENTRES_AT_ONCE)
        other = centre[block].astype(np.float64)
        found[:, block] = own - 2.0 * exact @ other.T + np.square(other).sum(axis=1)[None, :]
    return np.asarray(np.sqrt(np.maximum(found, 0.0) / values.shape[1]))


def _operators(programs: ProgramArrays, rows: IntArray, owner: IntArray) -> tuple[str, ...]:
    """Returns the operator name of each task, taken from its first program."""
    _, first = np.unique(owner, return_index=True)
    return tuple(str(programs.operator[row]) for row in rows[first])
