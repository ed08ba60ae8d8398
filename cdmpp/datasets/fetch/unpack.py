"""Takes files of a source from archives, folders and single files by pattern, and joins them."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import re
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from cdmpp.datasets.fetch.registry import PublicSource, SourcePart
from cdmpp.errors import DataError

_COPY_BYTES = 1 << 20
#: Maximum number of files of a source.
_MOST_FILES = 500_000
#: Errors of a damaged or encrypted archive.
_DAMAGES = (
    tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, gzip.BadGzipFile, RuntimeError,
)  # fmt: skip
_GZIP = b"\x1f\x8b"


class WrongContentError(DataError):
    """The content of a download is damaged, or is not that of the source."""


@dataclass(frozen=True)
class Member:
    """A file of a source: its path in the source, its size and a function that opens it."""

    path: str
    size: int
    open: Callable[[], IO[bytes]]


class Taker:
    """Extracts the files that the parts of a source name, and joins them into the dataset's files.

    Args:
        folder: folder of the dataset; extracted files are in its `.taken` until they are joined.
    """

    def __init__(self, source: PublicSource, folder: Path) -> None:
        self.source = source
        self.folder = folder
        self._taken = folder / ".taken"
        self._patterns = [(_pattern(part.files), part) for part in source.parts]
        self._bytes = self._files = 0
        self._found: dict[SourcePart, dict[str, Path]] = {part: {} for part in source.parts}

    def take(self, members: Iterator[Member], *, strip: int = 0) -> None:
        """Copies the named files of an archive or folder.

        Args:
            strip: number of leading folders to drop from every path.

        Raises:
            WrongContentError: the files exceed the registry's limit, a path leads out of the
                folder, a file has another git id, or the archive cannot be read.
        """
        with _undamaged(self.source.name):
            for member in members:
                path = "/".join(member.path.split("/")[strip:])
                part = next((p for pattern, p in self._patterns if pattern.fullmatch(path)), None)
                if part is not None:
                    self._take(member, path, part)

    def _take(self, member: Member, path: str, part: SourcePart) -> None:
        if any(word in ("", ".", "..") for word in path.split("/")) or "\\" in path:
            raise WrongContentError(
                f"{member.path}: points outside the folder; the archive is rejected"
            )
        self._bytes += member.size
        self._files += 1
        if self._bytes > self.source.most_bytes or self._files > _MOST_FILES:
            raise WrongContentError(
                f"{self.source.name}: more than {self.source.most_bytes} bytes or {_MOST_FILES} "
                "files when unpacked, the limit of the registry; nothing was kept"
            )
        target = self._taken / str(self.source.parts.index(part)) / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with member.open() as read, target.open("wb") as write:
            left = member.size
            while chunk := read.read(min(_COPY_BYTES, left + 1)):
                left -= len(chunk)
                if left < 0:
                    raise WrongContentError(
                        f"{member.path}: is longer than its archive states; the archive is rejected"
                    )
                write.write(chunk)
            if left:
                raise WrongContentError(
                    f"{member.path}: is shorter than its archive states; the archive is rejected"
                )
        self._check(target, path)
        self._found[part][path] = target

    def _check(self, file: Path, path: str) -> None:
        expected = self.source.blobs.get(path)
        if expected is not None and git_blob_id(file) != expected:
            raise WrongContentError(
                f"{path}: is git blob {git_blob_id(file)}, expected {expected}; it is not the "
                f"file of {self.source.name}: fetch it again, or give another --from"
            )

    def finish(self) -> None:
        """Joins the extracted files into the files of the dataset.

        Raises:
            WrongContentError: no file was found, in total or for a required part, or a gzipped file
                is damaged.
        """
        missing = [
            part.files
            for part, found in self._found.items()
            if not found and not (part.is_optional and any(self._found.values()))
        ]
        if missing:
            raise WrongContentError(
                f"{self.source.name}: no file matches {', '.join(missing)}; expected the files "
                f"of {self.source.homepage}"
            )
        joined: dict[Path, list[Path]] = {}
        for part, found in self._found.items():
            for path, file in sorted(found.items()):
                if part.into.endswith("/"):
                    target = self.folder / part.into / path.removeprefix(_head(part.files))
                else:
                    target = self.folder / part.into
                joined.setdefault(target, []).append(file)
        for target, files in joined.items():
            target.parent.mkdir(parents=True, exist_ok=True)
            with _undamaged(f"{self.source.name}: {target.name}"):
                _join(files, target)
        shutil.rmtree(self._taken, ignore_errors=True)


@contextlib.contextmanager
def _undamaged(what: str) -> Iterator[None]:
    try:
        yield
    except _DAMAGES as error:
        raise WrongContentError(
            f"{what}: not a complete archive ({error or type(error).__name__}); expected "
            ".tar.gz, .zip or .gz: download it again"
        ) from None


def has_files_of(source: PublicSource, members: Iterator[Member]) -> bool:
    """Whether any member matches a part of the source."""
    patterns = [_pattern(part.files) for part in source.parts]
    return any(pattern.fullmatch(member.path) for member in members for pattern in patterns)


def members_of(place: Path, *, commit: str | None = None) -> Iterator[Member]:
    """Yields the files of a folder, tar or zip, without links and devices in archives.

    Args:
        commit: expected commit of the repository, checked if the archive names one.

    Raises:
        WrongContentError: the archive is of another commit.
    """
    if place.is_dir():
        yield from _folder_members(place)
    elif zipfile.is_zipfile(place):
        yield from _zip_members(place, commit)
    else:
        yield from _tar_members(place, commit)


def _folder_members(folder: Path) -> Iterator[Member]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and ".git" not in path.relative_to(folder).parts:
            yield Member(path.relative_to(folder).as_posix(), path.stat().st_size, _opener(path))


def file_member(file: Path, path: str) -> Member:
    """Returns a single file as a member with that path."""
    return Member(path, file.stat().st_size, _opener(file))


def _opener(path: Path) -> Callable[[], IO[bytes]]:
    return lambda: path.open("rb")


def _tar_members(place: Path, commit: str | None) -> Iterator[Member]:
    with _opened(place, unpacked=True) as stream:
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for info in archive:
                _check_commit(archive.pax_headers.get("comment", ""), commit, place)
                if info.isfile():
                    yield Member(info.name, info.size, _tar_opener(archive, info))
        while stream.read(_COPY_BYTES):  # the checksum of a gzip stream is at its end
            pass


def _tar_opener(archive: tarfile.TarFile, info: tarfile.TarInfo) -> Callable[[], IO[bytes]]:
    def opened() -> IO[bytes]:
        stream = archive.extractfile(info)
        assert stream is not None
        return stream

    return opened


def _zip_members(place: Path, commit: str | None) -> Iterator[Member]:
    with zipfile.ZipFile(place) as archive:
        _check_commit(archive.comment.decode("ascii", "replace"), commit, place)
        for info in archive.infolist():
            kind = info.external_attr >> 28
            if not info.is_dir() and kind in (0, 8):
                yield Member(info.filename, info.file_size, _zip_opener(archive, info))


def _zip_opener(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Callable[[], IO[bytes]]:
    return lambda: archive.open(info)


def _check_commit(named: str, commit: str | None, place: Path) -> None:
    """Checks the commit that `git archive` stores in an archive."""
    if commit and re.fullmatch(r"[0-9a-f]{40}", named) and named != commit:
        raise WrongContentError(f"{place}: is an archive of commit {named}, expected {commit}")


def git_blob_id(file: Path) -> str:
    """Returns git's id of a file's content: SHA-1 of `blob SIZE`, a zero byte and the content."""
    digest = hashlib.sha1(f"blob {file.stat().st_size}\0".encode(), usedforsecurity=False)
    with file.open("rb") as stream:
        while chunk := stream.read(_COPY_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _join(files: Sequence[Path], target: Path) -> None:
    """Concatenates files, each with a final line break; decompresses gzip unless `target` is `.gz`.

    A single file that needs no change is moved.
    """
    keeps_gzip = target.suffix == ".gz"
    if len(files) == 1 and (keeps_gzip or not _is_gzip(files[0])):
        files[0].replace(target)
        return
    with target.open("wb") as write:
        for file in files:
            last = b""
            with _opened(file, unpacked=not keeps_gzip) as read:
                while chunk := read.read(_COPY_BYTES):
                    write.write(chunk)
                    last = chunk[-1:]
            if last not in (b"", b"\n") and not keeps_gzip:
                write.write(b"\n")


@contextlib.contextmanager
def _opened(file: Path, *, unpacked: bool) -> Iterator[IO[bytes]]:
    with file.open("rb") as read:
        if unpacked and _is_gzip(file):
            with gzip.GzipFile(fileobj=read) as plain:
                yield plain  # type: ignore[misc]
        else:
            yield read


def _is_gzip(file: Path) -> bool:
    with file.open("rb") as read:
        return read.read(2) == _GZIP


def _pattern(text: str) -> re.Pattern[str]:
    """Compiles a pattern of paths: `**` matches anything, `*` anything but a slash."""
    words = re.split(r"(\*\*|\*)", text)
    marks = {"**": ".*", "*": "[^/]*"}
    return re.compile("".join(marks.get(word, re.escape(word)) for word in words))


def _head(text: str) -> str:
    """Returns the leading folders of a pattern without a `*`, with `/` at the end."""
    return text.split("*")[0].rpartition("/")[0] + "/"
