"""From measure records of any source to an extracted dataset."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from cdmpp.datasets.autotvm.extract import extract_autotvm
from cdmpp.datasets.autotvm.logs import find_logs, is_autotvm_log, log_device
from cdmpp.datasets.extraction.extract import Backend, ExtractProgress, ExtractReport, extract
from cdmpp.datasets.extraction.extracted import is_extracted_dir, read_manifest
from cdmpp.datasets.extraction.machine_code import PATTERN as MACHINE_CODE
from cdmpp.datasets.extraction.merge import merged_folder
from cdmpp.datasets.find import find_records, shipped_folders
from cdmpp.datasets.metaschedule.databases import (
    is_metaschedule_database,
    read_module_json,
    read_workloads,
)
from cdmpp.datasets.metaschedule.extract import extract_database
from cdmpp.datasets.metaschedule.older import module_format
from cdmpp.datasets.tenset.folder import default_dataset_dir, find_device_files, find_devices
from cdmpp.errors import UsageError
from cdmpp.files.atomic import replaced_folder, write_atomic
from cdmpp.programs.featurise import featurise_records
from cdmpp.training.machine_code.cold_memory import FILE_NAME as IN_NETWORK
from tvm_helper.legacy.environment import find_environment
from tvm_helper.legacy.fallback import featurise_with_ansor
from tvm_helper.legacy.featurise import featurise_autotvm
from tvm_helper.legacy.metaschedule import featurise_older_traces

OnProgress = Callable[[ExtractProgress], None]
Prepare = Callable[[], object]


def extract_any(
    place: Path,
    out_dir: Path,
    devices: Sequence[str] | None = None,
    *,
    network_info: Path | None = None,
    per_task: int | None = None,
    target: str | None = None,
    fallback: Literal["ansor"] | None = None,
    jobs: int | None = None,
    backend: Backend = "local",
    prepare: Prepare = find_environment,
    on_progress: OnProgress | None = None,
) -> ExtractReport:
    """Extracts a folder in Tenset's layout, AutoTVM logs or a MetaSchedule database.

    Args:
        devices: labels to read; None = all; of a database the one that it was measured on.
        network_info: Tenset: folder of the tasks; None = in the folder.
        per_task: AutoTVM: programs of each task and device; None = all.
        target: MetaSchedule: only records whose target, as JSON, contains this.
        fallback: Tenset: what featurises the records that cannot be replayed.
        jobs, backend, on_progress: as of `cdmpp.datasets.extraction.extract.extract`.
        prepare: called before the old TVM is needed; raises where its side environment is missing.

    Raises:
        DataError: the records or a device are missing, or `out_dir` cannot be written.
        UsageError: an option is not for this source, or needs an environment that is missing.
    """
    if fallback is not None and not (place / "measure_records").is_dir():
        raise UsageError(
            f"--fallback {fallback} is for folders in Tenset's layout; {place} is none"
        )
    is_database = is_metaschedule_database(place)
    is_log = not is_database and is_autotvm_log(place)
    if is_database and (devices is None or len(devices) != 1):
        raise UsageError(
            f"{place} is a MetaSchedule database, which does not say on what it was measured; "
            "name the one device: --device LABEL"
        )
    if is_log and per_task is not None and per_task < 1:
        raise UsageError(f"--per-task is {per_task}, expected at least 1; leave it out for all")
    if jobs is not None and jobs < 1:
        raise UsageError(f"jobs must be at least 1, got {jobs}; leave it out for one per CPU")
    if (is_database or is_log) and backend != "local":
        what = "databases" if is_database else "AutoTVM logs"
        raise UsageError(f"{what} are extracted on one machine; got --backend {backend}")
    if is_database and devices is not None:
        return _extract_database(
            place, out_dir, devices[0], target, jobs=jobs, prepare=prepare, on_progress=on_progress
        )
    if is_log:
        prepare()  # one clear error now instead of one in every worker
        return extract_autotvm(
            place, out_dir, devices, featurise_autotvm,
            per_task=per_task, jobs=jobs, on_progress=on_progress,
        )  # fmt: skip
    if per_task is not None:
        raise UsageError(f"--per-task is for AutoTVM logs; {place} is none")
    if fallback is not None:
        prepare()
    report = extract(
        place, out_dir, devices, featurise_with_ansor if fallback else featurise_records,
        jobs=jobs, on_progress=on_progress, network_info=network_info, backend=backend,
    )  # fmt: skip
    _copy_beside(place, out_dir)
    return report


def extracted_folder(
    dataset: Path | None,
    devices: Sequence[str] | None,
    *,
    cache_dir: Path,
    network_info: Path | None = None,
    jobs: int | None = None,
    prepare: Prepare = find_environment,
    on_progress: OnProgress | None = None,
) -> Path:
    """Returns an extracted folder of a dataset that has the devices, extracted when that has not
    been done; an extraction that was stopped continues.

    Args:
        dataset: an extracted folder or records of any source; None = whatever has measurements of
            the devices (`cdmpp.datasets.find`), the shipped default dataset without devices.
        devices: labels; None = all.
        cache_dir: where extracted folders go, and fetched ones are.
        jobs, prepare, on_progress: as of `extract_any`.

    Raises:
        DataError: the dataset or a device is missing, or nothing in it is usable.
        DeviceError: nobody knows a device.
    """
    extract_one = partial(
        _extracted, cache_dir=cache_dir, network_info=network_info, jobs=jobs, prepare=prepare,
        on_progress=on_progress,
    )  # fmt: skip
    if dataset is not None or not devices:
        return extract_one(dataset or default_dataset_dir(), devices)
    folders = [extract_one(one.path, one.devices) for one in find_records(devices, cache_dir)]
    return merged_folder(folders, cache_dir)


def _extracted(
    dataset: Path,
    devices: Sequence[str] | None,
    *,
    cache_dir: Path,
    network_info: Path | None,
    jobs: int | None,
    prepare: Prepare,
    on_progress: OnProgress | None,
) -> Path:
    if is_extracted_dir(dataset):
        return _writable(dataset, cache_dir)
    if is_metaschedule_database(dataset):
        folder = cache_dir / _cache_name(dataset, None)
        extract_any(dataset, folder, devices, jobs=jobs, prepare=prepare, on_progress=on_progress)
        return folder
    if is_autotvm_log(dataset):
        network_info = None
        found = sorted({log_device(path) for path in find_logs(dataset)})
    else:
        found = find_devices(dataset)
        for label in devices or []:
            find_device_files(dataset, label)
    folder = cache_dir / _cache_name(dataset, network_info)
    # A few devices of many get a folder of their own, unless all have been extracted before.
    part = sorted(set(devices or []))
    if not part or not set(part) < set(found) or is_extracted_dir(folder):
        part = []
    else:
        digest = hashlib.sha256(",".join(part).encode()).hexdigest()[:8]
        folder = folder.with_name(f"{folder.name}-{len(part)}-devices-{digest}")
    extract_any(
        dataset, folder, part or None, network_info=network_info, jobs=jobs, prepare=prepare,
        on_progress=on_progress,
    )  # fmt: skip
    return folder


def _writable(folder: Path, cache_dir: Path) -> Path:
    """Returns an extracted dataset that its arrays may be written into: of a shipped one, which
    stays as it is, a copy in the cache.
    """
    if not _is_shipped(folder):
        return folder
    copy = cache_dir / f"{folder.name}-{str(read_manifest(folder)['data_hash'])[:12]}"
    if not is_extracted_dir(copy):
        with replaced_folder(copy, what="extracted dataset") as new:
            shutil.copytree(
                folder, new, dirs_exist_ok=True, ignore=shutil.ignore_patterns("cache-v*", "*.gz")
            )
    return copy


def _is_shipped(folder: Path) -> bool:
    return folder.resolve() in {shipped.path.resolve() for shipped in shipped_folders()}


def _extract_database(
    place: Path,
    out_dir: Path,
    device: str,
    target: str | None,
    *,
    jobs: int | None,
    prepare: Prepare,
    on_progress: OnProgress | None,
) -> ExtractReport:
    if _is_of_older_tvm(place):
        prepare()
        report = extract_database(
            place, out_dir, featurise_older_traces,
            device=device, target=target, jobs=jobs, on_progress=on_progress,
        )  # fmt: skip
    else:
        from tvm_helper.tasks.metaschedule import import_database  # needs TVM, the others do not

        report = import_database(
            place, out_dir, device=device, target=target, jobs=jobs, on_progress=on_progress
        )
    _copy_beside(place, out_dir)
    return report


def _copy_beside(place: Path, out_dir: Path) -> None:
    """Copies what else is known of the programs beside the extracted dataset."""
    for path in sorted([*place.glob(MACHINE_CODE), *place.glob(IN_NETWORK)]):
        write_atomic(out_dir / path.name, partial(shutil.copyfile, path))


def _is_of_older_tvm(database_dir: Path) -> bool:
    """Whether the first module of a database has the old format."""
    workloads = read_workloads(database_dir)
    return bool(workloads) and module_format(read_module_json(database_dir, workloads[0])).is_old


def _cache_name(dataset: Path, network_info: Path | None) -> str:
    place = dataset.resolve()
    if _is_shipped(place) and network_info is None:
        return place.name
    # Folders of the same name in different places must not overwrite each other.
    tasks = str(network_info.resolve()) if network_info else ""
    return f"{place.name}-{hashlib.sha256(f'{place}|{tasks}'.encode()).hexdigest()[:8]}"
