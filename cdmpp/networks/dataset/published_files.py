"""Files of a published data set in folders or zip archives."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from cdmpp.errors import DataError

GRAPH_ENDINGS = (".pkl", ".pickle", ".json")
LABEL_ENDINGS = (".txt",)
#: Maximum size of a file.
MAX_FILE_BYTES = 256 << 20
_LAYOUT = "expected `cg` and `label` (folders or .zip), or one folder with both kinds of files"
_DAMAGED = (OSError, zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError)

#: A file in a folder or an archive.
PublishedFile = Path | zipfile.Path


@dataclass(frozen=True)
class PublishedFiles:
    """Files of a data set by name without suffix, which is the same for a graph and its label."""

    graphs: dict[str, PublishedFile]
    labels: dict[str, PublishedFile]


@contextmanager
def published_files(folder: Path) -> Iterator[PublishedFiles]:
    """Yields the files of a data set, which are readable inside the context.

    Raises:
        DataError: the folder is missing or has no graphs, or an archive is damaged.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; {_LAYOUT}")
    with ExitStack() as stack:
        graphs = _by_name(_files(folder, "cg", stack), GRAPH_ENDINGS)
        labels = _by_name(_files(folder, "label", stack), LABEL_ENDINGS)
        if not graphs:
            raise DataError(f"{folder}: no graph files ({', '.join(GRAPH_ENDINGS)}); {_LAYOUT}")
        yield PublishedFiles(graphs, labels)


def read_file(file: PublishedFile) -> bytes:
    """Returns a file's content.

    Raises:
        DataError: the file cannot be read, is damaged or larger than `MAX_FILE_BYTES`.
    """
    try:
        if isinstance(file, Path):
            size = file.stat().st_size
        else:
            size = file.root.getinfo(file.at).file_size  # type: ignore[union-attr]
        if size > MAX_FILE_BYTES:
            raise DataError(f"{file}: larger than {MAX_FILE_BYTES} bytes")
        return file.read_bytes()
    except _DAMAGED as error:
        raise DataError(f"{file}: cannot read ({error}); fetch it again") from None


def _by_name(
    files: Iterator[tuple[PublishedFile, PurePosixPath]], endings: tuple[str, ...]
) -> dict[str, PublishedFile]:
    found: dict[str, PublishedFile] = {}
    for file, path in files:
        is_wanted = path.suffix.lower() in endings and not path.name.startswith(".")
        if not is_wanted or "__MACOSX" in path.parts:
            continue
        if path.stem in found:
            raise DataError(
                f"{file}: a second file called {path.stem}, the first is {found[path.stem]}; "
                "expected one"
            )
        found[path.stem] = file
    return dict(sorted(found.items()))


def _files(
    folder: Path, part: str, stack: ExitStack
) -> Iterator[tuple[PublishedFile, PurePosixPath]]:
    """Yields every file of a part with its path."""
    archive_path, own = folder / f"{part}.zip", folder / part
    if archive_path.is_file() and not own.is_dir():
        try:
            archive = stack.enter_context(zipfile.ZipFile(archive_path))
        except (OSError, zipfile.BadZipFile) as error:
            raise DataError(
                f"{archive_path}: not a readable zip archive ({error}); fetch it again"
            ) from None
        for name in sorted(archive.namelist()):
            yield zipfile.Path(archive, name), PurePosixPath(name)
        return
    for path in sorted(own.rglob("*") if own.is_dir() else folder.iterdir()):
        if path.is_file():
            yield path, PurePosixPath(path.name)
