"""Files that were sent to the server, kept under their digests as long as there is room."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

from cdmpp.errors import UsageError
from cdmpp.files.atomic import write_bytes


class Uploads:
    """Files in a folder, named by their content. Threads may share one.

    Args:
        folder: of its own; whoever made it removes it.
        most_bytes: of all files; the ones that nobody asked for the longest go first.
        suffix: of their names.
    """

    def __init__(self, folder: Path, most_bytes: int, *, suffix: str) -> None:
        self._most_bytes = most_bytes
        self._suffix = suffix
        self._folder = folder
        self._sizes: dict[str, int] = {}  # the latest last
        self._lock = threading.Lock()

    def keep(self, data: bytes) -> str:
        """Keeps a file and returns its digest.

        Raises:
            DataError: it cannot be written.
        """
        key = hashlib.sha256(data).hexdigest()
        path = self._path(key)
        if not path.exists():
            write_bytes(path, data)
        with self._lock:
            self._sizes.pop(key, None)
            self._sizes[key] = len(data)
            while sum(self._sizes.values()) > self._most_bytes and len(self._sizes) > 1:
                oldest = next(iter(self._sizes))
                del self._sizes[oldest]
                self._path(oldest).unlink(missing_ok=True)
        return key

    def find(self, key: str) -> Path:
        """Returns the file with a digest.

        Raises:
            UsageError: it is not here, or not any more.
        """
        with self._lock:
            if key not in self._sizes:
                raise UsageError(
                    "the server does not have this file, or not any more; send it again"
                )
            self._sizes[key] = self._sizes.pop(key)
            return self._path(key)

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}{self._suffix}"
