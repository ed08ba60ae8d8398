"""The devices that are known: YAML files of labels, one value with its source each."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, cast

import yaml

from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DeviceError
from cdmpp.records import GPU_TARGET_KINDS

DeviceKind = Literal["gpu", "cpu", "accelerator"]

_KINDS = ("gpu", "cpu", "accelerator")
_TEXT_FIELDS = frozenset({"vendor", "architecture", "compute_capability"})
_REAL_SUFFIXES = ("_hz", "_per_s")
_CPU_TARGETS = frozenset({"llvm", "c"})


def load_registry(folders: Iterable[Path] = ()) -> dict[str, DeviceSpec]:
    """Returns label -> DeviceSpec of every shipped YAML file, then of those in `folders`.

    A later file may replace a label of an earlier one.

    Raises:
        DeviceError: a file that is not as it should be.
    """
    devices: dict[str, DeviceSpec] = {}
    for folder in (Path(__file__).parent, *folders):
        for path in sorted(Path(folder).glob("*.yaml")):
            devices.update(load_device_file(path))
    return devices


def get_device(label: str, folders: Iterable[Path] = ()) -> DeviceSpec:
    """Returns the DeviceSpec of a label.

    Raises:
        DeviceError: the label is not known; names the nearest one.
    """
    devices = load_registry(folders)
    if label not in devices:
        near = _nearest(label, devices)
        raise DeviceError(
            f"unknown device {label!r}{near}; known: {', '.join(sorted(devices))}; describe a new "
            "device in a YAML file like those in cdmpp/devices"
        )
    return devices[label]


def unknown_device(label: str, target_kind: str) -> tuple[DeviceSpec, str]:
    """Returns (a DeviceSpec without values, a warning) for a label that is not in the registry.

    This is the defined fallback: every value is null and reaches a model as masked.
    """
    if target_kind in _CPU_TARGETS:
        kind: DeviceKind = "cpu"
    else:
        kind = "gpu" if target_kind in GPU_TARGET_KINDS else "accelerator"
    warning = (
        f"device {label!r} is not in the registry: its hardware values are unknown to the model; "
        "describe it in a YAML file like those in cdmpp/devices"
    )
    return DeviceSpec(name=label, kind=kind), warning


def resolve_devices(
    target_kinds: dict[str, str], folders: Iterable[Path] = ()
) -> tuple[tuple[DeviceSpec, ...], list[str]]:
    """Returns (specs in label order, warnings) of labels given with the kind of their programs.

    Args:
        target_kinds: label -> target kind (`llvm`, `cuda`, `rocm`) of what runs there.
    """
    devices = load_registry(folders)
    specs: list[DeviceSpec] = []
    warnings: list[str] = []
    for label in sorted(target_kinds):
        if label in devices:
            specs.append(devices[label])
            continue
        spec, warning = unknown_device(label, target_kinds[label])
        specs.append(spec)
        warnings.append(warning)
    return tuple(specs), warnings


def load_device_file(path: Path) -> dict[str, DeviceSpec]:
    """Reads one YAML file: `common` fields and `devices`, label -> fields.

    A field is `{value: ..., source: ...}`, only `kind` is a bare word; null or absent = unknown.

    Raises:
        DeviceError: unreadable, an unknown field, a value of the wrong type or without a source.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        detail = " ".join(str(error).split())
        raise DeviceError(f"{path}: cannot read the device file ({detail[:200]})") from None
    if not isinstance(content, dict) or not isinstance(content.get("devices"), dict):
        raise DeviceError(f"{path}: expected a mapping with `devices` (label -> fields)")
    common = content.get("common") or {}
    unknown = sorted(set(content) - {"common", "devices"})
    if unknown:
        near = _nearest(str(unknown[0]), ("common", "devices"))
        raise DeviceError(f"{path}: unknown key {unknown[0]!r}{near}")
    result: dict[str, DeviceSpec] = {}
    for label, own in content["devices"].items():
        if not isinstance(own or {}, dict) or not isinstance(common, dict):
            raise DeviceError(f"{path}: {label}: expected a mapping of fields")
        result[str(label)] = _to_spec(str(label), common | (own or {}), path)
    return result


def _to_spec(label: str, values: dict[str, Any], path: Path) -> DeviceSpec:
    where = f"{path}: {label}"
    known = {spec_field.name for spec_field in fields(DeviceSpec)} - {"name", "sources"}
    arguments: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for name, entry in values.items():
        if name not in known:
            raise DeviceError(f"{where}: unknown field {name!r}{_nearest(str(name), known)}")
        if name == "kind":
            if entry not in _KINDS:
                raise DeviceError(
                    f"{where}: kind is {entry!r}, expected one of {', '.join(_KINDS)}"
                )
            arguments[name] = entry
            continue
        if entry is None:
            continue
        if not (isinstance(entry, dict) and set(entry) == {"value", "source"} and entry["source"]):
            raise DeviceError(
                f"{where}: {name}: expected {{value: ..., source: ...}}, got {entry!r}"
            )
        if entry["value"] is not None:
            arguments[name] = _typed(name, entry["value"], where)
            sources[name] = str(entry["source"])
    if "kind" not in arguments:
        raise DeviceError(f"{where}: kind is missing, expected one of {', '.join(_KINDS)}")
    kind = cast(DeviceKind, arguments.pop("kind"))
    return DeviceSpec(name=label, kind=kind, sources=sources, **arguments)


def _typed(name: str, value: Any, where: str) -> str | int | float:
    """Returns the value as text, a positive float (rates) or a positive int (counts and sizes)."""
    if name in _TEXT_FIELDS:
        return str(value)
    try:
        number = float(value)  # YAML reads 2.3e9 as text
    except (TypeError, ValueError):
        number = 0.0
    if isinstance(value, bool) or not 0 < number < float("inf"):
        raise DeviceError(
            f"{where}: {name} is {value!r}, expected a positive number (null if unknown)"
        )
    if name.endswith(_REAL_SUFFIXES):
        return number
    if number != int(number):
        raise DeviceError(f"{where}: {name} is {value!r}, expected a whole number")
    return int(number)


def _nearest(name: str, known: Iterable[str]) -> str:
    match = difflib.get_close_matches(name, list(known), n=1)
    return f", did you mean {match[0]!r}?" if match else ""
