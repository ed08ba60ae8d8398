"""Extraction of records of any source, whose kind is found from their path.

Programs of AutoTVM and MetaSchedule are lowered by a TVM, which this package does not import: the
caller passes a function that returns such featurisers (`cdmpp.api.featurisers`).
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

from cdmpp.datasets.autotvm.logs import is_autotvm_log, read_autotvm_log
from cdmpp.datasets.autotvm.source import AutotvmLogs, check_devices, log_labels
from cdmpp.datasets.extraction.extract import (
    Backend,
    ExtractReport,
    OnProgress,
    check_jobs,
    extract,
)
from cdmpp.datasets.extraction.extracted import is_extracted_dir, read_manifest
from cdmpp.datasets.extraction.machine_code import IN_NETWORK
from cdmpp.datasets.extraction.machine_code import PATTERN as MACHINE_CODE
from cdmpp.datasets.extraction.merge import merged_folder
from cdmpp.datasets.extraction.source import RecordSource
from cdmpp.datasets.find import find_records, shipped_folders
from cdmpp.datasets.metaschedule.databases import (
    is_metaschedule_database,
    read_module_json,
    read_workloads,
)
from cdmpp.datasets.metaschedule.older import module_format
from cdmpp.datasets.metaschedule.source import TuningDatabase
from cdmpp.datasets.read_report import ReadReport
from cdmpp.datasets.tenset.folder import (
    default_dataset_dir,
    find_device_files,
    find_devices,
    is_tenset_dir,
)
from cdmpp.datasets.tenset.record_file import read_records
from cdmpp.datasets.tenset.source import TensetRecords
from cdmpp.errors import DataError, UsageError
from cdmpp.files.atomic import replaced_folder, write_atomic
from cdmpp.files.open_text import open_binary
from cdmpp.processes.campaign import CAMPAIGN_FILE

_SQLITE = b"SQLite format 3\0"
#: Featurisers that need a TVM. `ansor` replays the Tenset records that the native replay cannot;
#: `metaschedule-old` reads databases of TVM 0.16 and before.
TvmFeaturiser = Literal["ansor", "autotvm", "metaschedule", "metaschedule-old"]
#: Returns a featuriser; raises a UsageError if it is not available.
Featurisers: TypeAlias = Callable[[TvmFeaturiser], Callable[..., Any]]


def no_featurisers(name: TvmFeaturiser) -> Callable[..., Any]:
    """Rejects every featuriser: the default for callers without a TVM.

    Raises:
        UsageError: always.
    """
    raise UsageError(f"records of this kind ({name}) are featurised with a TVM: use cdmpp.Dataset")


def source_at(
    place: Path,
    devices: Sequence[str] | None = None,
    *,
    network_info: Path | None = None,
    per_task: int | None = None,
    target: str | None = None,
    fallback: Literal["ansor"] | None = None,
    featurisers: Featurisers = no_featurisers,
) -> RecordSource:
    """Returns the source at a path: a folder in Tenset's layout, AutoTVM logs or a MetaSchedule
    database. For the arguments see `extract_any`.

    Raises:
        DataError: the records are damaged or unreadable.
        UsageError: an option does not apply to this source, or needs an environment that is
            missing.
    """
    if fallback is not None and not is_tenset_dir(place):
        raise UsageError(
            f"--fallback {fallback} is for folders in Tenset's layout; {place} is none"
        )
    if is_metaschedule_database(place):
        if devices is None or len(devices) != 1:
            raise UsageError(
                f"{place} is a MetaSchedule database, which does not name its device; give one "
                "device: --device LABEL"
            )
        name: TvmFeaturiser = "metaschedule-old" if _is_of_older_tvm(place) else "metaschedule"
        return TuningDatabase(place, devices[0], featurisers(name), target)
    if is_autotvm_log(place):
        if per_task is not None and per_task < 1:
            raise UsageError(
                f"--per-task must be at least 1, got {per_task}; leave it out for all programs"
            )
        check_devices(place, devices, target)  # before the side environment is built
        return AutotvmLogs(place, devices, featurisers("autotvm"), per_task, target=target)
    if per_task is not None:
        raise UsageError(f"--per-task is for AutoTVM logs; {place} is none")
    check_readable(place)
    records = TensetRecords(place, devices, network_info=network_info)
    if fallback is not None:
        records.featuriser = featurisers(fallback)
    return records


def check_readable(place: Path) -> None:
    """Checks that a path is not a file of records in an unsupported form.

    Raises:
        DataError: the path is such a file; the text names its form.
    """
    if not place.is_file():
        return
    with open_binary(place, expected="measure records") as stream:
        start = stream.read(len(_SQLITE))
    if start == _SQLITE:
        raise DataError(
            f"{place} is an SQLite database; expected MetaSchedule's two JSON files. Copy its "
            "records to a JSONDatabase with the TVM that wrote it, and name that folder"
        )
    report = ReadReport()
    if next(read_records(place, report, keep_unmeasured=True, only=range(1, 1025)), None):
        raise DataError(
            f"{place} holds records of Ansor; expected a folder with them in "
            "measure_records/DEVICE/ and their tasks in network_info/. To predict only this "
            f"file: cdmpp predict {place}"
        )
    report = ReadReport()
    next(read_autotvm_log(place, report, only=range(1, 1025)), None)
    reasons = ", ".join(f"{count} {reason}" for reason, count in report.skipped.most_common(3))
    raise DataError(
        f"{place}: no readable record ({reasons or 'it is empty'}); expected measure records of "
        "AutoTVM, one JSON object per line, or a folder in Tenset's layout"
    )


def extract_any(
    place: Path,
    out_dir: Path,
    devices: Sequence[str] | None = None,
    *,
    network_info: Path | None = None,
    per_task: int | None = None,
    target: str | None = None,
    fallback: Literal["ansor"] | None = None,
    featurisers: Featurisers = no_featurisers,
    jobs: int | None = None,
    backend: Backend = "local",
    on_progress: OnProgress = lambda _: None,
) -> ExtractReport:
    """Extracts the records at a path, and copies the tables of machine code beside them.

    Args:
        devices: labels to read; None = all. MetaSchedule: the one device of the database.
        network_info: Tenset: folder of the tasks; None = in the folder.
        per_task: AutoTVM: programs of each task and device; None = all.
        target: MetaSchedule, AutoTVM: only records whose target (of MetaSchedule as JSON) contains
            this text.
        fallback: Tenset: featuriser of records that cannot be replayed.
        featurisers: returns a featuriser that needs a TVM.
        jobs, backend, on_progress: see `cdmpp.datasets.extraction.extract.extract`.

    Raises:
        DataError: the records or a device are missing, or `out_dir` cannot be written.
        UsageError: an option does not apply to this source, or needs an environment that is
            missing; or `out_dir` is a campaign.
    """
    check_jobs(jobs)
    if (out_dir / CAMPAIGN_FILE).is_file():
        raise UsageError(
            f"{out_dir} is a campaign of cdmpp measure; choose another --out, or rebuild the "
            f"campaign's tables: cdmpp measure --out {out_dir} --tables-only"
        )
    if backend != "local":
        is_database = is_metaschedule_database(place)
        if is_database or is_autotvm_log(place):
            what = "databases" if is_database else "AutoTVM logs"
            raise UsageError(
                f"{what} can only be extracted on one machine, got --backend {backend}"
            )
        place = place.absolute()
        network_info = network_info and network_info.absolute()
    source = source_at(
        place, devices, network_info=network_info, per_task=per_task, target=target,
        fallback=fallback, featurisers=featurisers,
    )  # fmt: skip
    report = extract(source, out_dir, jobs=jobs, on_progress=on_progress, backend=backend)
    for path in sorted([*place.glob(MACHINE_CODE), *place.glob(IN_NETWORK)]):
        write_atomic(out_dir / path.name, partial(shutil.copyfile, path))
    return report


def extracted_folder(
    dataset: Path | None,
    devices: Sequence[str] | None,
    *,
    cache_dir: Path,
    network_info: Path | None = None,
    jobs: int | None = None,
    featurisers: Featurisers = no_featurisers,
    on_progress: OnProgress = lambda _: None,
) -> Path:
    """Returns the extracted folder of a dataset; extracts it if necessary.

    An interrupted extraction is continued.

    Args:
        dataset: an extracted folder or records of any source; None = all folders with measurements
            of the devices (`cdmpp.datasets.find`), or the shipped default dataset without devices.
        devices: labels; None = all.
        cache_dir: folder for extracted folders, which contains the fetched ones.
        jobs, featurisers, on_progress: see `extract_any`.

    Raises:
        DataError: the dataset or a device is missing, or no record is usable.
        DeviceError: a device is unknown.
    """

    def extracted(place: Path, labels: Sequence[str] | None) -> Path:
        if is_extracted_dir(place):
            return _writable(place, cache_dir)
        tasks = network_info if is_tenset_dir(place) else None
        folder = cache_dir / _cache_name(place, tasks)
        part = sorted(set(labels or []))
        if not is_metaschedule_database(place):
            found, is_mixed = _devices_at(place, part)
            # A subset of the devices gets its own folder, unless all devices have been extracted.
            if part and set(part) < found and not is_extracted_dir(folder):
                digest = hashlib.sha256(",".join(part).encode()).hexdigest()[:8]
                folder = folder.with_name(f"{folder.name}-{len(part)}-devices-{digest}")
            elif not is_mixed:
                part = []
        extract_any(
            place, folder, part or None, network_info=tasks, featurisers=featurisers, jobs=jobs,
            on_progress=on_progress,
        )  # fmt: skip
        return folder

    if dataset is not None or not devices:
        return extracted(dataset or default_dataset_dir(), devices)
    folders = [extracted(one.path, one.devices) for one in find_records(devices, cache_dir)]
    return merged_folder(folders, cache_dir)


def _devices_at(place: Path, wanted: Sequence[str]) -> tuple[set[str], bool]:
    """Returns the devices of AutoTVM logs or a folder in Tenset's layout, and whether devices share
    a log; an empty set if no device is wanted.
    """
    if not wanted:
        return set(), False
    if is_autotvm_log(place):
        return log_labels(place)
    for label in wanted:
        find_device_files(place, label)
    return set(find_devices(place)), False


def _writable(folder: Path, cache_dir: Path) -> Path:
    """Returns a writable extracted dataset: a copy in the cache if `folder` is a shipped one."""
    if not _is_shipped(folder):
        return folder
    copy = cache_dir / f"{folder.name}-{str(read_manifest(folder)['data_hash'])[:12]}"
    if not is_extracted_dir(copy):
        with replaced_folder(copy, what="extracted dataset") as new:
            shutil.copytree(
                folder, new, dirs_exist_ok=True,
                ignore=shutil.ignore_patterns("cache-v*", "*.gz", "*.xz"),
            )  # fmt: skip
    return copy


def _is_shipped(folder: Path) -> bool:
    return folder.resolve() in {shipped.path.resolve() for shipped in shipped_folders()}


def _is_of_older_tvm(database_dir: Path) -> bool:
    """Whether the first module of a database has the old format."""
    workloads = read_workloads(database_dir)
    return bool(workloads) and module_format(read_module_json(database_dir, workloads[0])).is_old


def _cache_name(dataset: Path, network_info: Path | None) -> str:
    place = dataset.resolve()
    if _is_shipped(place) and network_info is None:
        return place.name
    # Folders of the same name below different parents must not overwrite each other.
    tasks = str(network_info.resolve()) if network_info else ""
    return f"{place.name}-{hashlib.sha256(f'{place}|{tasks}'.encode()).hexdigest()[:8]}"
