"""Atomic writes of files and folders."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cdmpp.errors import DataError, UsageError


def make_folder(path: Path, *, what: str) -> Path:
    """Creates a folder (and its parents) and checks that files can be written into it.

    Raises:
        DataError: the folder cannot be created or written.
    """
    path = Path(path)
    probe = path / f".{os.getpid()}.tmp"
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise _cannot_write(path, what, error.strerror or str(error)) from None
    return path


def check_folder(path: Path, *, what: str) -> None:
    """Checks that `make_folder` can create a folder, without creating it.

    Raises:
        DataError: the nearest existing parent is not a folder or is not writable.
    """
    there = next(place for place in (path, *path.absolute().parents) if place.exists())
    if not there.is_dir():
        raise _cannot_write(path, what, f"{there} is not a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise _cannot_write(path, what, "permission denied")


def _cannot_write(path: Path, what: str, why: str) -> DataError:
    return DataError(
        f"{path}: cannot write the {what} there ({why}); choose a writable folder, or free disk "
        "space"
    )


def check_replaceable(path: Path | None, start: str, *, what: str, option: str) -> None:
    """Checks that a file is new, or that the same command wrote it earlier.

    Args:
        path: the file; None = no file is written.
        start: regular expression for the beginning of such files.
        what: description of such files, for the error text.
        option: option that gave the path, for the error text.

    Raises:
        UsageError: another file exists at `path`.
    """
    if path is None or not path.is_file():
        return
    with path.open("rb") as stream:
        found = stream.read(500).decode("utf-8", "replace")
    if found and not re.match(start, found, re.IGNORECASE):
        raise UsageError(f"{path} exists and is not {what}; give another file: {option} FILE")


def check_replaceable_json(
    path: Path | None, format: str, *, what: str, option: str, key: str = "format"
) -> None:
    """Does `check_replaceable` for a JSON file whose first entry is its format.

    Args:
        format: beginning of the format, the same in all versions.
        key: name of the entry.
    """
    check_replaceable(path, rf'\{{\s*"{key}":\s*"?{format}', what=what, option=option)


def write_atomic(path: Path, write: Callable[[Path], None]) -> None:
    """Writes a file atomically: `write` fills a temporary file, which then replaces `path`.

    Raises:
        DataError: the file cannot be written (read-only folder, full disk, `path` is a folder).
    """
    if path.is_dir():
        raise DataError(f"{path}: cannot write (it is a folder); give the name of a file")
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        with temporary.open("rb") as stream:
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise DataError(f"{path}: cannot write ({error.strerror or error})") from None


def write_text(path: Path, text: str) -> None:
    """Writes a text file (UTF-8) atomically.

    Raises:
        DataError: the file cannot be written.
    """
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Writes one JSON value atomically, keys in the order given.

    Raises:
        DataError: the file cannot be written.
    """
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file atomically.

    Raises:
        DataError: the file cannot be written.
    """

    def write(temporary: Path) -> None:
        temporary.write_bytes(content)

    write_atomic(path, write)


def write_columns(path: Path, columns: Mapping[str, Any], *, packed: bool = False) -> None:
    """Writes columns [N] as a Parquet table; NaN becomes null.

    Args:
        packed: whether to compress as much as possible, for files shipped with the package.

    Raises:
        DataError: the file cannot be written.
    """
    write_column_parts(path, [columns], packed=packed)


def write_column_parts(
    path: Path, parts: Iterable[Mapping[str, Any]], *, packed: bool = False
) -> None:
    """Writes a table as `write_columns` does, from parts; one part at a time is in memory.

    Args:
        parts: at least one; only a single part may be empty.
    """
    import pyarrow as pa
    import pyarrow.parquet as parquet

    how = {"compression": "brotli", "compression_level": 11} if packed else {}

    def write(temporary: Path) -> None:
        with contextlib.ExitStack() as stack:
            writer = None
            for columns in parts:
                arrays = {name: pa.array(one, from_pandas=True) for name, one in columns.items()}
                table = pa.table(arrays)
                if writer is None:
                    writer = parquet.ParquetWriter(temporary, table.schema, **how)
                    stack.enter_context(writer)
                writer.write_table(table)

    write_atomic(path, write)


@contextlib.contextmanager
def replaced_folder(folder: Path, *, what: str) -> Iterator[Path]:
    """Yields an empty folder, which replaces `folder` at the end of the block.

    The old folder is moved to `folder.PID.old` meanwhile, and moved back if the replacement fails.

    Raises:
        DataError: nothing can be written beside `folder`, or it cannot be replaced.
    """
    make_folder(folder.parent, what=what)
    temporary = folder.with_name(f"{folder.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        _put_in_place(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _put_in_place(new: Path, folder: Path) -> None:
    old = folder.with_name(f"{folder.name}.{os.getpid()}.old")
    had = folder.exists()
    try:
        if had:
            os.replace(folder, old)
        os.replace(new, folder)
    except OSError as error:
        if old.exists():
            os.replace(old, folder)
        raise DataError(
            f"{folder}: cannot be replaced ({error.strerror or error}); it is unchanged"
        ) from None
    shutil.rmtree(old, ignore_errors=True)


def read_json(path: Path, *, what: str, hint: str, format: str | int | None = None) -> Any:
    """Returns the JSON value of a file.

    Args:
        what: description of the file, for the error text.
        hint: what to do when it is missing or damaged.
        format: expected value of its entry `format`; None = not checked.

    Raises:
        DataError: the file is missing, is not JSON or has another format.
    """
    try:
        value = json.loads(path.read_text("utf-8"), parse_constant=_no_number)
    except OSError as error:
        raise DataError(f"no {what} at {path} ({error.strerror or error}); {hint}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"the {what} {path} is damaged ({error}); {hint}") from error
    if format is not None:
        is_object = isinstance(value, dict)
        if not is_object or value.get("format") != format:
            got = f"{value.get('format')!r:.80}" if is_object else type(value).__name__
            raise DataError(f"{path} has format {got}, expected {format!r} ({what}); {hint}")
    return value


def _no_number(text: str) -> float:
    raise ValueError(f"{text} in JSON; expected a finite number")


def remove_abandoned(folder: Path, pattern: str = "*.tmp") -> None:
    """Removes temporary files and folders (`*.PID.tmp`) of processes that have ended."""
    for path in Path(folder).glob(pattern):
        pid = path.name.split(".")[-2]
        if not pid.isdecimal() or _is_running(int(pid)):
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                path.unlink()


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(") ")[2][:1]
    except OSError:
        return True  # no /proc on this system
    return state not in ("Z", "X")  # ended, but not yet reaped


def sha256_file(path: Path) -> str:
    """Returns the hex digest of a file's bytes.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
