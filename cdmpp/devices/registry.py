"""The registry of known devices: shipped device files and those of a user's folders."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from cdmpp.devices.device_file import (
    DeviceFile,
    DeviceKind,
    nearest_three,
    normal_name,
    read_device_file,
)
from cdmpp.devices.probe import probe_cpu
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DeviceError, UsageError
from cdmpp.files.places import package_folder
from cdmpp.records import GPU_TARGET_KINDS
from cdmpp.text import nearest

#: Label of the CPU of this process, with one thread per usable core.
THIS_CPU = "this-cpu"
_CPU_TARGETS = frozenset({"llvm", "c"})


def load_registry(folders: Iterable[Path] = ()) -> dict[str, DeviceSpec]:
    """Returns label -> DeviceSpec of the shipped YAML files and of those in `folders`.

    A later file may replace a label of an earlier one.

    Raises:
        DeviceError: a file is invalid.
    """
    devices: dict[str, DeviceSpec] = {}
    for content in _contents(folders):
        devices.update(content.devices)
    return devices


def list_devices(folders: Iterable[Path] = ()) -> list[DeviceSpec]:
    """Returns the known devices, including those of `folders`, sorted by label.

    Example:
        >>> "t4" in [spec.name for spec in list_devices() if spec.kind == "gpu"]
        True

    Raises:
        DeviceError: a file is invalid.
    """
    return [spec for _, spec in sorted(load_registry(folders).items())]


def load_aliases(folders: Iterable[Path] = ()) -> dict[str, str]:
    """Returns alias (as `normal_name` returns it) -> label of the files of `load_registry`.

    Raises:
        DeviceError: a file is invalid.
    """
    aliases: dict[str, str] = {}
    for content in _contents(folders):
        aliases.update(content.aliases)
    return aliases


def find_device(name: str, folders: Iterable[Path] = ()) -> DeviceSpec | None:
    """Returns the DeviceSpec of a label, an alias or `this-cpu`; None if it is unknown.

    Labels take precedence over aliases; letter case, spaces and a leading vendor do not matter. The
    `name` of the result is the label.

    Raises:
        DeviceError: a file is invalid, or this CPU cannot be described.
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
        DeviceError: the name is unknown; the text has the nearest one.
    """
    if not isinstance(name, str | DeviceSpec):
        raise DeviceError(f"device is {name!r}, expected a label or alias, e.g. 'v100'")
    return get_devices([name], folders)[0]


def get_devices(
    named: Iterable[str | DeviceSpec], folders: Iterable[Path] = ()
) -> list[DeviceSpec]:
    """Returns the DeviceSpecs of labels or aliases; a DeviceSpec is returned unchanged.

    Raises:
        DeviceError: names are unknown; the text has all of them, with the nearest ones.
    """
    named, folders = list(named), tuple(folders)
    found = [one if isinstance(one, DeviceSpec) else find_device(one, folders) for one in named]
    unknown = [str(name) for name, spec in zip(named, found, strict=True) if spec is None]
    if unknown:
        raise DeviceError(
            f"{unknown_text(unknown, load_registry(folders), load_aliases(folders))} (all: cdmpp "
            "device list); describe a new device in a YAML file like those in cdmpp/devices"
        )
    return [spec for spec in found if spec is not None]


def unknown_text(names: Sequence[str], known: Iterable[str], aliases: Iterable[str] = ()) -> str:
    """Returns `unknown device 'v10', did you mean 'v100'?; the nearest are v100, p100, a100`."""
    known = list(known)
    if len(names) > 1:
        each = [f"{name!r} (nearest: {nearest_three(name, known)})" for name in names]
        return f"unknown devices {', '.join(each)}"
    [name] = names
    near = nearest(normal_name(name), [*known, *aliases])
    verb = "is" if len(known) == 1 else "are"
    return f"unknown device {name!r}{near}; the nearest {verb} {nearest_three(name, known)}"


def as_described_now(spec: DeviceSpec) -> DeviceSpec:
    """Returns the registry's current DeviceSpec for an earlier one, e.g. of a trained model.

    Returns `spec` itself if the registry has no device of this label and kind.
    """
    known = load_registry().get(spec.name)
    return spec if known is None or known.kind != spec.kind else known


def check_lasts(label: str) -> None:
    """Checks that a label means the same device on every machine, as stored measurements need.

    Raises:
        UsageError: the label is `this-cpu`.
    """
    if label == THIS_CPU:
        raise UsageError(
            f"{THIS_CPU} is a different device on every machine, so measurements need a label of "
            "their own. Create one: cdmpp device add NAME"
        )


def check_known(names: Iterable[str], others: Iterable[str] = ()) -> None:
    """Checks that names are labels, aliases, or among `others`: labels of a user's data.

    Raises:
        DeviceError: names are unknown; the text has all of them, with the nearest ones.
    """
    others = list(others)
    unknown = [name for name in names if name not in others and find_device(name) is None]
    if unknown:
        text = unknown_text(unknown, others or load_registry(), [*load_registry(), *load_aliases()])
        raise DeviceError(f"{text}; list all: cdmpp device list")


def unknown_device(label: str, target_kind: str) -> tuple[DeviceSpec, str]:
    """Returns a DeviceSpec without values, and a warning, for a label missing in the registry.

    Every value is unknown, so that the device vector masks it.
    """
    if target_kind in _CPU_TARGETS:
        kind: DeviceKind = "cpu"
    else:
        kind = "gpu" if target_kind in GPU_TARGET_KINDS else "accelerator"
    warning = f"device {label!r} is not in the registry, so its hardware values are unknown"
    return DeviceSpec(name=label, kind=kind), warning


def resolve_devices(
    target_kinds: dict[str, str], folders: Iterable[Path] = ()
) -> tuple[tuple[DeviceSpec, ...], list[str]]:
    """Returns the DeviceSpecs of labels, sorted by label, and warnings about unknown labels.

    A DeviceSpec found by an alias gets the name that the data use.

    Args:
        target_kinds: label -> target kind of its programs (`llvm`, `cuda`, `rocm`).
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
