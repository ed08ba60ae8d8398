"""Detects the kind of a source: programs, records, networks, devices."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from cdmpp.datasets.metaschedule.databases import is_metaschedule_database
from cdmpp.datasets.samples import Samples
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DataError, UsageError
from cdmpp.replay.file_kind import file_kind
from cdmpp.text import shortened

if TYPE_CHECKING:
    from tvm_helper.tasks.program_file import NamedProgram

#: A label, a hardware description, or a device file (a path, or text that ends in .yaml or .yml).
Device = str | Path | DeviceSpec
#: Allowed values: see `Model.predict`. Any, because TVM is not loaded for its types.
Source = Any

SourceKind = Literal["program", "records", "network", "samples"]
#: Files that can be predicted.
_FILES: tuple[Literal["program", "records", "network"], ...] = ("program", "records", "network")
_EXPECTED = (
    "expected TVMScript or a PrimFunc, a Python file with them (.py), a record file (.json, "
    ".json.gz), a network (a torch module, .onnx, .pt2), samples, or a list of these"
)


def source_kind(source: Source) -> SourceKind:
    """Returns the kind of a source; for a file from its name and first keys.

    Raises:
        UsageError: the source cannot be predicted.
        DataError: the file does not exist.
    """
    if isinstance(source, str | Path):
        if not str(source).strip():
            raise UsageError(f"cannot predict an empty text: {_EXPECTED}")
        if is_script(source):
            return "program"
        path = Path(source)
        if path.is_dir() and not is_metaschedule_database(path):
            raise UsageError(
                f"{source} is a folder; expected a file in it, or its samples: "
                "cdmpp.Dataset.read(FOLDER).samples"
            )
        return cast(SourceKind, file_kind(path, _FILES))
    if isinstance(source, Samples):
        return "samples"
    if is_of(source, "tvm"):
        return "program"
    if is_of(source, "torch") or callable(source):
        return "network"
    raise UsageError(f"cannot predict {type(source).__name__}: {_EXPECTED}")


def is_script(source: str | Path) -> bool:
    """Whether a text is TVMScript itself, not a file name."""
    return isinstance(source, str) and "\n" in source.strip()


def is_of(value: object, package: str) -> bool:
    """Whether an object's class or a base class is from `package`, without loading it."""
    return any(kind.__module__.partition(".")[0] == package for kind in type(value).__mro__)


def flattened(source: Source) -> list[Source]:
    """Returns the sources of a source: itself, or the elements of lists and tuples."""
    if not isinstance(source, list | tuple):
        return [source]
    return [one for part in source for one in flattened(part)]


def split_devices(
    devices: Device | Sequence[Device] | None,
) -> tuple[list[str | DeviceSpec], list[Path]]:
    """Returns (labels and `DeviceSpec`s, device files).

    Raises:
        UsageError: a value of another type.
    """
    if devices is None:
        devices = ()
    given = [devices] if isinstance(devices, str | Path | DeviceSpec) else devices
    named: list[str | DeviceSpec] = []
    files: list[Path] = []
    for one in given if isinstance(given, Collection) else [given]:
        if not isinstance(one, str | Path | DeviceSpec):
            raise UsageError(
                f"device is {shortened(repr(devices), 60)}, expected a label, a DeviceSpec, a "
                "device file, or a list of these"
            )
        if isinstance(one, Path) or (isinstance(one, str) and one.endswith((".yaml", ".yml"))):
            files.append(Path(one))
        else:
            named.append(one)
    return named, files


def named_programs(source: Source, sizes: Mapping[str, int] | None = None) -> list[NamedProgram]:
    """Returns the programs of a source of kind `program`.

    Args:
        sizes: values of symbolic sizes.

    Raises:
        DataError: the source cannot be read, or has no program.
        UsageError: no program has such a size.
    """
    from tvm_helper.tasks.program_file import sized

    return sized(_read(source), sizes or {})


def _read(source: Source) -> list[NamedProgram]:
    from tvm_helper.tasks.program_file import programs_of, read_programs

    if is_script(source):
        from tvm_helper.tasks.script import read_script

        return read_script(source)
    if isinstance(source, str | Path):
        return read_programs(Path(source))
    attrs = getattr(source, "attrs", None) or {}
    found = programs_of({str(attrs.get("global_symbol", "program")): source})
    if not found:
        raise DataError(
            f"{type(source).__name__} has no tensor program; expected a PrimFunc, or an IRModule "
            "with one"
        )
    return found


def described(source: Source) -> str:
    """Returns the name of a source for error messages."""
    if is_script(source):
        return "the script"
    return str(source) if isinstance(source, str | Path) else f"the {type(source).__name__}"
