"""Folders of fetched records: their paths, and `fetched.json`, which describes their content."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from cdmpp.errors import DataError
from cdmpp.files.atomic import read_json, write_json

#: Written last: its presence marks a complete folder.
FETCHED_FILE = "fetched.json"
#: Format of the records of a source; `other` has no reader.
SourceKind = Literal["autotvm", "tenset", "metaschedule", "other"]
SOURCE_KINDS = ("autotvm", "tenset", "metaschedule", "other")


@dataclass(frozen=True)
class FetchedFile:
    """A file of a fetched folder: its path below the folder, its size and its digest."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Fetched:
    """Content of `fetched.json`.

    Attributes:
        name: name of the source in the registry.
        devices: labels of the devices with records in the folder.
        source: URL or folder that it was fetched from.
        commit: commit of the repository; None = not from a repository.
        files: files in the folder.
        downloads: downloaded files, before they were unpacked or joined.
        fetched_at: time of the download, ISO 8601 in UTC.
    """

    name: str
    kind: SourceKind
    devices: tuple[str, ...]
    licence: str
    citation: str
    source: str
    commit: str | None
    files: tuple[FetchedFile, ...]
    downloads: tuple[FetchedFile, ...]
    fetched_at: str

    @property
    def bytes(self) -> int:
        """Size of all files together."""
        return sum(file.bytes for file in self.files)

    def to_json(self) -> dict[str, Any]:
        """Returns the content as JSON values."""
        return asdict(self)


def fetched_folder(cache: Path, name: str) -> Path:
    """Returns the folder for a source, whether it was fetched or not."""
    return Path(cache) / "fetched" / name


def write_fetched(folder: Path, fetched: Fetched) -> None:
    """Writes `fetched.json`, which marks the folder as complete.

    Raises:
        DataError: the file cannot be written.
    """
    write_json(folder / FETCHED_FILE, fetched.to_json())


def read_fetched(folder: Path) -> Fetched | None:
    """Returns the content of a folder's `fetched.json`; None if the folder is not complete.

    Raises:
        DataError: its `fetched.json` is damaged.
    """
    path = Path(folder) / FETCHED_FILE
    if not path.is_file():
        return None
    hint = f"remove {folder} and fetch it again: cdmpp dataset fetch {Path(folder).name}"
    value = read_json(path, what="list of fetched files", hint=hint)
    try:
        lists = {
            key: tuple(FetchedFile(**file) for file in value[key]) for key in ("files", "downloads")
        }
        return Fetched(**(value | lists | {"devices": tuple(value["devices"])}))
    except (TypeError, KeyError, AttributeError):
        raise DataError(f"the list of fetched files {path} is damaged; {hint}") from None


def fetched_in(cache: Path) -> Iterator[tuple[Path, Fetched]]:
    """Yields every complete folder of fetched records of a cache folder, by name.

    Raises:
        DataError: a `fetched.json` is damaged.
    """
    for path in sorted((Path(cache) / "fetched").glob(f"*/{FETCHED_FILE}")):
        fetched = read_fetched(path.parent)
        if fetched is not None and fetched.name == path.parent.name:  # not a temporary folder
            yield path.parent, fetched
