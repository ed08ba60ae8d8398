"""The devices that are known: those shipped beside this module and those of a user's folders."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from cdmpp.devices.device_file import (
    DeviceFile,
    DeviceKind,
    nearest,
    nearest_three,
    normal_name,
    read_device_file,
)
from cdmpp.devices.probe import probe_cpu
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DeviceError, UsageError
from cdmpp.files.places import package_folder
from cdmpp.records import GPU_TARGET_KINDS

#: Label of the CPU that asks, with a thread a core that may be used, as far as the system tells.
THIS_CPU = "this-cpu"
#: More labels are not listed in a message; the nearest are.
_MOST_LISTED = 12
_CPU_TARGETS = frozenset({"llvm", "c"})


def load_registry(folders: Iterable[Path] = ()) -> dict[str, DeviceSpec]:
    """Returns label -> DeviceSpec of every shipped YAML file, then of those in `folders`.

    A later file may replace a label of an earlier one.

    Raises:
        DeviceError: a file that is not as it should be.
    """
    devices: dict[str, DeviceSpec] = {}
    for content in _contents(folders):
        devices.update(content.devices)
    return devices


def list_devices(folders: Iterable[Path] = ()) -> list[DeviceSpec]:
    """Returns the devices that are known, those of `folders` too, by label.

    Example:
        >>> "t4" in [spec.name for spec in list_devices() if spec.kind == "gpu"]
        True

    Raises:
        DeviceError: a file that is not as it should be.
    """
    return [spec for _, spec in sorted(load_registry(folders).items())]


def load_aliases(folders: Iterable[Path] = ()) -> dict[str, str]:
    """Returns other name (as `normal_name` gives it) -> label, of the same files.

    Raises:
        DeviceError: a file that is not as it should be.
    """
    aliases: dict[str, str] = {}
    for content in _contents(folders):
        aliases.update(content.aliases)
    return aliases


def find_device(name: str, folders: Iterable[Path] = ()) -> DeviceSpec | None:
    """Returns the DeviceSpec of a label, of an alias, or of `this-cpu`, None if it is not known.

    A label wins over an alias; letter case, spaces and the vendor in front do not matter. The
    `name` of the result is the label.

    Raises:
        DeviceError: a file that is not as it should be, or nothing is told of this CPU.
    """
    folders = tuple(folders)
    devices = load_registry(folders)
    if name in devices:
        return devices[name]
    if name == THIS_CPU:
        return probe_cpu(THIS_CPU)
    wanted = normal_name(name)
    for label, spec in devices.items():
        if normal_name(label) == wanted:
            return spec
    label_of = load_aliases(folders).get(wanted)
    return devices.get(label_of) if label_of else None


def get_device(name: str, folders: Iterable[Path] = ()) -> DeviceSpec:
    """Returns the DeviceSpec of a label or alias.

    Raises:
        DeviceError: the name is not known; names the nearest one.
    """
    folders = tuple(folders)
    spec = find_device(name, folders)
    if spec is None:
        devices = load_registry(folders)
        near = nearest(name, [*devices, *load_aliases(folders)])
        raise DeviceError(
            f"unknown device {name!r}{near}; the nearest are {nearest_three(name, devices)} (all: "
            "cdmpp device list); describe a new device in a YAML file like those in cdmpp/devices"
        )
    return spec


def as_described_now(spec: DeviceSpec) -> DeviceSpec:
    """Returns what the registry says of a device that was described earlier, such as in a trained
    model; the device itself where the registry has no such label of its kind.
    """
    known = load_registry().get(spec.name)
    return spec if known is None or known.kind != spec.kind else known


def check_lasts(label: str) -> None:
    """Checks that a label means the same device on every machine: what is measured keeps it.

    Raises:
        UsageError: it is `this-cpu`.
    """
    if label == THIS_CPU:
        raise UsageError(
            f"{THIS_CPU} is a different device on every machine, so measurements need a label of "
            "their own. Create one: cdmpp device add NAME"
        )


def check_known(name: str, others: Iterable[str] = ()) -> None:
    """Checks that a name is a label or alias, or one of `others`: labels of a user's data.

    Raises:
        DeviceError: it is none; names the nearest one.
    """
    others = list(others)
    if name not in others and find_device(name) is None:
        near = nearest(name, [*others, *load_registry(), *load_aliases()])
        listed = sorted(others) if len(others) <= _MOST_LISTED else []
        found = f"; known: {', '.join(listed)}" if listed else ""
        if not listed:
            found = f"; the nearest are {nearest_three(name, others or load_registry())}"
        raise DeviceError(f"unknown device {name!r}{near}{found}; list all: cdmpp device list")


def unknown_device(label: str, target_kind: str) -> tuple[DeviceSpec, str]:
    """Returns (a DeviceSpec without values, a warning) for a label that is not in the registry.

    This is the defined fallback: every value is null and reaches a model as masked.
    """
    if target_kind in _CPU_TARGETS:
        kind: DeviceKind = "cpu"
    else:
        kind = "gpu" if target_kind in GPU_TARGET_KINDS else "accelerator"
    warning = (
        f"device {label!r} is not in the registry: its hardware values are unknown; describe it "
        "in a YAML file like those in cdmpp/devices"
    )
    return DeviceSpec(name=label, kind=kind), warning


def resolve_devices(
    target_kinds: dict[str, str], folders: Iterable[Path] = ()
) -> tuple[tuple[DeviceSpec, ...], list[str]]:
    """Returns (specs in label order, warnings) of labels given with the kind of their programs.

    A spec found by an alias keeps the name that the data use.

    Args:
        target_kinds: label -> target kind (`llvm`, `cuda`, `rocm`) of what runs there.
    """
    folders = tuple(folders)
    specs: list[DeviceSpec] = []
    warnings: list[str] = []
    for label in sorted(target_kinds):
        found = find_device(label, folders)
        if found is not None:
            specs.append(replace(found, name=label))
            continue
        spec, warning = unknown_device(label, target_kinds[label])
        specs.append(spec)
        warnings.append(warning)
    return tuple(specs), warnings


def _contents(folders: Iterable[Path]) -> list[DeviceFile]:
    paths = [path for folder in folders for path in sorted(Path(folder).glob("*.yaml"))]
    return [*_shipped(), *(read_device_file(path) for path in paths)]


@lru_cache(maxsize=1)
def _shipped() -> tuple[DeviceFile, ...]:
    return tuple(
        read_device_file(path) for path in sorted(package_folder("cdmpp.devices").glob("*.yaml"))
    )
