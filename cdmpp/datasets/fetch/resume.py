"""Resumable downloads: a downloader for `pooch`."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdmpp.errors import DataError
from cdmpp.files.atomic import write_json
from cdmpp.files.journal import NO_SPACE
from cdmpp.files.json_text import parse_json

#: Called with the number of received bytes and the size of the file (None = unknown).
OnBytes = Callable[[int, int | None], None]

#: Size of a chunk, which is lost if the connection breaks.
_CHUNK_BYTES = 1 << 16
#: Status codes of temporary errors.
_PASSING = (408, 425, 429, 500, 502, 503, 504)
_LONGEST_WAIT_S = 30.0


@dataclass(frozen=True)
class FetchProgress:
    """Progress of a fetch.

    Attributes:
        what: description of the current step.
        done: received bytes.
        total: total bytes; None = unknown.
        bytes_per_s: rate in this run; None = not known yet.
    """

    what: str
    done: int
    total: int | None
    bytes_per_s: float | None

    @property
    def seconds_left(self) -> float | None:
        """Remaining time at this rate, seconds; None = unknown."""
        if not self.bytes_per_s or self.total is None:
            return None
        return (self.total - self.done) / self.bytes_per_s


OnFetch = Callable[[FetchProgress], None]


@dataclass(frozen=True)
class Patience:
    """Timeouts and retries of a download.

    Attributes:
        connect_s: timeout of the connection, seconds.
        read_s: timeout until the next bytes, seconds; the total time is not limited.
        failures: number of consecutive failures without a received byte that ends the download.
        unreachable: as `failures`, for a host that cannot be connected to.
        wait_s: wait before the second attempt, seconds; doubled for each further attempt.
    """

    connect_s: float = 15.0
    read_s: float = 60.0
    failures: int = 5
    unreachable: int = 2
    wait_s: float = 1.0


class ResumingDownloader:
    """A downloader for `pooch.retrieve` that stores received bytes in `PART` and resumes.

    A download is resumed only if the ETag or date of the file, stored in `PART.json`, is unchanged
    on the server. A server that cannot resume sends the whole file again.

    Args:
        part: file for the received bytes until the download is complete.
        most_bytes: maximum size of the file.
        on_bytes: called for every chunk.
        patience: timeouts and retries; None = the defaults.
    """

    def __init__(
        self,
        part: Path,
        *,
        most_bytes: int,
        on_bytes: OnBytes = lambda done, total: None,
        patience: Patience | None = None,
    ) -> None:
        self.part = part
        self.most_bytes = most_bytes
        self.on_bytes = on_bytes
        self.patience = patience or Patience()
        self._about = part.with_name(f"{part.name}.json")

    def __call__(self, url: str, output_file: Any, pooch: Any) -> None:
        """Downloads `url` to `output_file`.

        Raises:
            DataError: the file is not found, the server fails repeatedly, or the disk is full.
        """
        self.part.parent.mkdir(parents=True, exist_ok=True)
        failures, most_arrived = 0, self._size()
        while True:
            try:
                if self._attempt(url):
                    break
                error = _PassingError("the connection was cut")
            except _PassingError as raised:
                error = raised
            failures = 1 if self._size() > most_arrived else failures + 1
            most_arrived = max(most_arrived, self._size())
            most = self.patience.unreachable if error.is_unreachable else self.patience.failures
            if failures >= most:
                raise DataError(
                    f"{url}: {error.text}, {failures} times in a row. The received part is kept: "
                    "rerun the same command when the server is reachable, or download the file "
                    "manually and give it with --from"
                )
            delay_s = self.patience.wait_s * 2.0 ** (failures - 1) * random.uniform(0.8, 1.2)
            time.sleep(min(_LONGEST_WAIT_S, max(delay_s, error.wait_s)))
        os.replace(self.part, output_file)
        self._about.unlink(missing_ok=True)

    def _size(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _attempt(self, url: str) -> bool:
        """Makes one request; returns whether the file is complete.

        Raises:
            _PassingError: a temporary failure.
            DataError: a permanent failure.
        """
        import requests

        validator = self._remembered(url)
        start = self._size() if validator else 0
        headers = {"Accept-Encoding": "identity"}
        if start and validator:
            headers |= {"Range": f"bytes={start}-", "If-Range": validator}
        timeouts = (self.patience.connect_s, self.patience.read_s)
        try:
            with requests.get(url, headers=headers, stream=True, timeout=timeouts) as answer:
                return self._take(url, answer, start)
        except requests.exceptions.Timeout:
            raise _PassingError("timeout") from None
        except requests.exceptions.ChunkedEncodingError as error:
            raise _PassingError(_reason(error)) from None
        except requests.exceptions.ConnectionError as error:
            is_unreachable = "NewConnectionError" in repr(error) or "NameRes" in repr(error)
            raise _PassingError(_reason(error), is_unreachable=is_unreachable) from None
        except requests.exceptions.RequestException as error:
            raise DataError(f"{url}: cannot be fetched ({' '.join(str(error).split())})") from None

    def _take(self, url: str, answer: Any, start: int) -> bool:
        """Handles the response to a request for the bytes from `start` on."""
        if answer.status_code == 416 and start:
            if answer.headers.get("Content-Range", "") == f"bytes */{start}":
                return True  # the part was complete already
            self.part.unlink()
            raise _PassingError("the file on the server has changed")
        if answer.status_code in _PASSING:
            raise _PassingError(f"the server returned {answer.status_code} {answer.reason}", answer)
        if answer.status_code not in (200, 206):
            raise DataError(
                f"{url}: the server returned {answer.status_code} {answer.reason}, expected the "
                "file. If it has moved, download it manually and give it with --from"
            )
        if "text/html" in answer.headers.get("Content-Type", ""):
            raise DataError(
                f"{url}: the host answered with a web page instead of the file (it may ask for a "
                "confirmation); download it in a browser and give it with --from FILE"
            )
        if answer.status_code == 200:
            start = 0
        elif not answer.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
            raise DataError(f"{url}: the server resumed at another offset than requested")
        length = answer.headers.get("Content-Length", "")
        is_packed = answer.headers.get("Content-Encoding", "identity") != "identity"
        total = start + int(length) if length.isdecimal() and not is_packed else None
        self._check_size(url, total or 0)
        validator = "" if is_packed else _validator(answer.headers)
        write_json(self._about, {"url": url, "validator": validator})
        return self._write(url, answer, start, total)

    def _write(self, url: str, answer: Any, start: int, total: int | None) -> bool:
        done = start
        self.on_bytes(done, total)
        with _writing(self.part):
            file = self.part.open("ab" if start else "wb")
        with file:
            for chunk in answer.iter_content(_CHUNK_BYTES):
                with _writing(self.part):
                    file.write(chunk)
                    file.flush()
                done += len(chunk)
                self._check_size(url, done)
                self.on_bytes(done, total)
            with _writing(self.part):
                os.fsync(file.fileno())
        return total is None or done == total

    def _check_size(self, url: str, size: int) -> None:
        if size > self.most_bytes:
            self.part.unlink(missing_ok=True)
            raise DataError(
                f"{url}: more than {self.most_bytes} bytes, the limit of the registry; it was "
                "removed"
            )

    def _remembered(self, url: str) -> str:
        """Returns the stored ETag or date of the partial file; empty = unknown."""
        try:
            about = parse_json(self._about.read_text("utf-8"))
            return str(about["validator"]) if about["url"] == url else ""
        except (OSError, ValueError, KeyError, TypeError):
            return ""


def _validator(headers: Mapping[str, str]) -> str:
    """Returns the strong ETag or else the date in a response; empty if it has neither."""
    tag = headers.get("ETag", "")
    is_strong = tag and not tag.startswith("W/")
    return tag if is_strong else headers.get("Last-Modified", "")


class _PassingError(Exception):
    """A temporary failure.

    Attributes:
        is_unreachable: whether the host could not be connected to.
        wait_s: wait requested by the server (`Retry-After`), seconds; 0 if none.
    """

    def __init__(self, text: str, answer: Any = None, *, is_unreachable: bool = False) -> None:
        super().__init__(text)
        self.text = text
        self.is_unreachable = is_unreachable
        asked = "" if answer is None else answer.headers.get("Retry-After", "")
        self.wait_s = float(asked) if asked.isdecimal() else 0.0


def _reason(error: Exception) -> str:
    """Returns the cause of a failed connection in a few words."""
    text = " ".join(str(error).split())
    for known, words in (
        ("Name or service not known", "the host's name cannot be resolved"),
        ("Temporary failure in name resolution", "the host's name cannot be resolved"),
        ("NameResolutionError", "the host's name cannot be resolved"),
        ("Connection refused", "the connection was refused"),
        ("Network is unreachable", "the network cannot be reached"),
        ("Read timed out", "timeout"),
        ("IncompleteRead", "the connection was cut"),
        ("reset by peer", "the connection was cut"),
        ("certificate", "the host's certificate cannot be checked"),
    ):
        if known in text:
            return words
    return text[:200] or type(error).__name__


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        hint = "free some space" if error.errno in NO_SPACE else "fix this"
        raise DataError(
            f"{path}: cannot write ({error.strerror or error}). The received part is kept: "
            f"{hint} and rerun the same command"
        ) from None
