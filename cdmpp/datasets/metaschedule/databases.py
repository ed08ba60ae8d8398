"""Reads a database of TVM's MetaSchedule (`JSONDatabase`) as plain data, without TVM.

Source: the two files that apache-tvm 0.27 writes. `database_workload.json` has one line a workload,
`[structural hash, base64 of a length of 8 bytes and the module's JSON]`;
`database_tuning_record.json` one a record, `[workload number, [trace, run seconds, target,
arguments]]`, a trace being `[instructions, decisions]`.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdmpp.datasets.read_report import ReadReport
from cdmpp.datasets.tenset.record_file import MAX_LINE_BYTES
from cdmpp.datasets.tenset.record_line import RecordLineError, is_finite, parse_json, parse_result
from cdmpp.errors import DataError
from cdmpp.records import MeasureRecord, program_id

WORKLOAD_FILE = "database_workload.json"
RECORD_FILE = "database_tuning_record.json"
#: A module's line may be long: it holds constants.
MAX_WORKLOAD_BYTES = 256 << 20
#: Traces are nested more deeply than Ansor's steps.
_TRACE_NESTING = 32
_LENGTH_BYTES = 8


def check_database(folder: Path) -> None:
    """Checks that a folder has the two files of a database.

    Raises:
        DataError: one is missing.
    """
    missing = [name for name in (WORKLOAD_FILE, RECORD_FILE) if not (folder / name).is_file()]
    if missing:
        raise DataError(
            f"{folder}: no {' and no '.join(missing)}; expected a MetaSchedule database, such as "
            "the folder of: cdmpp search --network FILE --out DIR"
        )


@dataclass(frozen=True)
class Workload:
    """A workload of the database: its key, and where its line is in the file."""

    key: str
    offset: int


@dataclass(frozen=True)
class TuningRecord:
    """One line of the tuning records.

    Attributes:
        record: the program and its costs; `steps` is (instructions, decisions), `target` the
            target's canonical JSON, `measured_at` 0 (the database does not know).
        workload: number of its workload.
        args_info: types and shapes of the arguments, as the file has them.
    """

    record: MeasureRecord
    workload: int
    args_info: Any

    @property
    def program_id(self) -> str:
        """The identity of the program."""
        record = self.record
        steps = list(record.steps)
        return program_id("metaschedule", record.workload_key, steps, record.target_kind)


def is_metaschedule_database(place: Path) -> bool:
    """Whether the folder is a database of MetaSchedule."""
    return (Path(place) / RECORD_FILE).is_file() and (Path(place) / WORKLOAD_FILE).is_file()


def read_workloads(database_dir: Path) -> list[Workload]:
    """Returns the workloads of a database in their order, without their modules.

    Raises:
        DataError: the file cannot be read, or a line is no workload.
    """
    path = Path(database_dir) / WORKLOAD_FILE
    workloads: list[Workload] = []
    try:
        with path.open("rb") as stream:
            offset = 0
            while line := stream.readline(MAX_WORKLOAD_BYTES):
                value = _workload_line(path, len(workloads), line)
                workloads.append(Workload(json.dumps([value[0]]), offset))
                offset += len(line)
    except OSError as error:
        raise DataError(f"{path}: cannot read ({error.strerror or error})") from None
    return workloads


def read_module_json(database_dir: Path, workload: Workload) -> str:
    """Returns the JSON of a workload's module (what `tvm.ir.load_json` takes).

    Raises:
        DataError: the file cannot be read, or the line holds no module.
    """
    path = Path(database_dir) / WORKLOAD_FILE
    try:
        with path.open("rb") as stream:
            stream.seek(workload.offset)
            value = _workload_line(path, 0, stream.readline(MAX_WORKLOAD_BYTES))
        data = base64.b64decode(value[1], validate=True)
        return data[_LENGTH_BYTES:].decode()
    except OSError as error:
        raise DataError(f"{path}: cannot read ({error.strerror or error})") from None
    except (binascii.Error, UnicodeDecodeError) as error:
        raise DataError(
            f"{path}: workload {workload.key} holds no module ({error}); expected the base64 of "
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
        raise DataError(f"{path}: line {number + 1} is no [structural hash, module] of two texts")
    return value


def read_tuning_records(
    database_dir: Path,
    workloads: list[Workload],
    report: ReadReport,
    *,
    device: str,
    start: int = 0,
    line: int = 1,
    count: int | None = None,
) -> Iterator[TuningRecord]:
    """Yields the records of a database; counts what cannot be used in `report`.

    Failed measurements (1e10 seconds) are yielded with an error code, records without a
    measurement are counted and left out.

    Args:
        workloads: as `read_workloads` gave them.
        report: counters, updated while reading.
        device: label for all records.
        start: byte at which to begin, the beginning of line `line`.
        count: lines to read; None = all.

    Raises:
        DataError: the file cannot be read.
    """
    path = Path(database_dir) / RECORD_FILE
    report.files += start == 0
    for number, text in _lines(path, report, start=start, line=line, count=count):
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


def record_line_offsets(database_dir: Path, every: int) -> list[tuple[int, int]]:
    """Returns (byte, line number from 1) of every so-many-th line of the tuning records.

    Raises:
        DataError: the file cannot be read.
    """
    path = Path(database_dir) / RECORD_FILE
    offsets: list[tuple[int, int]] = []
    try:
        with path.open("rb") as stream:
            offset = number = 0
            while line := stream.readline():
                if number % every == 0:
                    offsets.append((offset, number + 1))
                offset += len(line)
                number += 1
    except OSError as error:
        raise DataError(f"{path}: cannot read ({error.strerror or error})") from None
    return offsets


def _lines(
    path: Path, report: ReadReport, *, start: int, line: int, count: int | None
) -> Iterator[tuple[int, str]]:
    """Yields (line number, text) of the lines that are text and not blank."""
    try:
        with path.open("rb") as stream:
            stream.seek(start)
            number = line
            while (count is None or number < line + count) and (raw := stream.readline()):
                text = raw.decode("utf-8", "replace").strip()
                if not text:
                    report.comments += 1
                elif len(raw) > MAX_LINE_BYTES or "\ufffd" in text:
                    report.lines += 1
                    report.skip(path.name, number, "not text", detail="not UTF-8 or too long")
                else:
                    yield number, text
                number += 1
    except OSError as error:
        raise DataError(f"{path}: cannot read ({error.strerror or error})") from None


def parse_tuning_record(
    text: str, workloads: list[Workload], *, device: str, line: int = 0
) -> TuningRecord:
    """Returns the record that a line holds; `costs_s` is empty where it has not been measured.

    Raises:
        RecordLineError: the line is no tuning record of one of the workloads.
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
        raise RecordLineError("malformed trace", "a number is not finite, or nested too deeply")
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
    """Returns Ansor's eight parameters where the target gives the limits of a block, else none."""
    shared = target.get("max_shared_memory_per_block")
    threads = target.get("max_threads_per_block", target.get("max_num_threads"))
    warp = target.get("thread_warp_size", 32)
    if type(shared) is int and type(threads) is int and type(warp) is int:
        return (-1, 16, 64, shared, (1 << 31) - 1, threads, 8, warp)
    return ()
