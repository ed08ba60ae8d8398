"""Device files: YAML with labels and fields, each a value and its source, as DeviceSpecs."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, cast

from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DeviceError
from cdmpp.files.yaml_text import parse_yaml
from cdmpp.text import nearest

DeviceKind = Literal["gpu", "cpu", "accelerator"]

#: Kinds of devices.
DEVICE_KINDS = ("gpu", "cpu", "accelerator")
_TEXT_FIELDS = frozenset({"vendor", "architecture", "compute_capability", "kernel_sweep"})
_REAL_SUFFIXES = ("_hz", "_s", "_w")
#: Suffix of a field -> plausible range and unit: `900` is not a bandwidth in bytes per second.
_PLAUSIBLE = {
    "_per_s": (1e6, 1e18, "a second"), "_hz": (1e6, 1e11, "Hz"), "launch_s": (1e-9, 1e-2, "s"),
}  # fmt: skip
_ALIASES = "aliases"


@dataclass(frozen=True)
class DeviceFile:
    """The content of one file.

    Attributes:
        devices: label -> DeviceSpec, in the order of the file.
        aliases: alias (as `normal_name` returns it) -> label.
    """

    devices: dict[str, DeviceSpec]
    aliases: dict[str, str]


def load_device_spec(path: str | Path, label: str | None = None) -> DeviceSpec:
    """Returns one device of a device file.

    Args:
        path: a YAML file like those of `cdmpp/devices`.
        label: label of the device; None = the only device of the file.

    Raises:
        DeviceError: the file is unreadable or invalid, lacks the label, or has several devices and
            no label was given.
    """
    devices = read_device_file(Path(path)).devices
    if label is None:
        if len(devices) == 1:
            return next(iter(devices.values()))
        raise DeviceError(
            f"{path}: has {len(devices)} devices, expected one; keep one of "
            f"{', '.join(sorted(devices)) or 'none'}"
        )
    if label not in devices:
        raise DeviceError(
            f"{path}: has no device {label!r}{nearest(label, devices)}; known: "
            f"{', '.join(sorted(devices)) or 'none'}"
        )
    return devices[label]


def read_device_file(path: Path) -> DeviceFile:
    """Reads one YAML file: `common` fields and `devices`, label -> fields.

    A field is `{value: ..., source: ...}`, except `kind`, a word, and `aliases`, a list of words.
    Null or absent = unknown.

    Raises:
        DeviceError: the file is unreadable, or has an unknown field or a value of the wrong type,
            in another unit or without a source.
    """
    try:
        content = parse_yaml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = (isinstance(error, OSError) and error.strerror) or error
        raise DeviceError(
            f"{path}: cannot read the device file ({why}); expected YAML with `devices`, like the "
            "files in cdmpp/devices"
        ) from None
    if not isinstance(content, dict) or not isinstance(content.get("devices"), dict):
        raise DeviceError(
            f"{path}: expected a mapping with `devices` (label -> fields), e.g. "
            "devices: {my-gpu: {kind: gpu, vendor: NVIDIA}}"
        )
    common = content.get("common") or {}
    unknown = sorted(set(content) - {"common", "devices"}, key=str)
    if unknown:
        near = nearest(str(unknown[0]), ("common", "devices"))
        raise DeviceError(f"{path}: unknown key {unknown[0]!r}{near}")
    devices: dict[str, DeviceSpec] = {}
    aliases: dict[str, str] = {}
    for key, own in content["devices"].items():
        label = str(key)
        if not isinstance(own or {}, dict) or not isinstance(common, dict):
            raise DeviceError(f"{path}: {label}: expected a mapping of fields")
        entries = dict(own or {})
        for alias in _aliases(entries.pop(_ALIASES, None), f"{path}: {label}"):
            aliases[alias] = label
        devices[label] = _to_spec(label, common | entries, path)
    return DeviceFile(devices, aliases)


def normal_name(name: str) -> str:
    """Returns a name in the form for comparisons: lower case, dashes, without the vendor.

    `NVIDIA A100-SXM4-40GB` and `a100_sxm4_40gb` have the same form.
    """
    words = "-".join(name.lower().replace("_", " ").split())
    for vendor in ("nvidia-", "amd-", "intel-"):
        words = words.removeprefix(vendor)
    return words


def nearest_three(name: str, known: Iterable[str]) -> str:
    """Returns the three most similar known names: `v100, p100, a100`."""
    names = {normal_name(one): one for one in sorted(known)}
    matches = difflib.get_close_matches(normal_name(name), list(names), n=3, cutoff=0.0)
    return ", ".join(names[one] for one in matches)


def _aliases(value: Any, where: str) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise DeviceError(f"{where}: aliases: expected a list of names, got {value!r}")
    return [normal_name(item) for item in value]


def _to_spec(label: str, values: dict[str, Any], path: Path) -> DeviceSpec:
    where = f"{path}: {label}"
    known = {spec_field.name for spec_field in fields(DeviceSpec)} - {"name", "sources"}
    arguments: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for name, entry in values.items():
        if name not in known:
            near = nearest(str(name), {*known, _ALIASES})
            raise DeviceError(f"{where}: unknown field {name!r}{near}")
        if name == "kind":
            if entry not in DEVICE_KINDS:
                raise DeviceError(
                    f"{where}: kind is {entry!r}, expected one of {', '.join(DEVICE_KINDS)}"
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
            if name == "kernel_sweep":  # relative to the device file
                arguments[name] = str(path.absolute().parent / arguments[name])
            sources[name] = str(entry["source"])
    if "kind" not in arguments:
        raise DeviceError(f"{where}: kind is missing, expected one of {', '.join(DEVICE_KINDS)}")
    kind = cast(DeviceKind, arguments.pop("kind"))
    return DeviceSpec(name=label, kind=kind, sources=sources, **arguments)


def _typed(name: str, value: Any, where: str) -> str | int | float:
    """Returns a value as text, positive float (rates, times) or positive int (counts, sizes)."""
    if name in _TEXT_FIELDS:
        return str(value)
    try:
        number = float(value)  # YAML reads 2.3e9 as text
    except (TypeError, ValueError, OverflowError):
        number = 0.0
    if isinstance(value, bool) or not 0 < number < float("inf"):
        raise DeviceError(
            f"{where}: {name} is {value!r}, expected a positive number (null if unknown)"
        )
    for suffix, (least, most, unit) in _PLAUSIBLE.items():
        if name.endswith(suffix) and not least <= number <= most:
            raise DeviceError(
                f"{where}: {name} is {value!r}, expected {least:g} to {most:g} {unit}; check the "
                "unit and the power of ten"
            )
    if name.endswith(_REAL_SUFFIXES):
        return number
    if number != int(number):
        raise DeviceError(f"{where}: {name} is {value!r}, expected a whole number")
    return int(number)
