"""Uploaded files, stored by digest up to a total size."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

from cdmpp.errors import NotFoundError
from cdmpp.files.atomic import write_bytes


class Uploads:
    """Files in a folder, named by their digests. Threads may share one.

    Args:
        folder: a folder only for these files, removed by its creator.
        most_bytes: maximum total size; the least recently used files are removed first.
    """

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self._folder = folder
        self._most_bytes = most_bytes
        self._files: dict[str, tuple[Path, int]] = {}  # digest -> (file, bytes), latest last
        self._lock = threading.Lock()

    def keep(self, data: bytes, suffix: str) -> str:
        """Stores a file and returns its digest.

        Args:
            suffix: suffix of the file name.

        Raises:
            DataError: the file cannot be written.
        """
        key = hashlib.sha256(data).hexdigest()
        path = self._folder / f"{key}{suffix}"
        with self._lock:
            if not path.exists():
                write_bytes(path, data)
            former, _ = self._files.pop(key, (path, 0))
            if former != path:
                former.unlink(missing_ok=True)
            self._files[key] = path, len(data)
            while sum(size for _, size in self._files.values()) > self._most_bytes:
                oldest, (path, _) = next(iter(self._files.items()))
                if oldest == key:
                    break
                del self._files[oldest]
                path.unlink(missing_ok=True)
        return key

    def find(self, key: str) -> Path:
        """Returns the file with a digest.

        Raises:
            NotFoundError: the file was never stored, or has been removed.
        """
        with self._lock:
            if key not in self._files:
                raise NotFoundError("the server does not have this file (any more); send it again")
            self._files[key] = self._files.pop(key)
            return self._files[key][0]
