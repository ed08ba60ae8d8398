"""The process that reads untrusted programs; see `cdmpp.processes.serve`.

A crash or hang costs one request: the process is restarted. As a module it reads only records,
without TVM; `tvm_helper.serve.worker` adds the other forms, with TVM.

Request `read`: `entries`, each {"tvmscript": text}, {"tir_json": text} or {"records": [line],
"dag": text or null, "target": text or null}; `devices`, DeviceSpecs as JSON; and `leaf_extra`, the
version of the extra leaf columns that the model reads.

Answer: `asked` has one row {entry, name, operator, device, reason} per program and device; rows
without a reason also have {program_id, task, schedule, is_scheduled, measured_s, work, doubts,
note}. `leaves` has the leaf tables of the rows without a reason, in order.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import lru_cache, partial
from typing import Any, TypeAlias

from cdmpp.datasets.tenset.folder import default_dataset_dir
from cdmpp.datasets.tenset.record_line import RecordLineError, parse_record
from cdmpp.datasets.tenset.task_index import TaskIndex, load_tasks
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import CdmppError, DataError
from cdmpp.models.assemble import AskedProgram
from cdmpp.predict.records import record_programs
from cdmpp.processes.serve import Handler, serve
from cdmpp.programs.compact_ast import CompactAst
from cdmpp.programs.native import native_library
from cdmpp.records import MeasureRecord, TensetTask
from cdmpp.serve.leaf_table import MOST_LEAVES, encode_asts
from cdmpp.text import counted, short_task

_MEMORY_BYTES = 8 << 30
_LONGEST_REASON = 400
Row: TypeAlias = dict[str, Any]
#: Row of a program on a device, and its compact AST if the row has no reason.
ReadRow: TypeAlias = tuple[Row, CompactAst | None]
#: Reads an entry that is not records.
ReadEntry = Callable[[Row, Sequence[DeviceSpec], int], Iterator[ReadRow]]


def serve_reader(read_entry: ReadEntry, prepare: Callable[[], object], **handlers: Handler) -> None:
    """Reads programs until the server ends.

    Args:
        prepare: slow setup that belongs to no program.
        handlers: handlers of requests other than `read`, by name.
    """

    def prepare_limited() -> None:
        prepare()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))

    serve({"read": partial(_read, read_entry), **handlers}, prepare_limited)


def _read(
    read_entry: ReadEntry, request: dict[str, Any], begin: Callable[[], None]
) -> dict[str, Any]:
    begin()
    devices = [DeviceSpec(**one) for one in request["devices"]]
    rows: list[Row] = []
    asts: list[CompactAst] = []
    for number, entry in enumerate(request["entries"]):
        try:
            read = read_entry if entry.get("records") is None else _records
            found = list(read(entry, devices, request["leaf_extra"]))
        except CdmppError as error:
            found = [(reason_row("", "", device, str(error)), None) for device in devices]
        for row, ast in found:
            rows.append({"entry": number, **row})
            if ast is not None:
                asts.append(ast.of_version(request["leaf_extra"]))
    return {"asked": rows, "leaves": encode_asts(asts)}


def _records(entry: Row, devices: Sequence[DeviceSpec], version: int) -> Iterator[ReadRow]:
    """Yields the programs of record lines, each on all devices."""
    records: dict[int, MeasureRecord] = {}
    by_task: dict[tuple[str, str], list[int]] = {}
    found: dict[tuple[int, int], AskedProgram | str] = {}
    for place, line in enumerate(entry["records"]):
        try:
            record = records[place] = parse_record(line)
        except RecordLineError as error:
            found |= {(place, n): str(error) for n in range(len(devices))}
        else:
            by_task.setdefault((record.workload_key, record.target_kind), []).append(place)
    if entry.get("dag") is not None and len(by_task) > 1:
        raise DataError(f"a dag and records of {len(by_task)} tasks; expected those of one")
    for (key, kind), places in by_task.items():
        if entry.get("dag") is not None:
            task = TensetTask(key, entry.get("target") or kind, kind, entry["dag"], ())
        else:
            known = _tasks().find(key, kind)
            if known is None:
                why = "not a shipped task; send its `dag` too"
                found |= {(place, n): why for place in places for n in range(len(devices))}
                continue
            task = known
        asked = record_programs(task, [records[p] for p in places], [*map(_always, devices)])
        keys = [(place, number) for number in range(len(devices)) for place in places]
        found |= dict(zip(keys, asked, strict=True))
    for (_, number), program in sorted(found.items(), key=lambda pair: pair[0]):
        if isinstance(program, str):
            yield reason_row("", "", devices[number], program), None
        else:
            name = short_task(program.task, program.operator)
            yield asked_row(name, program, is_scheduled=True)


def _always(device: DeviceSpec) -> Callable[[MeasureRecord], DeviceSpec]:
    return lambda record: device


@lru_cache(maxsize=1)
def _tasks() -> TaskIndex:
    return load_tasks(default_dataset_dir() / "network_info")


def asked_row(name: str, asked: AskedProgram, *, is_scheduled: bool, note: str = "") -> ReadRow:
    """Returns the row of a predictable program, and its compact AST."""
    if not 0 < len(asked.ast.leaf_features) <= MOST_LEAVES:
        count = len(asked.ast.leaf_features)
        reason = f"it has {counted(count, 'store')}; expected 1 to {MOST_LEAVES}"
        return reason_row(name, asked.operator, asked.device, reason), None
    row = reason_row(name, asked.operator, asked.device, None)
    return {
        **row, "program_id": asked.program_id, "task": asked.task, "schedule": asked.schedule,
        "is_scheduled": is_scheduled, "measured_s": asked.measured_s,
        "work": None if asked.work is None else asdict(asked.work), "doubts": asked.doubts,
        "note": note,
    }, asked.ast  # fmt: skip


def reason_row(name: str, operator: str, device: DeviceSpec, reason: str | None) -> Row:
    """Returns the row of a program; a reason means that it cannot be predicted."""
    reason = None if reason is None else reason[:_LONGEST_REASON]
    return {"name": name, "operator": operator, "device": device.name, "reason": reason}


def _no_programs(entry: Row, devices: Sequence[DeviceSpec], version: int) -> Iterator[ReadRow]:
    raise DataError("without TVM only records can be read")


if __name__ == "__main__":
    serve_reader(_no_programs, native_library)
