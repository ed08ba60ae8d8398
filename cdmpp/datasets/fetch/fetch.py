"""Fetches a source: downloads or copies it, checks and unpacks it, and stores it atomically."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from cdmpp.datasets.autotvm.logs import find_logs, log_device, read_autotvm_log
from cdmpp.datasets.fetch.registry import Download, PublicSource
from cdmpp.datasets.fetch.resume import (
    FetchProgress,
    OnBytes,
    OnFetch,
    Patience,
    ResumingDownloader,
)
from cdmpp.datasets.fetch.unpack import (
    Taker,
    WrongContentError,
    file_member,
    has_files_of,
    members_of,
)
from cdmpp.datasets.fetched import (
    FETCHED_FILE,
    Fetched,
    FetchedFile,
    fetched_folder,
    read_fetched,
    write_fetched,
)
from cdmpp.datasets.metaschedule.databases import check_database
from cdmpp.datasets.read_report import ReadReport
from cdmpp.datasets.tenset.folder import find_device_files
from cdmpp.errors import DataError
from cdmpp.files.atomic import make_folder, remove_abandoned, replaced_folder, sha256_file
from cdmpp.files.journal import folder_lock


@dataclass(frozen=True)
class FetchResult:
    """Result of a fetch.

    Attributes:
        folder: folder of the records.
        is_new: whether the source was fetched now; False = it was there already, unchanged.
    """

    folder: Path
    fetched: Fetched
    is_new: bool


def fetch(
    source: PublicSource,
    cache: Path,
    *,
    origin: str | None = None,
    on_progress: OnFetch = lambda progress: None,
    patience: Patience | None = None,
) -> FetchResult:
    """Fetches a source into `CACHE/fetched/NAME`, which is written atomically.

    An interrupted fetch is continued. A source that exists already is checked against the digests
    of its first fetch, and fetched again if it is damaged.

    Args:
        origin: location to use instead of the source's URLs: the URL of a mirror, a folder (a
            mirror, a clone, manually unpacked files) or a manually downloaded file.
        patience: timeouts and retries; None = the defaults.

    Raises:
        UsageError: another process is fetching the source.
        DataError: the source cannot be reached, has wrong content, or cannot be written.
    """
    folder = fetched_folder(cache, source.name)
    work = make_folder(folder.with_name(f".{source.name}"), what="fetched records")
    what = f"{source.name} is being fetched by another process"
    with folder_lock(work, what=what, hint="wait for it"):
        for left in ("tmp", "old"):
            remove_abandoned(folder.parent, f"{source.name}.*.{left}")
        before = read_fetched(folder)
        if before is not None and before.commit != source.commit:
            before = None  # fetched with an earlier registry, which pinned another commit
        if before is not None and _is_as_recorded(folder, before):
            return FetchResult(folder, before, is_new=False)
        places = _places(source, work, origin, on_progress, patience)
        on_progress(FetchProgress(f"unpacking {source.name}", 0, None, None))
        try:
            fetched = _assemble(source, folder, places, origin, before)
        except WrongContentError:
            _clear(work)
            raise
        _clear(work)
    return FetchResult(folder, fetched, is_new=True)


def _assemble(
    source: PublicSource,
    folder: Path,
    places: list[_Place],
    origin: str | None,
    before: Fetched | None,
) -> Fetched:
    try:
        with replaced_folder(folder, what="fetched records") as new:
            taker = Taker(source, new)
            for place in places:
                taker.take(place.members(source.commit), strip=place.strip)
            taker.finish()
            check_content(source, new)
            fetched = _describe(source, new, places, origin)
            if before is not None:
                _check_unchanged(fetched, before)
            write_fetched(new, fetched)
    except OSError as error:
        raise DataError(
            f"{folder}: cannot write the fetched records ({error.strerror or error}); free disk "
            "space and rerun the same command: nothing is downloaded twice"
        ) from None
    return fetched


@dataclass(frozen=True)
class _Place:
    """A folder, archive or file with files of a source.

    Attributes:
        path: its path in a mirror; empty for a folder of the source's files.
        strip: number of leading folders to drop from the paths of an archive.
    """

    file: Path
    path: str
    strip: int

    def members(self, commit: str | None) -> Iterator[Any]:
        if self.file.is_dir() or Download(self.path, "").is_archive:
            return members_of(self.file, commit=commit)
        return iter([file_member(self.file, self.path)])

    def described(self) -> FetchedFile | None:
        if self.file.is_dir():
            return None
        return FetchedFile(self.path, self.file.stat().st_size, sha256_file(self.file))


def _places(
    source: PublicSource,
    work: Path,
    origin: str | None,
    on_progress: OnFetch,
    patience: Patience | None,
) -> list[_Place]:
    is_url = origin is not None and origin.startswith(("http://", "https://"))
    if origin is not None and not is_url:
        return _local_places(source, Path(origin))
    places = []
    for number, item in enumerate(source.downloads, start=1):
        count = f" ({number} of {len(source.downloads)})" if len(source.downloads) > 1 else ""
        shown = _shown(f"fetching {source.name}{count}", on_progress)
        try:
            file = _download(source, item, work, origin, shown, patience)
        except DataError as error:
            page = f" (its page: {source.by_hand})" if source.by_hand else ""
            raise DataError(f"{error}{page}") from None
        places.append(_Place(file, item.path, source.strip if item.is_archive else 0))
    return places


def _shown(what: str, on_progress: OnFetch) -> OnBytes:
    """Returns a callback that shows a download, with the rate since the first bytes of this run."""
    first: list[tuple[float, int]] = []

    def on_bytes(done: int, total: int | None) -> None:
        now = time.monotonic()
        first.append((now, done))
        del first[1:]
        passed = now - first[0][0]
        rate = max(0, done - first[0][1]) / passed if passed > 0.5 else None
        on_progress(FetchProgress(what, done, total, rate))

    return on_bytes


def _download(
    source: PublicSource,
    item: Download,
    work: Path,
    mirror: str | None,
    on_bytes: OnBytes,
    patience: Patience | None,
) -> Path:
    """Downloads a file; checks its size and checksum against the registry."""
    import pooch

    url = item.url if mirror is None else f"{mirror.rstrip('/')}/{quote(item.path)}"
    part = work / f"{item.path}.part"
    loader = ResumingDownloader(
        part,
        most_bytes=item.bytes or source.most_bytes,
        on_bytes=on_bytes,
        patience=patience,
    )
    pooch.get_logger().setLevel("ERROR")
    try:
        found = pooch.retrieve(url, item.checksum, fname=item.path, path=work, downloader=loader)
    except ValueError as error:  # pooch raises this for a wrong checksum, and removes the file
        text = " ".join(str(error).split()).partition(" Deleted download")[0]
        raise DataError(
            f"{url}: wrong checksum: {text} The file was removed; rerun the same command, or "
            "give another --from"
        ) from None
    except OSError as error:
        raise DataError(
            f"{work}: cannot write ({error.strerror or error}); free disk space or choose "
            "another --cache, and rerun the same command"
        ) from None
    file = Path(found)
    _check_size(file, item, url)
    return file


def _check_size(file: Path, item: Download, where: str) -> None:
    size = file.stat().st_size
    if item.bytes is not None and size != item.bytes:
        file.unlink()
        raise DataError(f"{where}: has {size} bytes, expected {item.bytes}; it was removed")


def _local_places(source: PublicSource, origin: Path) -> list[_Place]:
    """Returns the files of a source in a local folder, or the local file."""
    if origin.is_file():
        if len(source.downloads) != 1:
            names = ", ".join(item.path for item in source.downloads)
            raise DataError(f"{origin}: is a file, expected a folder with {names}")
        files = [origin]
    elif origin.is_dir():
        files = [_in_mirror(origin, item) for item in source.downloads]
        if not all(file.is_file() for file in files):
            return [_Place(_root(source, origin), "", 0)]
    else:
        raise DataError(f"{origin}: no such file or folder; expected a mirror or a download")
    for item, file in zip(source.downloads, files, strict=True):
        _check_local(item, file)
    return [
        _Place(file, item.path, source.strip if item.is_archive else 0)
        for item, file in zip(source.downloads, files, strict=True)
    ]


def _in_mirror(folder: Path, item: Download) -> Path:
    """Returns a file of a mirror: at its path, or directly in the folder."""
    place = folder / item.path
    return place if place.is_file() else folder / item.path.rpartition("/")[2]


def _root(source: PublicSource, folder: Path) -> Path:
    """Returns the root folder of a source's files: `folder`, or its first sub-folder with files of
    the source.
    """
    for place in (folder, *sorted(path for path in folder.iterdir() if path.is_dir())):
        if has_files_of(source, members_of(place)):
            return place
    names = ", ".join(item.path for item in source.downloads)
    patterns = ", ".join(part.files for part in source.parts)
    raise DataError(
        f"{folder}: has no files of {source.name}; expected {names}, or the unpacked files "
        f"{patterns}"
    )


def _check_local(item: Download, file: Path) -> None:
    if item.bytes is not None and file.stat().st_size != item.bytes:
        raise DataError(f"{file}: has {file.stat().st_size} bytes, expected {item.bytes}")
    if item.checksum is not None:
        import pooch

        kind, _, expected = item.checksum.partition(":")
        got = pooch.file_hash(str(file), alg=kind)
        if got != expected:
            raise DataError(
                f"{file}: wrong checksum: its {kind} is {got}, expected {expected}; download it "
                "again"
            )


def check_content(source: PublicSource, folder: Path) -> None:
    """Checks that the reader for the source's kind finds its records.

    Raises:
        WrongContentError: the reader finds no records in a log, of a device, or at all.
    """
    if source.kind == "autotvm":
        for log in find_logs(folder):
            report = ReadReport()
            if next(read_autotvm_log(log, report), None) is None:
                raise WrongContentError(
                    f"{source.name}: no AutoTVM record in {log.name} ({report.skipped_total} of "
                    f"{report.lines} lines skipped); the files do not match those of "
                    f"{source.homepage}"
                )
    try:
        if source.kind == "tenset":
            for device in source.devices:
                find_device_files(folder, device)
        elif source.kind == "metaschedule":
            check_database(folder)
    except DataError as error:
        raise WrongContentError(f"{source.name} does not match its kind: {error}") from None


def _describe(
    source: PublicSource, folder: Path, places: list[_Place], origin: str | None
) -> Fetched:
    files = tuple(
        FetchedFile(path.relative_to(folder).as_posix(), path.stat().st_size, sha256_file(path))
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    )
    downloads = tuple(found for place in places if (found := place.described()) is not None)
    return Fetched(
        name=source.name,
        kind=source.kind,
        devices=_devices(source, folder),
        licence=source.licence,
        citation=source.citation,
        source=origin or source.homepage,
        commit=source.commit,
        files=files,
        downloads=downloads,
        fetched_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _devices(source: PublicSource, folder: Path) -> tuple[str, ...]:
    """Returns the labels of the source's devices with records in the folder."""
    if source.kind != "autotvm":
        return source.devices
    there = {log_device(log) for log in find_logs(folder)}
    return tuple(label for label in source.devices if label in there)


def _is_as_recorded(folder: Path, fetched: Fetched) -> bool:
    return all(
        (path := folder / file.path).is_file()
        and path.stat().st_size == file.bytes
        and sha256_file(path) == file.sha256
        for file in fetched.files
    )


def _check_unchanged(now: Fetched, before: Fetched) -> None:
    """Checks that a source has not changed since it was first fetched."""
    recorded = {file.path: file.sha256 for file in before.files}
    for file in now.files:
        if recorded.get(file.path, file.sha256) != file.sha256:
            raise WrongContentError(
                f"{now.name}: {file.path} has sha256 {file.sha256}, and had "
                f"{recorded[file.path]} when it was first fetched ({before.fetched_at}); the "
                f"source has changed. To use the new version, remove {FETCHED_FILE} from its "
                "folder"
            )


def _clear(work: Path) -> None:
    """Removes the downloads; keeps the lock file of the folder."""
    for path in work.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != ".lock":
            path.unlink(missing_ok=True)
