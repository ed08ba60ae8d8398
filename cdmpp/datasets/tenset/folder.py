"""A folder in Tenset's layout: tasks in `network_info/`, records in `measure_records/DEVICE/`.

Files may be gzipped. The readers are `task_index` and `record_file`.
"""

from __future__ import annotations

from pathlib import Path

from cdmpp.datasets.read_report import ReadReport
from cdmpp.datasets.tenset.record_file import read_records
from cdmpp.datasets.tenset.task_index import TaskIndex, load_tasks
from cdmpp.devices.registry import check_known
from cdmpp.errors import DataError
from cdmpp.files.places import shipped_places
from cdmpp.records import MeasureRecord, TensetTask

__all__ = [
    "MeasureRecord",
    "ReadReport",
    "TaskIndex",
    "TensetTask",
    "default_dataset_dir",
    "find_device_files",
    "find_devices",
    "is_tenset_dir",
    "load_tasks",
    "read_records",
]

_RECORD_SUFFIXES = (".json", ".json.gz")


def default_dataset_dir() -> Path:
    """Returns the folder of the shipped default dataset.

    Raises:
        DataError: the folder is not found.
    """
    relative = Path("data") / "tenset-cpu"
    places = shipped_places(relative)
    for place in places:
        if (place / "measure_records").is_dir():
            return place
    raise DataError(
        f"the default dataset {relative} is in none of {', '.join(map(str, places))}; reinstall "
        "the package, or give your own Tenset folder with --dataset DIR"
    )


def is_tenset_dir(dataset_dir: Path) -> bool:
    """Whether the folder has Tenset's layout (its `measure_records/` exists)."""
    return (Path(dataset_dir) / "measure_records").is_dir()


def find_devices(dataset_dir: Path) -> list[str]:
    """Returns the labels of the devices with record files, sorted.

    Raises:
        DataError: the folder or its `measure_records/` is missing.
    """
    records_dir = Path(dataset_dir) / "measure_records"
    if not records_dir.is_dir():
        missing = records_dir if Path(dataset_dir).is_dir() else Path(dataset_dir)
        raise DataError(f"{missing}: no such folder. {_how_to_get('DEVICE')}")
    return sorted(
        folder.name for folder in records_dir.iterdir() if folder.is_dir() and _record_files(folder)
    )


def find_device_files(dataset_dir: Path, device: str) -> list[Path]:
    """Returns a device's record files, sorted by name.

    Raises:
        DataError: the dataset or the device is missing; the text lists the devices and explains how
            to get Tenset.
        DeviceError: the device is unknown.
    """
    devices = find_devices(dataset_dir)
    if device not in devices:
        records_dir = Path(dataset_dir) / "measure_records"
        found, next_step = "none", _how_to_get(device)
        if devices:
            check_known([device], devices)
            found = ", ".join(devices)
            next_step = (
                f"Choose one of these, or add records in {records_dir / device}/*.json. {next_step}"
            )
        raise DataError(
            f"no measure records of device {device!r} in {records_dir}; devices found: {found}. "
            f"{next_step}"
        )
    return _record_files(Path(dataset_dir) / "measure_records" / device)


def _record_files(folder: Path) -> list[Path]:
    return sorted(
        path for path in folder.iterdir() if path.name.endswith(_RECORD_SUFFIXES) and path.is_file()
    )


def _how_to_get(device: str) -> str:
    return (
        "cdmpp dataset fetch downloads Tenset's records: tenset-gpu-full those of k80 and t4, "
        "tenset-cpu-full those of e5-2673, epyc-7452, platinum-8272 and graviton2. Your own "
        f"records must be in DIR/measure_records/{device}/*.json and their tasks in "
        f"DIR/network_info/; then run: cdmpp train --device {device} --dataset DIR"
    )
