"""The registry of public sources of records, read from `sources.yaml` and checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from cdmpp.datasets.fetched import SOURCE_KINDS, SourceKind
from cdmpp.devices.registry import find_device
from cdmpp.errors import DataError, UsageError
from cdmpp.files.places import package_folder
from cdmpp.files.yaml_text import parse_yaml
from cdmpp.text import nearest

_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")
_CHECKSUM = re.compile(r"sha256:[0-9a-f]{64}|md5:[0-9a-f]{32}")
_GIT_ID = re.compile(r"[0-9a-f]{40}")
_ARCHIVES = (".tar.gz", ".tgz", ".tar", ".zip")


@dataclass(frozen=True)
class Download:
    """One file to download.

    Attributes:
        path: path in a mirror (`--from`) and in the work folder.
        bytes: size; None = unknown.
        checksum: `sha256:HEX` or `md5:HEX`; None = unknown, recorded by the first fetch.
    """

    path: str
    url: str
    bytes: int | None = None
    checksum: str | None = None

    @property
    def is_archive(self) -> bool:
        """Whether the file is unpacked."""
        return self.path.endswith(_ARCHIVES)


@dataclass(frozen=True)
class SourcePart:
    """Files of the source that are stored in one file or folder of the fetched dataset.

    Attributes:
        files: pattern of their paths in the source: `*` within a folder, `**` across folders.
        into: a file, into which they are joined in the order of their paths; or, with `/` at the
            end, a folder, in which they keep their path below the last folder that `files` names
            without a `*`. Several parts may share one file or folder.
        is_optional: whether these files may be missing.
    """

    files: str
    into: str
    is_optional: bool = False


@dataclass(frozen=True)
class PublicSource:
    """A public source of measurement records.

    Attributes:
        name: name to fetch the source by.
        devices: labels of the measured devices.
        default_for: labels of the devices whose label fetches this source.
        licence: licence of the data, as text.
        most_bytes: limit of bytes to download, and to unpack.
        programs: number of records, as text; empty = unknown.
        about_bytes: approximate size of the download; None = unknown.
        strip: number of leading folders to drop from every path of an archive.
        commit: commit of the repository; pins the content if no checksum is known.
        blobs: path in the source -> git blob id of the file, if known.
        needs_legacy_env: whether its records are read with the old TVM of the side environment.
        note: note for users.
        by_hand: how to download it in a browser, if its host requires one.
    """

    name: str
    title: str
    kind: SourceKind
    devices: tuple[str, ...]
    licence: str
    citation: str
    homepage: str
    most_bytes: int
    downloads: tuple[Download, ...]
    parts: tuple[SourcePart, ...]
    default_for: tuple[str, ...] = ()
    programs: str = ""
    about_bytes: int | None = None
    strip: int = 0
    commit: str | None = None
    blobs: Mapping[str, str] = field(default_factory=dict)
    needs_legacy_env: bool = False
    note: str = ""
    by_hand: str = ""

    @property
    def has_checksums(self) -> bool:
        """Whether the registry has a checksum of every download."""
        return all(item.checksum for item in self.downloads)


@lru_cache(maxsize=1)
def known_sources() -> tuple[PublicSource, ...]:
    """Returns every source of the shipped registry, in order.

    Raises:
        DataError: an entry is invalid.
    """
    return read_sources(package_folder("cdmpp.datasets.fetch") / "sources.yaml")


def sources_of(device: str) -> list[PublicSource]:
    """Returns the sources with records of a device (label or alias), default sources first."""
    label = _label(device)
    found = [source for source in known_sources() if label in map(_label, source.devices)]
    return sorted(found, key=lambda source: label not in map(_label, source.default_for))


def wanted_sources(name: str) -> list[PublicSource]:
    """Returns the source of a name, or the default sources of a device.

    Raises:
        UsageError: the name is unknown, or the device has no default source; the text names the
            nearest name or the sources.
    """
    for source in known_sources():
        if source.name == name:
            return [source]
    label = _label(name)
    found = [s for s in sources_of(name) if label in map(_label, s.default_for)]
    if found:
        return found
    others = [source.name for source in sources_of(name)]
    if others:
        raise UsageError(
            f"records of {name!r} are in {', '.join(others)}, which must be fetched by name: "
            f"cdmpp dataset fetch {others[0]}"
        )
    known = {source.name for source in known_sources()}
    labels = {device for source in known_sources() for device in source.devices}
    if find_device(name) is not None:
        raise UsageError(
            f"no known source has records of {name!r}; list all: cdmpp dataset fetch --list"
        )
    raise UsageError(
        f"unknown source or device {name!r}{nearest(name, sorted(known | labels))}; list all: "
        "cdmpp dataset fetch --list"
    )


def read_sources(path: Path) -> tuple[PublicSource, ...]:
    """Returns the sources of a registry file.

    Raises:
        DataError: the file cannot be read, or an entry has an unknown, missing or invalid value.
    """
    try:
        content = parse_yaml(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot read the sources ({error})") from None
    if not isinstance(content, dict):
        raise DataError(f"{path}: expected a mapping, name -> source")
    return tuple(_source(str(name), value, f"{path}: {name}") for name, value in content.items())


def _source(name: str, value: Any, where: str) -> PublicSource:
    values = _fields_of(PublicSource, value, where, given={"name": name})
    kind = values["kind"]
    if not _NAME.fullmatch(name):
        raise DataError(f"{where}: a name consists of lower-case letters, digits and dashes")
    if kind not in SOURCE_KINDS:
        raise DataError(f"{where}: kind is {kind!r}, expected one of {', '.join(SOURCE_KINDS)}")
    commit = values.get("commit")
    if commit is not None and not _GIT_ID.fullmatch(str(commit)):
        raise DataError(f"{where}: commit is {commit!r}, expected 40 hexadecimal digits")
    for key in ("devices", "default_for"):
        values[key] = tuple(values.get(key) or ())
    values["downloads"] = tuple(
        _download(item, f"{where}: downloads", str(commit)) for item in values["downloads"]
    )
    values["parts"] = tuple(
        SourcePart(**_fields_of(SourcePart, item, f"{where}: parts")) for item in values["parts"]
    )
    for part in values["parts"]:
        _check_path(part.into.removesuffix("/"), where)
    for key in ("most_bytes", "about_bytes"):
        if not isinstance(values.get(key, 0), int):
            raise DataError(f"{where}: {key} is {values[key]!r}, expected a whole number")
    return PublicSource(**values)


def _download(value: Any, where: str, commit: str) -> Download:
    values = _fields_of(Download, value, where)
    for key in ("path", "url"):
        values[key] = str(values[key]).replace("{commit}", commit)
    item = Download(**values)
    _check_path(item.path, where)
    if not item.url.startswith(("https://", "http://")):
        raise DataError(f"{where}: url is {item.url!r}, expected https://...")
    if item.checksum is not None and not _CHECKSUM.fullmatch(item.checksum):
        raise DataError(f"{where}: checksum is {item.checksum!r}, expected sha256:HEX or md5:HEX")
    return item


def _fields_of(
    cls: type, value: Any, where: str, *, given: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Returns the values of a dataclass's fields from a mapping, after a check of their names."""
    if not isinstance(value, dict):
        raise DataError(f"{where}: expected a mapping of fields, got {type(value).__name__}")
    known = {f.name: f for f in fields(cls)}
    values = value | (given or {})
    for name in values:
        if name not in known:
            raise DataError(f"{where}: unknown field {name!r}{nearest(str(name), known)}")
    missing = [
        name
        for name, f in known.items()
        if f.default is MISSING and f.default_factory is MISSING and values.get(name) is None
    ]
    if missing:
        raise DataError(f"{where}: no {', '.join(missing)}")
    return {name: item for name, item in values.items() if item is not None}


def _check_path(path: str, where: str) -> None:
    parts = path.split("/")
    if path.startswith("/") or "\\" in path or any(part in ("", ".", "..") for part in parts):
        raise DataError(f"{where}: {path!r} is not a plain relative path")


def _label(name: str) -> str:
    spec = find_device(name)
    return name if spec is None else spec.name
