"""Where measurements of devices are: in the shipped folders, and in what was fetched."""

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
from cdmpp.errors import DataError, UsageError
from cdmpp.files.places import shipped_places

#: Folders below `data/` with measurements of devices, in the order in which they are looked at.
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
    """Returns every folder that measurements are taken from by the name of a device.

    Args:
        cache_dir: what is fetched lies below it.

    Raises:
        DataError: a shipped or fetched folder is damaged.
    """
    return [*shipped_folders(), *fetched_folders(cache_dir)]


def shipped_folders() -> list[RecordFolder]:
    """Returns the shipped folders that are here.

    Raises:
        DataError: one is damaged.
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
    """Returns the folders that were fetched to their end, sorted by name.

    Raises:
        DataError: the note of one is damaged.
    """
    return [
        RecordFolder(folder, tuple(sorted(fetched.devices)))
        for folder, fetched in fetched_in(cache_dir)
        if fetched.kind != "other"  # there is no reader for those
    ]


def find_records(labels: Sequence[str], cache_dir: Path) -> list[RecordFolder]:
    """Returns all folders with measurements of some devices, each with those of the labels that it
    has.

    Raises:
        DeviceError: nobody knows a label.
        DataError: there are no measurements of a device, or a folder is damaged.
    """
    folders = record_folders(cache_dir)
    known = sorted({label for folder in folders for label in folder.devices})
    check_known(labels, known)
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
    """Returns the command that brings measurements of a device."""
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
    """Returns the one folder with measurements of some devices; of no device the shipped default
    dataset.

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
    """Returns devices as the data at a place call them, whatever their letter case or alias; what
    is not there stays.

    Args:
        place: an extracted dataset or records of any source; None = shipped and fetched ones.

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
    """Returns the registry's label of a device that is asked for by another of its names; where the
    shipped measurements call that device by another name, theirs.

    Raises:
        DataError: a shipped folder is damaged.
    """
    found = find_device(label)
    if found is None:
        return label
    shipped = {name for folder in shipped_folders() for name in folder.devices}
    same = [name for name in sorted(shipped) if find_device(name) == found]
    return found.name if found.name in same or not same else same[0]
