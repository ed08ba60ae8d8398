"""Reads files of profilers and logs, plain or compressed, with one kind of error."""

from __future__ import annotations

import csv
import gzip
import importlib
import io
import lzma
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from cdmpp.errors import DataError, UsageError

#: Suffixes of compressed files.
PACKED_SUFFIXES = (".gz", ".xz", ".zst")

_GZIP, _XZ, _ZSTD = b"\x1f\x8b", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd"
#: Modules that read zstd: the standard library's, its backport, and the older package.
_ZSTD_MODULES = ("compression.zstd", "backports.zstd", "zstandard")
#: Maximum size of a text table in bytes: tables are small, timelines are not read this way.
_MOST_TABLE_BYTES = 1 << 30


def open_unpacked(path: Path) -> IO[bytes]:
    """Opens a file, decompressed if its content is gzip, xz or zstd.

    Raises:
        OSError: the file cannot be opened; reading it raises this or one of `unpack_errors`.
        UsageError: the file is zstd and no installed module reads zstd.
    """
    with path.open("rb") as plain:
        start = plain.read(len(_XZ))
    if start.startswith(_GZIP):
        return cast(IO[bytes], gzip.open(path, "rb"))
    if start.startswith(_XZ):
        return cast(IO[bytes], lzma.open(path, "rb"))
    if start.startswith(_ZSTD):
        return cast(IO[bytes], _zstd(path).open(path, "rb"))
    return path.open("rb")


def unpack_errors() -> tuple[type[Exception], ...]:
    """Returns the errors of a damaged compressed stream."""
    zstd = [sys.modules[name].ZstdError for name in _ZSTD_MODULES if name in sys.modules]
    return EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError, *zstd


def _zstd(path: Path) -> Any:
    for name in _ZSTD_MODULES:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise UsageError(
        f"{path} is packed with zstd, which this Python cannot read; expected plain, gzip or xz. "
        "Run: pip install zstandard, or unpack it: zstd -d FILE"
    )


@contextmanager
def open_binary(path: Path, *, expected: str = "a profile, trace or graph") -> Iterator[IO[bytes]]:
    """Opens a file as `open_unpacked` does, with the project's errors.

    Args:
        expected: description of the file, for the error about a missing file.

    Raises:
        DataError: the file is missing, a folder or unreadable, or its stream is truncated or
            damaged.
        UsageError: as `open_unpacked`.
    """
    try:
        with open_unpacked(path) as stream:
            yield stream
    except EOFError:
        raise DataError(
            f"{path}: the packed stream ends too early, so the file is truncated; copy it again"
        ) from None
    except unpack_errors() as error:
        raise DataError(f"{path}: damaged packed stream ({error}); copy the file again") from None
    except IsADirectoryError:
        raise DataError(f"{path}: is a folder, expected a file; give a file in it") from None
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; expected {expected}") from None
    except OSError as error:
        raise DataError(f"{path}: cannot read ({error.strerror or error})") from None


def read_text(path: Path, *, expected: str = "a profile, trace or graph") -> str:
    """Returns the text of a file.

    Args:
        expected: as in `open_binary`.

    Raises:
        DataError: the file cannot be read, or is larger than 1 GiB.
    """
    with open_binary(path, expected=expected) as stream:
        content = stream.read(_MOST_TABLE_BYTES + 1)
    if len(content) > _MOST_TABLE_BYTES:
        raise DataError(f"{path}: more than 1 GiB of text; expected a table of a profiler")
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return content.decode("utf-16", errors="replace")
    return content.decode("utf-8-sig", errors="replace")


def csv_rows(text: str) -> list[list[str]]:
    """Returns the rows of a CSV text without empty lines.

    Raises:
        DataError: the text is not CSV.
    """
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        return [
            [cell.strip() for cell in row] for row in reader if any(cell.strip() for cell in row)
        ]
    except csv.Error as error:
        raise DataError(f"not a CSV table ({error})") from None


def bad_line(path: Path, number: int, what: object, expected: str) -> DataError:
    """Returns the error for a line that cannot be read.

    Args:
        number: line number, from 1.
    """
    return DataError(
        f"{path}: line {number}: cannot read {what}; expected {expected}; the file is truncated or "
        "of another format"
    )
