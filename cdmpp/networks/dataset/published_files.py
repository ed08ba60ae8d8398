"""Where the graphs and labels of a published data set are: folders or zip archives."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import TracebackType

from cdmpp.errors import DataError

GRAPH_ENDINGS = (".pkl", ".pickle", ".json")
LABEL_ENDINGS = (".txt",)
#: Largest file that is read of an archive.
MAX_FILE_BYTES = 256 << 20
_LAYOUT = "expected `cg` and `label` (folders or .zip), or one folder with both kinds of files"


@dataclass(frozen=True)
class PublishedFile:
    """One file, in a folder or an archive.

    Attributes:
        where: what errors call it.
        path: the file, or the archive that holds it.
        member: its name in the archive; None = a file of its own.
    """

    where: str
    path: Path
    member: str | None = None


class PublishedFiles:
    """The files of a data set by their common name; close it (`with`) to close archives.

    Attributes:
        graphs: name -> graph file; label files have the same names.
        labels: name -> label file.
    """

    def __init__(self, folder: Path) -> None:
        """Finds the files.

        Raises:
            DataError: the folder is missing or holds no graphs, or an archive is damaged.
        """
        folder = Path(folder)
        self._stack = ExitStack()
        self._archives: dict[Path, zipfile.ZipFile] = {}
        if not folder.is_dir():
            raise DataError(f"{folder}: no such folder; {_LAYOUT}")
        self.graphs = self._by_name(folder, "cg", GRAPH_ENDINGS)
        self.labels = self._by_name(folder, "label", LABEL_ENDINGS)
        if not self.graphs:
            raise DataError(f"{folder}: no graph files ({', '.join(GRAPH_ENDINGS)}); {_LAYOUT}")

    def __enter__(self) -> PublishedFiles:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def read(self, file: PublishedFile) -> bytes:
        """Returns a file's content.

        Raises:
            DataError: it cannot be read, is damaged or far too large.
        """
        try:
            if file.member is None:
                if file.path.stat().st_size > MAX_FILE_BYTES:
                    raise DataError(f"{file.where}: larger than {MAX_FILE_BYTES} bytes")
                return file.path.read_bytes()
            archive = self._archives[file.path]
            if archive.getinfo(file.member).file_size > MAX_FILE_BYTES:
                raise DataError(f"{file.where}: larger than {MAX_FILE_BYTES} bytes")
            return archive.read(file.member)
        except (
            OSError,
            zipfile.BadZipFile,
            zlib.error,
            RuntimeError,
            NotImplementedError,
        ) as error:
            raise DataError(f"{file.where}: cannot read ({error}); fetch it again") from None

    def _by_name(
        self, folder: Path, part: str, endings: tuple[str, ...]
    ) -> dict[str, PublishedFile]:
        found: dict[str, PublishedFile] = {}
        for file, name in self._files(folder, part):
            path = PurePosixPath(name)
            is_wanted = path.suffix.lower() in endings and not path.name.startswith(".")
            if not is_wanted or "__MACOSX" in path.parts:
                continue
            if path.stem in found:
                raise DataError(
                    f"{file.where}: a second file called {path.stem}, the first is "
                    f"{found[path.stem].where}; expected one"
                )
            found[path.stem] = file
        return dict(sorted(found.items()))

    def _files(self, folder: Path, part: str) -> Iterator[tuple[PublishedFile, str]]:
        archive_path = folder / f"{part}.zip"
        if (folder / part).is_dir():
            root = folder / part
        elif archive_path.is_file():
            try:
                archive = self._stack.enter_context(zipfile.ZipFile(archive_path))
            except (OSError, zipfile.BadZipFile) as error:
                raise DataError(
                    f"{archive_path}: not a readable zip archive ({error}); fetch it again"
                ) from None
            self._archives[archive_path] = archive
            for name in sorted(archive.namelist()):
                yield PublishedFile(f"{archive_path}:{name}", archive_path, name), name
            return
        else:
            root = folder
        for path in sorted(root.rglob("*") if root != folder else root.iterdir()):
            if path.is_file():
                yield PublishedFile(str(path), path), path.name
