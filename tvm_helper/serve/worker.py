"""Process that reads, explains and compiles untrusted programs with TVM.

Request `read`: see `cdmpp.serve.reader_process`.

Request `explain`: `entries` of the first two forms, `devices`, `folder` and `version` of a model,
and `most`, the maximum number of programs x devices. Response: `explained`, rows of
`ExplainedProgram` with the number of their `entry`.

Request `network`: `path` and `name` of a network file, `inputs` and `batch` (its sizes), `devices`,
`folder` and `version` of a model. Response: `networks`, one row per device, see
`tvm_helper.serve.network`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DataError
from cdmpp.models.assemble import AskedProgram
from cdmpp.networks.onnx_files.sizes import InputSizes
from cdmpp.predict.estimates import TrainedModel, load_trained
from cdmpp.records import program_id
from cdmpp.serve.reader_process import ReadRow, Row, asked_row, reason_row, serve_reader
from tvm_helper.predict.reading import fit, look_at, read_program, unsized
from tvm_helper.tasks.program_file import NamedProgram
from tvm_helper.tasks.target import device_target
from tvm_helper.tir.features import native_modules


def main() -> None:
    """Handles requests until the server ends."""
    serve_reader(_read_entry, native_modules, explain=_explain, network=_network)


def _read_entry(entry: Row, devices: Sequence[DeviceSpec], version: int) -> Iterator[ReadRow]:
    for program in _programs(entry):
        yield from _program(program, devices, version)


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
    return {
        "networks": network_rows(
            request["path"],
            request["name"],
            devices,
            trained,
            InputSizes(request["inputs"], request["batch"]),
        )
    }


@lru_cache(maxsize=2)
def _trained(folder: str, version: str) -> TrainedModel:
    """Returns a model; `version` is part of the cache key only."""
    return load_trained(Path(folder))


def _programs(entry: Row) -> list[NamedProgram]:
    from tvm_helper.tasks.script import read_script, read_tir_json

    if entry.get("tvmscript") is not None:
        return list(read_script(entry["tvmscript"]))
    return list(read_tir_json(entry["tir_json"]))


def _program(
    program: NamedProgram, devices: Sequence[DeviceSpec], version: int
) -> Iterator[ReadRow]:
    fault = unsized(program.module)
    if fault:
        for device in devices:
            yield reason_row(program.name, "", device, fault), None
        return
    looks = look_at(program.module)
    for device in devices:
        target = device_target(device)
        fitted = fit(program, looks, device, target)
        if isinstance(fitted, str):
            yield reason_row(program.name, looks.operator, device, fitted), None
            continue
        read = read_program(fitted.module, target, fitted.source, version=version)
        if isinstance(read, str):
            yield reason_row(program.name, looks.operator, device, read), None
            continue
        kind = target.kind.name
        asked = AskedProgram(
            program_id("metaschedule", looks.workload_key, [], kind),
            f"{looks.workload_key}|{kind}", read.ast, device, operator=looks.operator,
            work=read.work, doubts=read.reasons,
        )  # fmt: skip
        yield asked_row(program.name, asked, is_scheduled=looks.is_scheduled, note=fitted.note)


if __name__ == "__main__":
    main()
