"""`extract`: converts records of any source to an extracted dataset (Parquet shards, a manifest).

Shards are independent and written atomically, so that an interrupted run can be continued and ends
with the same bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from cdmpp.datasets.extraction.code_hash import code_hash
from cdmpp.datasets.extraction.extracted import MANIFEST
from cdmpp.datasets.extraction.schema import schema_versions
from cdmpp.datasets.extraction.shard import build_shard, finished_shard, shard_key
from cdmpp.datasets.extraction.source import RecordSource, ShardPlan
from cdmpp.datasets.read_report import ReadReport
from cdmpp.errors import DataError, UsageError
from cdmpp.files.atomic import make_folder, remove_abandoned, write_json
from cdmpp.processes.pool import run_in_processes
from cdmpp.processes.ray_cluster import run_on_ray
from cdmpp.text import counted

#: Where shards are built.
Backend = Literal["local", "ray"]
_SHARD_FILE = re.compile(r"^(?:programs|measurements|shard)-(\d{5})\.(?:parquet|json)$")


@dataclass(frozen=True)
class ExtractProgress:
    """Progress of an extraction. `done` and `total` are in an arbitrary unit of work."""

    done: int
    total: int
    programs: int
    measurements: int
    shards: int
    shards_total: int

    def after(self, plan: ShardPlan, note: dict[str, Any]) -> ExtractProgress:
        """Returns the progress after one more shard."""
        return replace(
            self,
            done=self.done + plan.weight,
            programs=self.programs + note["programs"]["rows"],
            measurements=self.measurements + note["measurements"]["rows"],
            shards=self.shards + 1,
        )


#: Called after every shard.
OnProgress: TypeAlias = Callable[[ExtractProgress], None]


@dataclass
class ExtractReport:
    """Result of an extraction.

    Attributes:
        out_dir: the extracted dataset.
        devices: labels whose records were read.
        programs: number of distinct programs.
        featurised: number of programs with features.
        valid: number of programs with features that the original toolchain accepts.
        rejected: reason -> number of invalid programs.
        fallbacks: name -> number of programs that only a fallback could featurise.
        measurements: rows of `measurements`, including failed ones.
        shards: number of shards.
        reused: number of shards from an earlier run.
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
            f"{counted(self.programs, 'program')}, {self.featurised} with features, "
            f"{self.valid} of them valid; {counted(self.measurements, 'measurement')} on "
            f"{counted(len(self.devices), 'device')}",
        ]
        lines += [f"  rejected {n}: {reason}" for reason, n in self.rejected.most_common()]
        lines += [f"  by fallback {name}: {n}" for name, n in self.fallbacks.most_common()]
        shards = counted(self.shards, "shard")
        lines.append(f"{shards} ({self.reused} from an earlier run) in {self.out_dir}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Returns the report as JSON values."""
        return {
            **vars(self),
            "out_dir": str(self.out_dir),
            "rejected": dict(sorted(self.rejected.items())),
            "fallbacks": dict(sorted(self.fallbacks.items())),
            "read": self.read.to_json(),
        }


def extract(
    source: RecordSource,
    out_dir: Path,
    *,
    jobs: int | None = None,
    on_progress: OnProgress = lambda _: None,
    backend: Backend = "local",
) -> ExtractReport:
    """Extracts records: every program is featurised once and joined to its measurements.

    Call it again to continue an interrupted run: shards with the same inputs, code and schema are
    reused, and the result has the same bytes as an uninterrupted run.

    Args:
        out_dir: folder of the extracted dataset, created if it is missing.
        jobs: processes; None = one per CPU. With 1 (and `local`), no process is started.
        on_progress: called in this process after every shard.
        backend: `local` = processes of this machine, `ray` = a Ray cluster whose machines share
            the folders under the same absolute paths (see `cdmpp.processes.ray_cluster`).

    Raises:
        DataError: the records or a device are missing, no program is usable, or `out_dir` cannot be
            written.
        UsageError: `jobs` is less than 1, Ray is requested but not installed, or `out_dir` has
            another kind of manifest.
    """
    check_jobs(jobs)
    out_dir = Path(out_dir)
    read = ReadReport()
    plans = source.plan(read)
    _check_place(out_dir)
    make_folder(out_dir, what="extracted dataset")
    code = code_hash(source.featuriser, type(source))
    keys = [shard_key(plan, code) for plan in plans]
    found = [finished_shard(plan, out_dir, key) for plan, key in zip(plans, keys, strict=True)]
    missing = [plan for plan, note in zip(plans, found, strict=True) if note is None]
    if missing:
        _remove(out_dir / MANIFEST)  # its tables are about to change
    done = ExtractProgress(0, sum(plan.weight for plan in plans), 0, 0, 0, len(plans))
    notes: dict[int, dict[str, Any]] = {}

    def take(plan: ShardPlan, note: dict[str, Any]) -> None:
        nonlocal done
        notes[plan.number] = note
        done = done.after(plan, note)
        on_progress(done)

    for plan, note in zip(plans, found, strict=True):
        if note is not None:
            take(plan, note)
    report = ExtractReport(out_dir, source.devices(), reused=len(notes))
    place = out_dir.absolute() if backend == "ray" else out_dir  # Ray's workers run elsewhere
    calls = [(source, plan, place, keys[plan.number]) for plan in missing]
    for position, note in _run(build_shard, calls, jobs=jobs, backend=backend):
        take(missing[position], note)
    ordered = [notes[plan.number] for plan in plans]
    _count(report, ordered)
    report.read.add(read)
    _write_manifest(report, ordered)
    if source.if_useless and not report.featurised:
        reason, count = report.rejected.most_common(1)[0]
        raise DataError(
            f"{plans[0].files[0][1].parent}: none of its {report.programs} programs is usable "
            f"({count}: {reason}); {source.if_useless}"
        )
    return report


def check_jobs(jobs: int | None) -> None:
    """Checks a number of processes.

    Raises:
        UsageError: the number is less than 1.
    """
    if jobs is not None and jobs < 1:
        raise UsageError(f"jobs must be at least 1, got {jobs}; leave it out for one job per CPU")


def _run(
    function: Callable[..., Any], calls: list[tuple[Any, ...]], *, jobs: int | None, backend: str
) -> Iterable[tuple[int, Any]]:
    if backend == "ray" and calls:
        return run_on_ray(function, calls, jobs=jobs)
    jobs = jobs if jobs is not None else os.cpu_count() or 1
    return run_in_processes(function, calls, jobs=min(jobs, len(calls) or 1))


def _count(report: ExtractReport, notes: list[dict[str, Any]]) -> None:
    report.shards = len(notes)
    report.data_hash = tables_hash(notes)
    for note in notes:
        report.programs += note["programs"]["rows"]
        report.measurements += note["measurements"]["rows"]
        report.featurised += note["featurised"]
        report.valid += note["valid"]
        report.rejected.update(note["rejected"])
        report.fallbacks.update(note["fallbacks"])
        report.read.add(ReadReport.from_json(note["read"]))


def tables_hash(shards: Iterable[dict[str, Any]]) -> str:
    """Returns the digest of the tables of shards, from their entries in a manifest."""
    digest = hashlib.sha256()
    for shard in shards:
        for table in ("programs", "measurements"):
            digest.update(f"{shard[table]['file']} {shard[table]['sha256']}\n".encode())
    return digest.hexdigest()


def _write_manifest(report: ExtractReport, notes: list[dict[str, Any]]) -> None:
    """Writes the manifest and removes files of obsolete shards."""
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


def _check_place(out_dir: Path) -> None:
    """Checks that no manifest of another kind is overwritten; a damaged one may be."""
    try:
        value = json.loads((out_dir / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return
    if not (isinstance(value, dict) and "schema" in value):
        raise UsageError(
            f"{out_dir}: its {MANIFEST} is not that of an extracted dataset; choose another --out"
        )
