"""The process that reads programs of strangers; see `cdmpp.processes.serve`.

What kills it, or hangs, costs one request: the process is started again. It may not use more memory
than `_MEMORY_BYTES`.

Request `read`: `entries`, each {"tvmscript": text}, {"tir_json": text} or {"records": [line],
"dag": text or null, "target": text or null}; and `devices`, DeviceSpecs as JSON. Answer: `asked`,
for every program of every entry on every device {entry, name, operator, device, reason} and, where
the reason is null, {program_id, task, schedule, is_scheduled, measured_s}; and `leaves`, the leaf
tables of those without a reason, in order.

Request `explain`: `entries` of the first two forms, `devices`, `folder` and `version` of a model,
and `most`, the most programs. Answer: `explained`, rows of `ExplainedProgram` with their `entry`.

Request `network`: `path` and `name` of an ONNX file, `devices`, `folder` and `version` of a model.
Answer: `networks`, a row a device, see `tvm_helper.serve.network`.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from cdmpp.datasets.tenset.folder import default_dataset_dir
from cdmpp.datasets.tenset.record_line import parse_record
from cdmpp.datasets.tenset.task_index import TaskIndex, load_tasks
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import CdmppError, DataError
from cdmpp.models.assemble import AskedProgram
from cdmpp.predict.estimates import TrainedModel, load_trained
from cdmpp.predict.prediction import misfit
from cdmpp.predict.records import record_programs
from cdmpp.processes.serve import serve
from cdmpp.programs.compact_ast import CompactAst
from cdmpp.records import MeasureRecord, TensetTask, program_id
from cdmpp.serve.leaf_table import MOST_LEAVES, encode_asts
from cdmpp.text import short_task
from tvm_helper.tasks.program_file import NamedProgram

_MEMORY_BYTES = 8 << 30
_LONGEST_REASON = 400
Row = dict[str, Any]


def main() -> None:
    """Serves until the server is gone."""
    serve({"read": _read, "explain": _explain, "network": _network}, _prepare)


def _prepare() -> None:
    from tvm_helper.tir.features import native_modules

    native_modules()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))


def _read(request: dict[str, Any], begin: Callable[[], None]) -> dict[str, Any]:
    begin()
    devices = [DeviceSpec(**one) for one in request["devices"]]
    rows: list[Row] = []
    asts: list[CompactAst] = []
    for number, entry in enumerate(request["entries"]):
        try:
            found = list(_read_entry(entry, devices))
        except CdmppError as error:
            found = [(_row("", "", device, str(error)), None) for device in devices]
        for row, ast in found:
            rows.append({"entry": number, **row})
            if ast is not None:
                asts.append(ast)
    return {"asked": rows, "leaves": encode_asts(asts)}


def _explain(request: dict[str, Any], begin: Callable[[], None]) -> dict[str, Any]:
    from tvm_helper.predict.explain import explain_programs
    from tvm_helper.predict.predictor import Predictor

    begin()
    trained = _trained(request["folder"], request["version"])
    devices = [DeviceSpec(**one) for one in request["devices"]]
    predictor = Predictor(trained, devices)
    rows: list[Row] = []
    for number, entry in enumerate(request["entries"]):
        programs = _programs(entry)
        if len(rows) + len(programs) * len(devices) > request["most"]:
            raise DataError(f"more than {request['most']} programs x devices; send fewer")
        explained = explain_programs(predictor, programs)
        rows += [{"entry": number, **one.row()} for one in explained]
    return {"explained": rows}


def _network(request: dict[str, Any], begin: Callable[[], None]) -> dict[str, Any]:
    from tvm_helper.serve.network import network_rows

    begin()
    devices = [DeviceSpec(**one) for one in request["devices"]]
    trained = _trained(request["folder"], request["version"])
    return {"networks": network_rows(request["path"], request["name"], devices, trained)}


@lru_cache(maxsize=2)
def _trained(folder: str, version: str) -> TrainedModel:
    """Returns a model; one of another version is another one."""
    return load_trained(Path(folder))


def _programs(entry: dict[str, Any]) -> list[NamedProgram]:
    from tvm_helper.serve.script import read_script, read_tir_json

    if entry.get("tvmscript") is not None:
        return list(read_script(entry["tvmscript"]))
    return list(read_tir_json(entry["tir_json"]))


def _read_entry(
    entry: dict[str, Any], devices: Sequence[DeviceSpec]
) -> Iterator[tuple[Row, CompactAst | None]]:
    """Yields the programs of an entry on every device: a row, and the compact AST where it has no
    reason.

    Raises:
        DataError: the entry cannot be read.
    """
    if entry.get("records") is not None:
        yield from _records(entry, devices)
        return
    for program in _programs(entry):
        yield from _program(program, devices)


def _program(
    program: NamedProgram, devices: Sequence[DeviceSpec]
) -> Iterator[tuple[Row, CompactAst | None]]:
    from tvm_helper.predict.reading import features_of, look_at
    from tvm_helper.tasks.target import device_target

    looks = look_at(program.module)
    for device in devices:
        reason = misfit(device, is_gpu=looks.is_gpu)
        if reason is not None:
            yield _row(program.name, looks.operator, device, reason), None
            continue
        target = device_target(device)
        ast = features_of(program.module, target)
        if isinstance(ast, str):
            yield _row(program.name, looks.operator, device, ast), None
            continue
        kind = target.kind.name
        asked = AskedProgram(
            program_id("metaschedule", looks.workload_key, [], kind),
            f"{looks.workload_key}|{kind}", ast, device, operator=looks.operator,
        )  # fmt: skip
        yield _asked_row(program.name, asked, is_scheduled=looks.is_scheduled)


def _records(
    entry: dict[str, Any], devices: Sequence[DeviceSpec]
) -> Iterator[tuple[Row, CompactAst | None]]:
    """Yields the programs of record lines on every device, line by line."""
    records = [parse_record(line) for line in entry["records"]]
    by_task: dict[tuple[str, str], list[int]] = {}
    for place, record in enumerate(records):
        by_task.setdefault((record.workload_key, record.target_kind), []).append(place)
    if entry.get("dag") is not None and len(by_task) != 1:
        raise DataError(f"a dag and records of {len(by_task)} tasks; expected those of one")
    found: dict[tuple[int, int], AskedProgram | str] = {}
    for (key, kind), places in by_task.items():
        if entry.get("dag") is not None:
            task = TensetTask(key, entry.get("target") or kind, kind, entry["dag"], ())
        else:
            known = _tasks().find(key, kind)
            if known is None:
                raise DataError("a task that is none of the shipped ones; send its `dag` too")
            task = known
        for number, device in enumerate(devices):
            asked = record_programs(task, [records[p] for p in places], _always(device))
            found |= {(place, number): one for place, one in zip(places, asked, strict=True)}
    for (_, number), program in sorted(found.items(), key=lambda pair: pair[0]):
        if isinstance(program, str):
            yield _row("", "", devices[number], program), None
        else:
            name = short_task(program.task, program.operator)
            yield _asked_row(name, program, is_scheduled=True)


def _always(device: DeviceSpec) -> Callable[[MeasureRecord], DeviceSpec]:
    return lambda record: device


@lru_cache(maxsize=1)
def _tasks() -> TaskIndex:
    return load_tasks(default_dataset_dir() / "network_info")


def _asked_row(
    name: str, asked: AskedProgram, *, is_scheduled: bool
) -> tuple[Row, CompactAst | None]:
    if not 0 < len(asked.ast.leaf_features) <= MOST_LEAVES:
        count = len(asked.ast.leaf_features)
        reason = f"it has {count} stores; expected 1 to {MOST_LEAVES}"
        return _row(name, asked.operator, asked.device, reason), None
    row = _row(name, asked.operator, asked.device, None)
    return {
        **row, "program_id": asked.program_id, "task": asked.task, "schedule": asked.schedule,
        "is_scheduled": is_scheduled, "measured_s": asked.measured_s,
    }, asked.ast  # fmt: skip


def _row(name: str, operator: str, device: DeviceSpec, reason: str | None) -> Row:
    reason = None if reason is None else reason[:_LONGEST_REASON]
    return {"name": name, "operator": operator, "device": device.name, "reason": reason}


if __name__ == "__main__":
    main()
