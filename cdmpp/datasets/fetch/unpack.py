"""Files of a source, taken out of archives, folders and single files by pattern, and joined."""

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
#: Files that a source may have: more are no measurement records.
_MOST_FILES = 500_000
#: What reading a damaged archive raises, or one that asks for a password.
_DAMAGES = (
    tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, gzip.BadGzipFile, RuntimeError,
)  # fmt: skip
_GZIP = b"\x1f\x8b"


class WrongContentError(DataError):
    """What was downloaded is damaged, or not what the source should be."""


@dataclass(frozen=True)
class Member:
    """A file of a source: its path there, its size and what opens it."""

    path: str
    size: int
    open: Callable[[], IO[bytes]]


class Taker:
    """Takes the files that the parts of a source name, and makes the dataset's files of them.

    Args:
        folder: of the dataset; what is taken and not yet joined lies below its `.taken`.
    """

    def __init__(self, source: PublicSource, folder: Path) -> None:
        self.source = source
        self.folder = folder
        self._taken = folder / ".taken"
        self._patterns = [(_pattern(part.files), part) for part in source.parts]
        self._bytes = self._files = 0
        self._found: dict[SourcePart, dict[str, Path]] = {part: {} for part in source.parts}

    def take(self, members: Iterator[Member], *, strip: int = 0) -> None:
        """Copies what is named out of an archive or folder.

        Args:
            strip: folders at the head of every path that do not count.

        Raises:
            WrongContentError: more bytes than the registry allows, a path that leads out of the
                folder, a file whose git id is another one, or what is there cannot be read.
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
        """Joins what was taken into the files of the dataset.

        Raises:
            WrongContentError: nothing was found, of all or of a part that is not optional, or a
                gzipped file is damaged.
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
    """Whether any of the members is what a part of the source names."""
    patterns = [_pattern(part.files) for part in source.parts]
    return any(pattern.fullmatch(member.path) for member in members for pattern in patterns)


def members_of(place: Path, *, commit: str | None = None) -> Iterator[Member]:
    """Yields the files of a folder, tar or zip; links and devices are left out.

    Args:
        commit: of the repository that an archive of it must name, if it names one.

    Raises:
        WrongContentError: damaged, unreadable, or of another commit.
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
        while stream.read(_COPY_BYTES):  # to the end, where the checksum of the gzip stream is
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
    """Checks the commit that `git archive` writes into what it makes."""
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
    """Writes files one after the other, every one ending with its line; gzipped ones unpacked,
    unless the target is. A file that is as it should be is moved.
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
    """Returns a pattern of paths: `**` is anything, `*` anything but a slash."""
    words = re.split(r"(\*\*|\*)", text)
    marks = {"**": ".*", "*": "[^/]*"}
    return re.compile("".join(marks.get(word, re.escape(word)) for word in words))


def _head(text: str) -> str:
    """Returns the folders that a pattern names without a `*`, with `/` at the end."""
    return text.split("*")[0].rpartition("/")[0] + "/"
