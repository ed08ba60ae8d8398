"""Reads files of measure records: a JSON object per line, plain or compressed (gzip, xz, zstd)."""

from __future__ import annotations

import io
from collections.abc import Container, Iterator
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from cdmpp.datasets.read_report import ReadReport
from cdmpp.datasets.tenset.record_line import RecordLineError, parse_record
from cdmpp.errors import DataError
from cdmpp.files.open_text import open_unpacked, unpack_errors
from cdmpp.records import MeasureRecord

#: Maximum length of a measure record (the longest lines in Tenset have about ten thousand bytes).
MAX_LINE_BYTES = 4 << 20
_BUFFER_BYTES = 256 << 10


class LineParser(Protocol):
    """Parses one line; raises `RecordLineError` if it is not a record."""

    def __call__(self, text: str, *, device: str = ..., line: int = ...) -> MeasureRecord:
        """Returns the record."""


class PlainParser(Protocol):
    """Parses a line in its usual form; returns None for other lines."""

    def __call__(self, raw: bytes, *, device: str, line: int = ...) -> MeasureRecord | None:
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
    """Yields the records of a file; counts unusable lines in `report`, with line and reason.

    Failed measurements are yielded with their error code. Blank lines and lines that start with
    `#` are comments.

    Args:
        path: `.json`, or compressed with gzip, xz or zstd (detected from the content).
        report: counters, updated while reading.
        device: label for all records; None = from the target (`-model=`), else the folder's name.
        keep_unmeasured: whether to yield records without a measurement (empty `costs_s`).
        parse: parser of one line.
        only: numbers of the lines to read; other lines are not counted. None = all.

    Raises:
        DataError: the file cannot be opened.
    """
    report.files += 1
    parse_plain = _plain_parser() if parse is parse_record else None
    label = device or path.parent.name
    seen = False
    skipped_before = report.skipped_total
    for number, raw in _read_lines(path, report):
        seen = True
        if only is not None and number not in only:
            continue
        if parse_plain is not None and len(raw) <= MAX_LINE_BYTES:
            plain = parse_plain(raw, device=label, line=number)
            if plain is not None:
                report.lines += 1
                yield _counted(plain, device, report)
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
            record = parse(text, device=label, line=number)
        except RecordLineError as error:
            report.skip(path.name, number, error.reason, detail=error.detail)
            continue
        if not record.error_code and not record.costs_s:
            report.unmeasured += 1
            if not keep_unmeasured:
                report.skip(path.name, number, "cost is zero or negative", detail="all costs are 0")
                continue
        yield _counted(record, device, report)
    if not seen and report.skipped_total == skipped_before:
        report.skip(path.name, 0, "empty file")


def _plain_parser() -> PlainParser | None:
    """Returns the fast parser of plain lines; None if orjson is not installed."""
    try:
        from cdmpp.datasets.tenset.plain_line import parse_plain_record
    except ImportError:
        return None
    return parse_plain_record


def _counted(record: MeasureRecord, device: str | None, report: ReadReport) -> MeasureRecord:
    """Counts a record; returns it with the label `device`, if one is given."""
    if device is not None and record.device != device:
        report.notes["-model= of the target differs from the folder; the folder is used"] += 1
        record = replace(record, device=device)
    report.records += 1
    report.failed += record.error_code != 0
    return record


def _read_lines(path: Path, report: ReadReport) -> Iterator[tuple[int, bytes]]:
    """Yields (line number from 1, bytes); skips the rest of an overlong line."""
    number = 0
    try:
        with open_unpacked(path) as file:
            # The default buffer of a gzip file, 8 KB, makes half of its lines slow.
            stream = io.BufferedReader(cast(io.RawIOBase, file), _BUFFER_BYTES)
            while line := _read_line(stream):
                number += 1
                yield number, line
    except unpack_errors() as error:
        detail = str(error).splitlines()[0] if str(error) else type(error).__name__
        report.skip(path.name, number + 1, "truncated or damaged file", detail=detail)
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
