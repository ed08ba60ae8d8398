"""Reads files of measure records, one JSON object a line, plain or gzipped."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Container, Iterator
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from cdmpp.datasets.read_report import ReadReport
from cdmpp.datasets.record_line import RecordLineError, parse_record
from cdmpp.errors import DataError
from cdmpp.records import MeasureRecord

#: A longer line is no measure record (the longest in Tenset have some ten thousand bytes).
MAX_LINE_BYTES = 4 << 20
_GZIP_MAGIC = b"\x1f\x8b"


class LineParser(Protocol):
    """Reads one line; raises `RecordLineError` when it is no record."""

    def __call__(self, text: str, *, device: str = ..., line: int = ...) -> MeasureRecord:
        """Returns the record."""


def read_records(
    path: Path,
    report: ReadReport,
    *,
    device: str | None = None,
    keep_unmeasured: bool = False,
    parse: LineParser = parse_record,
    only: Container[int] | None = None,
) -> Iterator[MeasureRecord]:
    """Yields the records of a file; counts what cannot be used in `report`, with line and reason.

    Failed measurements are yielded with their error code. Blank lines and lines that start with
    `#` are comments.

    Args:
        path: `.json` or `.json.gz` (told apart by content).
        report: counters, updated while reading.
        device: label for all records; None takes it from the target (`-model=`), else the folder's
            name.
        keep_unmeasured: whether to yield records that have not been measured (empty `costs_s`).
        parse: reads one line of the file's format.
        only: numbers of the lines to read; the others are not counted. None = all.

    Raises:
        DataError: the file cannot be opened.
    """
    report.files += 1
    seen = False
    skipped_before = report.skipped_total
    for number, raw in _read_lines(path, report):
        seen = True
        if only is not None and number not in only:
            continue
        text = _decode(raw)
        if text is None:
            report.lines += 1
            report.skip(path.name, number, "not text", detail="not UTF-8 or too long")
            continue
        if not text.strip() or text.startswith("#"):
            report.comments += 1
            continue
        report.lines += 1
        try:
            record = parse(text, device=device or path.parent.name, line=number)
        except RecordLineError as error:
            report.skip(path.name, number, error.reason, detail=error.detail)
            continue
        if not record.error_code and not record.costs_s:
            report.unmeasured += 1
            if not keep_unmeasured:
                report.skip(path.name, number, "cost is zero or negative", detail="all costs are 0")
                continue
        if device is not None and record.device != device:
            report.notes["-model= of the target differs from the folder; the folder counts"] += 1
            record = replace(record, device=device)
        report.records += 1
        report.failed += record.error_code != 0
        yield record
    if not seen and report.skipped_total == skipped_before:
        report.skip(path.name, 0, "empty file")


def _read_lines(path: Path, report: ReadReport) -> Iterator[tuple[int, bytes]]:
    """Yields (line number from 1, bytes); an overlong line is cut and its rest passed over."""
    number = 0
    try:
        with path.open("rb") as raw:
            zipped = raw.read(2) == _GZIP_MAGIC
        with gzip.open(path, "rb") if zipped else path.open("rb") as stream:
            while line := _read_line(cast(BinaryIO, stream)):
                number += 1
                yield number, line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        detail = str(error).splitlines()[0] if str(error) else type(error).__name__
        report.skip(path.name, number + 1, "truncated or damaged gzip", detail=detail)
    except OSError as error:
        raise DataError(f"{path}: cannot read ({error.strerror or error})") from None


def _read_line(stream: BinaryIO) -> bytes:
    line = stream.readline(MAX_LINE_BYTES + 1)
    rest = line
    while len(rest) > MAX_LINE_BYTES and not rest.endswith(b"\n"):
        rest = stream.readline(MAX_LINE_BYTES + 1)
    return line


def _decode(raw: bytes) -> str | None:
    if len(raw) > MAX_LINE_BYTES:
        return None
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return None
