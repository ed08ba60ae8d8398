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
    """

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self._folder = folder
        self._most_bytes = most_bytes
        self._files: dict[str, tuple[Path, int]] = {}  # digest -> file, bytes; the latest last
        self._lock = threading.Lock()

    def keep(self, data: bytes, suffix: str) -> str:
        """Keeps a file and returns its digest.

        Args:
            suffix: of its name.

        Raises:
            DataError: it cannot be written.
        """
        key = hashlib.sha256(data).hexdigest()
        path = self._folder / f"{key}{suffix}"
        if not path.exists():
            write_bytes(path, data)
        with self._lock:
            self._files.pop(key, None)
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
            UsageError: it is not here, or not any more.
        """
        with self._lock:
            if key not in self._files:
                raise UsageError("the server does not have this file (any more); send it again")
            self._files[key] = self._files.pop(key)
            return self._files[key][0]
