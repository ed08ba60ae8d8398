"""Folders of fetched records: where they lie, and `fetched.json`, which says what is in one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from cdmpp.errors import DataError
from cdmpp.files.atomic import read_json, write_json

#: Written last: a folder that has it is complete.
FETCHED_FILE = "fetched.json"
#: What the records of a source are: the reader that they are for.
SourceKind = Literal["autotvm", "tenset", "metaschedule", "other"]
SOURCE_KINDS = ("autotvm", "tenset", "metaschedule", "other")


@dataclass(frozen=True)
class FetchedFile:
    """A file of a fetched folder: its place below it, its size and the digest of its bytes."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Fetched:
    """What `fetched.json` says of its folder.

    Attributes:
        name: of the source in the registry.
        devices: labels of the devices whose records it holds.
        source: where it was fetched from: a URL or a folder.
        commit: of the repository that it is from; None = it is from no repository.
        files: what is in the folder.
        downloads: what was downloaded for it, before anything was unpacked or joined.
        fetched_at: when, ISO 8601 in UTC.
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
        """Returns it as JSON values."""
        return asdict(self)


def fetched_folder(cache: Path, name: str) -> Path:
    """Returns where a source lies once it is fetched, whether it is or not."""
    return Path(cache) / "fetched" / name


def write_fetched(folder: Path, fetched: Fetched) -> None:
    """Writes `fetched.json`: from now on the folder is complete.

    Raises:
        DataError: it cannot be written.
    """
    write_json(folder / FETCHED_FILE, fetched.to_json())


def read_fetched(folder: Path) -> Fetched | None:
    """Returns what a folder of fetched records holds; None where it is not complete.

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
        if fetched is not None and fetched.name == path.parent.name:  # not one being replaced
            yield path.parent, fetched
