"""Finds measurements of devices in shipped and fetched folders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cdmpp.datasets.extraction.extracted import is_extracted_dir, read_manifest
from cdmpp.datasets.fetch.registry import sources_of
from cdmpp.datasets.fetched import fetched_in
from cdmpp.datasets.tenset.folder import (
    default_dataset_dir,
    find_devices,
    is_tenset_dir,
)
from cdmpp.devices.device_file import normal_name
from cdmpp.devices.registry import check_known, find_device
from cdmpp.errors import DataError, DeviceError, UsageError
from cdmpp.files.places import shipped_places

#: Folders below `data/` with measurements of devices, in search order.
SHIPPED = ("tenset-cpu", "ansor-gpu", "metaschedule-a100")


@dataclass(frozen=True)
class RecordFolder:
    """A folder with measurements.

    Attributes:
        path: records of any source, or an extracted dataset.
        devices: labels, sorted.
    """

    path: Path
    devices: tuple[str, ...]


def record_folders(cache_dir: Path) -> list[RecordFolder]:
    """Returns every shipped or fetched folder with measurements.

    Args:
        cache_dir: folder that contains the fetched folders.

    Raises:
        DataError: a shipped or fetched folder is damaged.
    """
    return [*shipped_folders(), *fetched_folders(cache_dir)]


def shipped_folders() -> list[RecordFolder]:
    """Returns the shipped folders that exist in this installation.

    Raises:
        DataError: a folder is damaged.
    """
    found = []
    for name in SHIPPED:
        for place in shipped_places(Path("data") / name):
            if is_extracted_dir(place):
                found.append(RecordFolder(place, tuple(sorted(read_manifest(place)["devices"]))))
                break
            if is_tenset_dir(place):
                found.append(RecordFolder(place, tuple(find_devices(place))))
                break
    return found


def fetched_folders(cache_dir: Path) -> list[RecordFolder]:
    """Returns the completely fetched folders, sorted by name.

    Raises:
        DataError: a `fetched.json` is damaged.
    """
    return [
        RecordFolder(folder, tuple(sorted(fetched.devices)))
        for folder, fetched in fetched_in(cache_dir)
        if fetched.kind != "other"  # which has no reader
    ]


def find_records(labels: Sequence[str], cache_dir: Path) -> list[RecordFolder]:
    """Returns all folders with measurements of the given devices.

    The `devices` of each result are the given labels that it has.

    Raises:
        DeviceError: a label is unknown.
        DataError: a device has no measurements, or a folder is damaged.
    """
    folders = record_folders(cache_dir)
    known = sorted({label for folder in folders for label in folder.devices})
    try:
        check_known(labels, known)
    except DeviceError as error:
        raise DeviceError(f"{error}; for a device of your own give --dataset DIR") from None
    for label in labels:
        if label not in known:
            raise DataError(
                f"no measurements of device {label!r} found; devices found: "
                f"{', '.join(known) or 'none'}. {next_step(label)}, or give --dataset DIR"
            )
    chosen = [
        RecordFolder(one.path, tuple(label for label in one.devices if label in labels))
        for one in folders
    ]
    return [one for one in chosen if one.devices]


def next_step(label: str) -> str:
    """Returns the sentence with the command to get measurements of a device."""
    sources = sources_of(label)
    if sources:
        name = label if label in sources[0].default_for else sources[0].name
        return f"cdmpp dataset fetch {name} downloads measurements of {label}: {sources[0].title}"
    return (
        f"no published measurements of {label} are known. Measure them on a machine with this "
        f"device: cdmpp measure --device {label} --network FILE.onnx --out DIR; then train: "
        f"cdmpp train --device {label} --dataset DIR"
    )


def record_folder(labels: Sequence[str], cache_dir: Path) -> Path:
    """Returns the folder with measurements of the given devices; without devices, the shipped
    default dataset.

    Raises:
        DeviceError, DataError: as `find_records`.
        UsageError: the measurements are in several folders.
    """
    if not labels:
        return default_dataset_dir()
    found = find_records(labels, cache_dir)
    if len(found) > 1:
        listed = ", ".join(f"{one.path} ({', '.join(one.devices)})" for one in found)
        raise UsageError(
            f"the measurements are in several folders: {listed}; choose one with --dataset DIR"
        )
    return found[0].path


def labels_at(place: Path | None, labels: Sequence[str]) -> list[str]:
    """Returns the labels that the data at a path use for devices given by label or alias.

    Letter case does not matter. A device that the data do not have is returned as given.

    Args:
        place: an extracted dataset or records of any source; None = shipped and fetched folders.

    Raises:
        DataError: the folder is damaged.
    """
    if place is None:
        return list(dict.fromkeys(map(registered_label, labels)))
    known: Sequence[str] = ()
    if is_extracted_dir(place):
        known = read_manifest(place)["devices"]
    elif is_tenset_dir(place):
        known = find_devices(place)
    label_of = {normal_name(name): name for name in known}

    def called(label: str) -> str:
        others = (label_of.get(normal_name(name)) for name in (label, registered_label(label)))
        return label if label in known else next(filter(None, others), label)

    return list(dict.fromkeys(map(called, labels)))


def registered_label(label: str) -> str:
    """Returns the registry's label of a device given by label or alias, or the label that shipped
    measurements use for it; an unknown device is returned as given.

    Raises:
        DataError: a shipped folder is damaged.
    """
    found = find_device(label)
    if found is None:
        return label
    shipped = {name for folder in shipped_folders() for name in folder.devices}
    same = [name for name in sorted(shipped) if find_device(name) == found]
    return found.name if found.name in same or not same else same[0]
