"""Records in Tenset's layout as a source of an extraction."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import ClassVar, TypeAlias

from cdmpp.datasets.extraction.source import Featurised, RecordSource, ShardPlan, files_digest
from cdmpp.datasets.read_report import ReadReport
from cdmpp.datasets.tenset.flops import flop_count
from cdmpp.datasets.tenset.folder import find_device_files, find_devices
from cdmpp.datasets.tenset.operator_name import operator_name
from cdmpp.datasets.tenset.record_file import read_records
from cdmpp.datasets.tenset.task_index import TaskIndex, TaskKey, load_tasks
from cdmpp.errors import DataError, ReplayError
from cdmpp.files.atomic import sha256_file
from cdmpp.programs.ansor.json_graph import JsonGraph
from cdmpp.programs.compact_ast import CompactAst
from cdmpp.programs.featurise import featurise_records
from cdmpp.programs.native.build import NativeBuildError
from cdmpp.records import MeasureRecord, TensetTask, program_id_of_text

#: (task, records) -> a compact AST or an error for each record.
Featurise: TypeAlias = Callable[
    [TensetTask, list[MeasureRecord]], Sequence[CompactAst | ReplayError]
]

#: Minimum record bytes of a shard, except the last; a file never spans two shards.
SHARD_BYTES = 2 << 20
_GZIP_RATIO = 10
_CACHED_TASKS = 8


@dataclass
class TensetRecords(RecordSource):
    """Records of a folder in Tenset's layout.

    Attributes:
        folder: folder with `measure_records/DEVICE/`.
        labels: devices to read; None = all.
        featuriser: featurises records of one task.
        network_info: folder of the tasks; None = `network_info` in `folder`.
        shard_bytes: minimum (uncompressed) record bytes of a shard, except the last.
    """

    folder: Path
    labels: Sequence[str] | None = None
    featuriser: Featurise = featurise_records
    network_info: Path | None = None
    shard_bytes: int = SHARD_BYTES
    #: More programs per call would only cost memory.
    waiting: ClassVar[int | None] = 64

    def devices(self) -> list[str]:
        """See `RecordSource.devices`."""
        return find_devices(self.folder) if self.labels is None else sorted(set(self.labels))

    def plan(self, report: ReadReport) -> list[ShardPlan]:
        """See `RecordSource.plan`.

        Files of the same name (one task on several devices) are in one shard, so that their
        programs are featurised once; the grouping depends only on names and sizes.
        """
        units: dict[str, list[tuple[str, Path]]] = {}
        for device in self.devices():
            for path in find_device_files(self.folder, device):
                units.setdefault(path.name.removesuffix(".gz"), []).append((device, path))
        if not units:
            find_device_files(self.folder, "DEVICE")
        self.tasks()  # raises an error here instead of in every worker
        plans: list[ShardPlan] = []
        pending: list[tuple[str, Path]] = []
        weight = 0
        for number, name in enumerate(sorted(units), 1):
            pending += units[name]
            weight += sum(_weight(path) for _, path in units[name])
            if weight >= self.shard_bytes or number == len(units):
                digest = files_digest(pending, self._tasks_hash)
                plans.append(ShardPlan(len(plans), tuple(pending), weight, digest))
                pending, weight = [], 0
        return plans

    @property
    def _tasks_folder(self) -> Path:
        return self.network_info or self.folder / "network_info"

    @cached_property
    def _tasks_hash(self) -> str:
        """Digest of the task files; of an empty folder if the folder is missing."""
        folder = self._tasks_folder
        digest = hashlib.sha256()
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if ".pkl" in path.name and not path.name.startswith(".") and path.is_file():
                digest.update(f"{path.name}\0{sha256_file(path)}\n".encode())
        return digest.hexdigest()

    def tasks(self) -> TaskIndex:
        """Returns the tasks, read once per process and content.

        Raises:
            DataError: the folder of the tasks is missing or damaged.
        """
        return _read_tasks(self._tasks_folder, self._tasks_hash)

    def records(
        self, plan: ShardPlan, report: ReadReport
    ) -> Iterator[tuple[TaskKey, str, MeasureRecord]]:
        """See `RecordSource.records`; the group is a task's key."""
        for device, path in plan.files:
            for record in read_records(path, report, device=device):
                key = (record.workload_key, record.target_kind)
                yield key, program_id_of_text("tenset", key[0], record.schedule, key[1]), record

    def featurise(self, group: TaskKey, records: list[MeasureRecord]) -> Featurised:
        """See `RecordSource.featurise`; a failure rejects one program, not the shard."""
        task, networks = self.tasks().find(*group), self.tasks().networks_of(*group)
        if task is None:
            unknown = [ReplayError("task not in network_info")] * len(records)
            return Featurised("tenset", "unknown", None, unknown, networks)
        programs = _featurise(task, records, self.featuriser)
        return Featurised("tenset", *_describe(task.dag_json), programs, networks)


def _weight(path: Path) -> int:
    size = path.stat().st_size
    return size * _GZIP_RATIO if path.suffix == ".gz" else size


@lru_cache(maxsize=1)
def _read_tasks(network_info_dir: Path, tasks_hash: str) -> TaskIndex:
    return load_tasks(network_info_dir)  # `tasks_hash` is part of the cache's key


@lru_cache(maxsize=_CACHED_TASKS)
def _describe(dag_json: str) -> tuple[str, float | None]:
    """Returns (operator name, flop count); (`unknown`, None) if the task cannot be read."""
    try:
        graph = JsonGraph(dag_json)
        return operator_name(graph), flop_count(graph)
    except (DataError, LookupError):
        return "unknown", None


def _featurise(
    task: TensetTask, records: list[MeasureRecord], featurise: Featurise
) -> list[CompactAst | ReplayError]:
    """Calls the featuriser on all records; if that raises, on one record at a time.

    The error of a single record becomes its reject reason.

    Raises:
        NativeBuildError: the native code cannot be built.
    """
    try:
        return list(featurise(task, records))
    except NativeBuildError:  # not the fault of a program
        raise
    except Exception as error:
        if len(records) > 1:
            return [result for one in records for result in _featurise(task, [one], featurise)]
        if isinstance(error, DataError):
            return [ReplayError(getattr(error, "reason", f"unreadable task: {error}"))]
        return [ReplayError(f"internal error: {type(error).__name__}: {error}"[:200])]
