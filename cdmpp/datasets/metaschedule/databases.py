"""Reads a database of TVM's MetaSchedule (`JSONDatabase`) as plain data, without TVM.

Source: the two files that apache-tvm 0.27 writes. `database_workload.json` has one line per
workload, `[structural hash, base64 of a length of 8 bytes and the module's JSON]`.
`database_tuning_record.json` has one line per record, `[workload number, [trace, run seconds,
target, arguments]]`, where a trace is `[instructions, decisions]`. Each may be compressed, with
`.gz`, `.xz` or `.zst` after its name. TVM 0.16 writes the same files with another format of modules
(see `older`).
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from cdmpp.datasets.read_report import ReadReport
from cdmpp.datasets.tenset.record_file import MAX_LINE_BYTES
from cdmpp.datasets.tenset.record_line import RecordLineError, is_finite, parse_json, parse_result
from cdmpp.errors import DataError
from cdmpp.files.open_text import PACKED_SUFFIXES, open_unpacked, unpack_errors
from cdmpp.records import MeasureRecord, program_id

WORKLOAD_FILE = "database_workload.json"
RECORD_FILE = "database_tuning_record.json"
#: Maximum length of a workload's line, which may have constants.
MAX_WORKLOAD_BYTES = 256 << 20
#: Traces are nested more deeply than Ansor's steps.
_TRACE_NESTING = 32
_LENGTH_BYTES = 8


def check_database(folder: Path) -> None:
    """Checks that a folder has the two files of a database.

    Raises:
        DataError: a file is missing.
    """
    missing = [name for name in (WORKLOAD_FILE, RECORD_FILE) if not (folder / name).is_file()]
    if missing:
        raise DataError(
            f"{folder}: no {' and no '.join(missing)}; expected a MetaSchedule database, such as "
            "the folder of: cdmpp search --network FILE --out DIR"
        )


@dataclass(frozen=True)
class Workload:
    """A workload of the database: its key, and the offset of its line in the file."""

    key: str
    offset: int


@dataclass(frozen=True)
class TuningRecord:
    """One line of the tuning records.

    Attributes:
        record: the program and its costs; `steps` is (instructions, decisions), `target` the
            target's canonical JSON, `measured_at` 0 (not stored in a database).
        workload: number of its workload.
        args_info: types and shapes of the arguments, as in the file.
    """

    record: MeasureRecord
    workload: int
    args_info: Any

    @property
    def program_id(self) -> str:
        """Id of the program."""
        record = self.record
        steps = list(record.steps)
        return program_id("metaschedule", record.workload_key, steps, record.target_kind)


def is_metaschedule_database(place: Path) -> bool:
    """Whether the folder is a database of MetaSchedule."""
    return all(database_file(place, name).is_file() for name in (RECORD_FILE, WORKLOAD_FILE))


def database_file(database_dir: Path, name: str) -> Path:
    """Returns the path of one of the two files; the compressed file if only that exists."""
    plain = Path(database_dir) / name
    packed = (plain.with_name(name + suffix) for suffix in PACKED_SUFFIXES)
    return plain if plain.is_file() else next((path for path in packed if path.is_file()), plain)


class DamagedArchiveError(DataError):
    """A compressed file that cannot be read to its end.

    Attributes:
        reason: short stable phrase, for counting.
        detail: message of the decompressor.
    """

    reason = "truncated or damaged archive"

    def __init__(self, path: Path, detail: str) -> None:
        super().__init__(f"{path}: {self.reason} ({detail}); expected the whole file")
        self.detail = detail


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Opens one of the two files; offsets are those of the decompressed text.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        with open_unpacked(path) as stream:
            yield cast(BinaryIO, stream)
    except unpack_errors() as error:
        raise DamagedArchiveError(path, str(error)) from None
    except OSError as error:
        raise DataError(f"{path}: cannot read ({error.strerror or error})") from None


def read_workloads(database_dir: Path) -> list[Workload]:
    """Returns the workloads of a database in their order, without their modules.

    Raises:
        DataError: the file cannot be read, or a line is not a workload.
    """
    path = database_file(database_dir, WORKLOAD_FILE)
    workloads: list[Workload] = []
    with _opened(path) as stream:
        offset = 0
        while line := stream.readline(MAX_WORKLOAD_BYTES):
            value = _workload_line(path, len(workloads), line)
            workloads.append(Workload(json.dumps([value[0]]), offset))
            offset += len(line)
    return workloads


def read_workload_line(database_dir: Path, workload: Workload) -> bytes:
    """Returns the line of a workload.

    Raises:
        DataError: the file cannot be read.
    """
    with _opened(database_file(database_dir, WORKLOAD_FILE)) as stream:
        stream.seek(workload.offset)
        return stream.readline(MAX_WORKLOAD_BYTES)


def read_module_json(database_dir: Path, workload: Workload) -> str:
    """Returns the JSON of a workload's module, as input of `tvm.ir.load_json`.

    Raises:
        DataError: the file cannot be read, or the line has no module.
    """
    path = database_file(database_dir, WORKLOAD_FILE)
    value = _workload_line(path, 0, read_workload_line(database_dir, workload))
    try:
        data = base64.b64decode(value[1], validate=True)
        return data[_LENGTH_BYTES:].decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise DataError(
            f"{path}: workload {workload.key} has no module ({error}); expected the base64 of "
            "JSON that TVM writes"
        ) from None


def _workload_line(path: Path, number: int, line: bytes) -> list[str]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: line {number + 1} is not JSON ({error})") from None
    if not (
        isinstance(value, list)
        and len(value) == 2
        and all(isinstance(item, str) and item.isascii() for item in value)
    ):
        raise DataError(
            f"{path}: line {number + 1} is not a [structural hash, module] pair of strings"
        )
    return value


def read_tuning_records(
    database_dir: Path,
    workloads: list[Workload],
    report: ReadReport,
    *,
    device: str,
    only: Container[int] | None = None,
) -> Iterator[TuningRecord]:
    """Yields the records of a database; counts unusable lines in `report`.

    Failed measurements (1e10 seconds) are yielded with an error code; records without a
    measurement are counted and skipped.

    Args:
        workloads: result of `read_workloads`.
        report: counters, updated while reading.
        device: label for all records.
        only: numbers of the lines to read; other lines are not counted. None = all.

    Raises:
        DataError: the file cannot be read.
    """
    path = database_file(database_dir, RECORD_FILE)
    report.files += 1
    for number, text in _lines(path, report, only):
        report.lines += 1
        try:
            found = parse_tuning_record(text, workloads, device=device, line=number)
        except RecordLineError as error:
            report.skip(path.name, number, error.reason, detail=error.detail)
            continue
        if not found.record.error_code and not found.record.costs_s:
            report.unmeasured += 1
            report.skip(path.name, number, "not measured")
            continue
        report.records += 1
        report.failed += found.record.error_code != 0
        yield found


def _lines(
    path: Path, report: ReadReport, only: Container[int] | None
) -> Iterator[tuple[int, str]]:
    """Yields (line number, text) of the lines that are valid UTF-8 and not blank."""
    number = 0
    try:
        with _opened(path) as stream:
            for number, raw in enumerate(stream, 1):
                if only is not None and number not in only:
                    continue
                text = raw.decode("utf-8", "replace").strip()
                if not text:
                    report.comments += 1
                elif len(raw) > MAX_LINE_BYTES or "\ufffd" in text:
                    report.lines += 1
                    report.skip(path.name, number, "not text", detail="not UTF-8 or too long")
                else:
                    yield number, text
    except DamagedArchiveError as error:
        report.skip(path.name, number + 1, error.reason, detail=error.detail)


def parse_tuning_record(
    text: str, workloads: list[Workload], *, device: str, line: int = 0
) -> TuningRecord:
    """Returns the record of a line; `costs_s` is empty if there is no measurement.

    Raises:
        RecordLineError: the line is not a tuning record of one of the workloads.
    """
    value = parse_json(text)
    if not (isinstance(value, list) and len(value) == 2 and isinstance(value[1], list)):
        raise RecordLineError("not a tuning record", "expected [workload, [trace, seconds, ...]]")
    number, fields = value
    if type(number) is not int or not 0 <= number < len(workloads):
        raise RecordLineError("unknown workload", str(number)[:20])
    if len(fields) != 4:
        raise RecordLineError("malformed tuning record", f"{len(fields)} fields, expected 4")
    trace, run_secs, target, args_info = fields
    target_kind = _target_kind(target)
    if not (
        isinstance(trace, list) and len(trace) == 2 and all(isinstance(t, list) for t in trace)
    ):
        raise RecordLineError("malformed trace", "expected [instructions, decisions]")
    if not (is_finite(trace, depth=_TRACE_NESTING) and is_finite(target)):
        raise RecordLineError(
            "malformed trace", "a number is not finite, or lists are nested too deeply"
        )
    costs_s: tuple[float, ...] = ()
    error_code = 0
    if run_secs:
        costs_s, error_code, _, _ = parse_result([run_secs, 0, 0, 0])
    record = MeasureRecord(
        workload_key=workloads[number].key,
        target=json.dumps(target, sort_keys=True),
        target_kind=target_kind,
        device=device,
        hardware_params=_hardware_params(target),
        steps=tuple(trace),
        costs_s=costs_s,
        error_code=error_code,
        all_cost_s=0.0,
        measured_at=0,
        version="metaschedule",
        line=line,
    )
    return TuningRecord(record, number, args_info)


def _target_kind(target: Any) -> str:
    kind = target.get("kind") if isinstance(target, dict) else None
    if not (isinstance(kind, str) and kind.isidentifier()):
        raise RecordLineError("malformed target", "expected an object with `kind`")
    return kind


def _hardware_params(target: dict[str, Any]) -> tuple[int, ...]:
    """Returns Ansor's eight parameters if the target has the limits of a block, else ()."""
    shared = target.get("max_shared_memory_per_block")
    threads = target.get("max_threads_per_block", target.get("max_num_threads"))
    warp = target.get("thread_warp_size", 32)
    if type(shared) is int and type(threads) is int and type(warp) is int:
        return (-1, 16, 64, shared, (1 << 31) - 1, threads, 8, warp)
    return ()
