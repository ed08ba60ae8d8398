"""Reading files of profilers: text with one clear error for everything that can go wrong."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from cdmpp.errors import DataError

_GZIP = b"\x1f\x8b"
#: Most bytes of a table of text: tables are small, timelines are not read this way.
_MOST_TABLE_BYTES = 1 << 30


@contextmanager
def open_binary(path: Path, *, expected: str = "a profile, trace or graph") -> Iterator[IO[bytes]]:
    """Opens a file, unpacked if it is gzipped.

    Args:
        expected: what it is to be, for the message where there is none.

    Raises:
        DataError: missing, a folder, unreadable, or a gzip stream that ends too early.
    """
    try:
        with path.open("rb") as plain:
            is_gzip = plain.read(2) == _GZIP
            plain.seek(0)
            if not is_gzip:
                yield plain
                return
            with gzip.GzipFile(fileobj=plain) as unpacked:
                yield unpacked  # type: ignore[misc]
    except EOFError:
        raise DataError(
            f"{path}: the gzip stream ends too early, so the file is truncated; copy it again"
        ) from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: damaged gzip stream ({error}); copy the file again") from None
    except IsADirectoryError:
        raise DataError(f"{path}: is a folder, expected a file; name one in it") from None
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; expected {expected}") from None
    except OSError as error:
        raise DataError(f"{path}: cannot read ({error.strerror or error})") from None


def read_text(path: Path, *, expected: str = "a profile, trace or graph") -> str:
    """Returns the text of a file.

    Args:
        expected: as in `open_binary`.

    Raises:
        DataError: it cannot be read, or is larger than tables are.
    """
    with open_binary(path, expected=expected) as stream:
        content = stream.read(_MOST_TABLE_BYTES + 1)
    if len(content) > _MOST_TABLE_BYTES:
        raise DataError(f"{path}: more than 1 GiB of text; expected a table of a profiler")
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return content.decode("utf-16", errors="replace")
    return content.decode("utf-8-sig", errors="replace")


def csv_rows(text: str) -> list[list[str]]:
    """Returns the rows of a CSV text; empty lines are left out."""
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        return [
            [cell.strip() for cell in row] for row in reader if any(cell.strip() for cell in row)
        ]
    except csv.Error as error:
        raise DataError(f"not a CSV table ({error})") from None


def bad_line(path: Path, number: int, what: object, expected: str) -> DataError:
    """Returns the error of a line that is not as it should be.

    Args:
        number: of the line, from 1.
    """
    return DataError(
        f"{path}: line {number}: cannot read {what}; expected {expected}; the file is truncated or "
        "of another format"
    )
