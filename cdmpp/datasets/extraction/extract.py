"""`extract`: turns a Tenset directory into an extracted dataset (Parquet shards and a manifest).

Each shard is independent and appears whole or not at all, so that a killed run continues where it
stopped and ends with the same bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from cdmpp.datasets.extraction.code_hash import code_hash
from cdmpp.datasets.extraction.extracted import MANIFEST
from cdmpp.datasets.extraction.schema import schema_versions
from cdmpp.datasets.extraction.shard import (
    Featurise,
    ShardPlan,
    build_shard,
    finished_shard,
    shard_key,
    worker_tasks,
)
from cdmpp.datasets.read_report import ReadReport
from cdmpp.datasets.tenset.folder import find_device_files, find_devices
from cdmpp.errors import DataError, UsageError
from cdmpp.files.atomic import make_folder, remove_abandoned, sha256_file, write_json
from cdmpp.processes.pool import run_in_processes
from cdmpp.processes.ray_cluster import run_on_ray

#: Record bytes after which a shard is closed; a file never spans two shards.
SHARD_BYTES = 2 << 20
#: Where shards are built.
Backend = Literal["local", "ray"]
_GZIP_RATIO = 10
_SHARD_FILE = re.compile(r"^(?:programs|measurements|shard)-(\d{5})\.(?:parquet|json)$")


@dataclass(frozen=True)
class ExtractProgress:
    """How far an extraction is. `done` and `total` are in one arbitrary unit of work."""

    done: int
    total: int
    programs: int
    measurements: int
    shards: int
    shards_total: int


@dataclass
class ExtractReport:
    """What an extraction wrote.

    Attributes:
        out_dir: the extracted dataset.
        devices: labels whose records were read.
        programs: distinct programs.
        featurised: programs with features.
        valid: those of them that the original toolchain accepts.
        rejected: reason -> programs that are not valid.
        fallbacks: name -> programs that a fallback featurised, the usual way could not.
        measurements: rows of `measurements`, failed ones included.
        shards: number of shards; `reused` of them were there from an earlier run.
        data_hash: digest of the tables.
        read: counters of the reader.
    """

    out_dir: Path
    devices: list[str]
    programs: int = 0
    featurised: int = 0
    valid: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    fallbacks: Counter[str] = field(default_factory=Counter)
    measurements: int = 0
    shards: int = 0
    reused: int = 0
    data_hash: str = ""
    read: ReadReport = field(default_factory=ReadReport)

    def summary(self) -> str:
        """Returns the report as lines of text."""
        lines = [
            self.read.summary(),
            f"{self.programs} programs, {self.featurised} with features, {self.valid} of them "
            f"valid; {self.measurements} measurements on {len(self.devices)} devices",
        ]
        lines += [f"  rejected {n}: {reason}" for reason, n in self.rejected.most_common()]
        lines += [f"  by fallback {name}: {n}" for name, n in self.fallbacks.most_common()]
        lines.append(f"{self.shards} shards ({self.reused} from an earlier run) in {self.out_dir}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Returns the report as JSON values."""
        return {
            "out_dir": str(self.out_dir),
            "devices": self.devices,
            "programs": self.programs,
            "featurised": self.featurised,
            "valid": self.valid,
            "rejected": dict(sorted(self.rejected.items())),
            "fallbacks": dict(sorted(self.fallbacks.items())),
            "measurements": self.measurements,
            "shards": self.shards,
            "reused": self.reused,
            "data_hash": self.data_hash,
            "read": self.read.to_json(),
        }


def extract(
    dataset_dir: Path,
    out_dir: Path,
    devices: Iterable[str] | None,
    featurise: Featurise,
    *,
    jobs: int | None = None,
    on_progress: Callable[[ExtractProgress], None] | None = None,
    network_info: Path | None = None,
    shard_bytes: int = SHARD_BYTES,
    backend: Backend = "local",
) -> ExtractReport:
    """Extracts a Tenset directory: every program is featurised once and joined to its measurements.

    A run that was killed continues when it is called again: shards whose inputs, code and schema
    are the same are kept, and the result has the same bytes as an undisturbed run.

    Args:
        dataset_dir: folder with `measure_records/DEVICE/`.
        out_dir: where the extracted dataset goes; made when missing.
        devices: labels to read; None = all.
        featurise: module-level function (task, records) -> one `CompactAst` or `ReplayError` a
            record.
        jobs: processes; None = one per CPU. With 1 (and `local`), no process is started.
        on_progress: called in this process after every shard.
        network_info: folder of the tasks; None = `dataset_dir/network_info`.
        shard_bytes: (unzipped) record bytes after which a shard is closed.
        backend: `local` = processes of this machine, `ray` = a Ray cluster whose machines see the
            same folders (see `cdmpp.processes.ray_cluster`).

    Raises:
        DataError: the dataset or a device is missing, or `out_dir` cannot be written.
        UsageError: `jobs` is less than 1, or Ray is wanted and not installed.
    """
    dataset_dir, out_dir = Path(dataset_dir), Path(out_dir)
    network_info = Path(network_info) if network_info else dataset_dir / "network_info"
    if backend == "ray":  # its workers have working directories of their own
        dataset_dir, out_dir = dataset_dir.absolute(), out_dir.absolute()
        network_info = network_info.absolute()
    if jobs is not None and jobs < 1:
        raise UsageError(f"jobs must be at least 1, got {jobs}; leave it out for one per CPU")
    labels = sorted(set(devices)) if devices is not None else find_devices(dataset_dir)
    files = {label: find_device_files(dataset_dir, label) for label in labels}
    plans = plan_shards(files, shard_bytes=shard_bytes)
    if not plans:
        find_device_files(dataset_dir, "DEVICE")
    tasks_hash = _folder_hash(network_info)
    worker_tasks(network_info, tasks_hash)  # one clear error now instead of one per worker
    make_folder(out_dir, what="extracted dataset")

    featuriser = code_hash(featurise)
    keys = [shard_key(plan, tasks_hash=tasks_hash, featuriser=featuriser) for plan in plans]
    arguments = [
        (plan, network_info, tasks_hash, out_dir, featurise, key)
        for plan, key in zip(plans, keys, strict=True)
    ]
    return build_shards(
        build_shard, arguments, plans, keys, out_dir, labels,
        jobs=jobs, on_progress=on_progress, backend=backend,
    )  # fmt: skip


def build_shards(
    build: Callable[..., dict[str, Any]],
    arguments: Sequence[tuple[Any, ...]],
    plans: Sequence[ShardPlan],
    keys: Sequence[str],
    out_dir: Path,
    devices: list[str],
    *,
    jobs: int | None = None,
    on_progress: Callable[[ExtractProgress], None] | None = None,
    backend: Backend = "local",
    read: ReadReport | None = None,
) -> ExtractReport:
    """Builds the shards that are not there yet, then writes the manifest.

    Args:
        build: module-level function that writes a shard and returns its note.
        arguments: its arguments, one tuple a shard.
        plans: the shards.
        keys: digest of what each shard's content follows from.
        out_dir: the extracted dataset's folder, which is there.
        devices: labels for the report.
        jobs: processes; None = one per CPU. With 1 (and `local`), no process is started.
        on_progress: called in this process after every shard.
        backend: as in `extract`.
        read: counters of reading that was done before, added to those of the shards.

    Raises:
        DataError: a file cannot be read or written, or a worker died.
    """
    notes = [finished_shard(plan, out_dir, key) for plan, key in zip(plans, keys, strict=True)]
    reused = sum(note is not None for note in notes)
    missing = [number for number, note in enumerate(notes) if note is None]
    if missing:
        _remove(out_dir / MANIFEST)  # it would describe tables that are about to change
    progress = _Progress(plans, on_progress)
    for number, note in enumerate(notes):
        if note is not None:
            progress.add(plans[number], note)
    calls = [arguments[number] for number in missing]
    for position, note in _run(build, calls, jobs=jobs, backend=backend):
        notes[missing[position]] = note
        progress.add(plans[missing[position]], note)
    report = _report(out_dir, devices, [note for note in notes if note is not None])
    report.reused = reused
    if read is not None:
        report.read.add(read)
    _write_manifest(report, [note for note in notes if note is not None])
    return report


def _run(
    function: Callable[..., Any], calls: list[tuple[Any, ...]], *, jobs: int | None, backend: str
) -> Iterable[tuple[int, Any]]:
    if backend == "ray" and calls:
        return run_on_ray(function, calls, jobs=jobs)
    jobs = jobs if jobs is not None else os.cpu_count() or 1
    return run_in_processes(function, calls, jobs=min(jobs, len(calls) or 1))


def plan_shards(files: dict[str, list[Path]], *, shard_bytes: int) -> list[ShardPlan]:
    """Groups the record files of all devices into shards.

    Files of the same name (one task on several devices) stay together, so that their programs are
    featurised once; the grouping follows from names and sizes only.
    """
    units: dict[str, list[tuple[str, Path]]] = {}
    for device in sorted(files):
        for path in files[device]:
            units.setdefault(path.name.removesuffix(".gz"), []).append((device, path))
    plans: list[ShardPlan] = []
    pending: list[tuple[str, Path]] = []
    weight = 0
    for name in sorted(units):
        pending += units[name]
        weight += sum(_weight(path) for _, path in units[name])
        if weight >= shard_bytes:
            plans.append(ShardPlan(len(plans), tuple(pending), weight))
            pending, weight = [], 0
    if pending:
        plans.append(ShardPlan(len(plans), tuple(pending), weight))
    return plans


def _weight(path: Path) -> int:
    size = path.stat().st_size
    return size * _GZIP_RATIO if path.suffix == ".gz" else size


def _folder_hash(folder: Path) -> str:
    """Returns a digest of the task files of `network_info`; of nothing when it is missing."""
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if ".pkl" in path.name and not path.name.startswith(".") and path.is_file():
            digest.update(f"{path.name}\0{sha256_file(path)}\n".encode())
    return digest.hexdigest()


class _Progress:
    def __init__(
        self, plans: Sequence[ShardPlan], on_progress: Callable[[ExtractProgress], None] | None
    ) -> None:
        self._total = sum(plan.weight for plan in plans)
        self._shards_total = len(plans)
        self._call = on_progress
        self._done = self._programs = self._measurements = self._shards = 0

    def add(self, plan: ShardPlan, note: dict[str, Any]) -> None:
        self._done += plan.weight
        self._programs += note["programs"]["rows"]
        self._measurements += note["measurements"]["rows"]
        self._shards += 1
        if self._call is not None:
            self._call(
                ExtractProgress(
                    self._done, self._total, self._programs, self._measurements,
                    self._shards, self._shards_total,
                )
            )  # fmt: skip


def _report(out_dir: Path, devices: list[str], notes: list[dict[str, Any]]) -> ExtractReport:
    report = ExtractReport(out_dir, devices, shards=len(notes))
    digest = hashlib.sha256()
    for note in notes:
        report.programs += note["programs"]["rows"]
        report.measurements += note["measurements"]["rows"]
        report.featurised += note["featurised"]
        report.valid += note["valid"]
        report.rejected.update(note["rejected"])
        report.fallbacks.update(note["fallbacks"])
        report.read.add(ReadReport.from_json(note["read"]))
        for table in ("programs", "measurements"):
            digest.update(f"{note[table]['file']} {note[table]['sha256']}\n".encode())
    report.data_hash = digest.hexdigest()
    return report


def _write_manifest(report: ExtractReport, notes: list[dict[str, Any]]) -> None:
    """Writes the manifest and removes files of shards that the dataset no longer has."""
    value = report.to_json()
    for key in ("out_dir", "reused", "shards"):
        del value[key]
    value["schema"] = schema_versions()
    value["leaf_extra_count"] = _leaf_extra_count(notes)
    value["shards"] = [
        {"programs": note["programs"], "measurements": note["measurements"]} for note in notes
    ]
    write_json(report.out_dir / MANIFEST, value)
    remove_abandoned(report.out_dir)
    for path in report.out_dir.iterdir():
        match = _SHARD_FILE.match(path.name)
        if match and int(match.group(1)) >= len(notes):
            _remove(path)


def _leaf_extra_count(notes: list[dict[str, Any]]) -> int:
    counts = {count for note in notes for count in note["leaf_extra_counts"]}
    if len(counts) > 1:
        raise DataError(f"programs differ in their number of leaf_extra columns: {sorted(counts)}")
    return counts.pop() if counts else 0


def _remove(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
