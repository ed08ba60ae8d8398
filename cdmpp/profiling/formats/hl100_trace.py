"""Operator traces of Habana's HL-100, with activity of the matrix engine (MME) and the cores (TPC).

A trace has begin and end events in processes named `*MME` and `*TPC`. A `...symbol.json` file
beside it has each operator's tensors, e.g. `x:0  |  [8,224,224,3]  |  int8  |  zp = -14, scale =
0.0187  |  ModelParam = 0  |  `. Times are microseconds.

Source: the layout of the published records of this device.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from cdmpp.analytic.kernels.call import Call
from cdmpp.errors import DataError
from cdmpp.files.json_stream import array_batches
from cdmpp.files.json_text import parse_json
from cdmpp.files.open_text import read_text
from cdmpp.profiling.formats.builder import EventBuilder
from cdmpp.profiling.schema import Profile
from cdmpp.text import counted

FORMAT = "HL-100 operator trace"
DEVICE = "hl-100"
CORES: Final = ("MME", "TPC")
_US_PER_S = 1e6
_SYMBOLS = "*PostGraph-symbol.json"
_DIMS, _BITS_PER_BYTE = 6, 8
_TENSOR = re.compile(
    r"^(?P<name>\S+)\s+\|\s+\[(?P<dims>[\d,\s]*)\]\s+\|\s+(?P<kind>float|int|uint)(?P<bits>\d+)"
    r"\s+\|\s+zp = (?P<zero>-?\d+), scale = (?P<scale>[-+.\deE]+)\s+\|\s+ModelParam = "
    r"(?P<param>[01])\b"
)


@dataclass(frozen=True)
class Hl100Tensor:
    """One tensor of an operator.

    Attributes:
        name: name in the graph.
        shape: at most six dimensions.
        dtype: e.g. `int8`.
        zero_point, scale: of its quantisation.
        is_parameter: whether it is a weight.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    zero_point: int
    scale: float
    is_parameter: bool

    @property
    def element_bytes(self) -> float:
        """Bytes of one element."""
        return int(re.sub(r"\D", "", self.dtype)) / _BITS_PER_BYTE

    @property
    def bytes(self) -> float:
        """Bytes of all elements."""
        return float(np.prod(self.shape)) * self.element_bytes


@dataclass(frozen=True)
class Hl100Operator:
    """One node of the graph, with its kind, inputs and outputs."""

    name: str
    kind: str
    inputs: tuple[Hl100Tensor, ...]
    outputs: tuple[Hl100Tensor, ...]


def is_hl100_trace(events: Sequence[Any]) -> bool:
    """Whether the first events of a trace name a process of the HL-100."""
    return any(
        isinstance(event, dict)
        and event.get("name") == "process_name"
        and isinstance(event.get("args"), dict)
        and _core(str(event["args"].get("name", ""))) is not None
        for event in events
    )


def read_hl100_trace(path: Path) -> Profile:
    """Returns the operators of a trace, with their tensors if the symbol file is beside it.

    Raises:
        DataError: a damaged file, or no operator.
    """
    operators, notes = _symbols_beside(path)
    builder = EventBuilder()
    core_of: dict[Any, str] = {}
    open_events: dict[tuple[Any, Any], list[tuple[str, float]]] = {}
    lost = 0
    for batch in array_batches(path, "traceEvents"):
        for event in batch:
            try:
                if event["ph"] == "M" and event["name"] == "process_name":
                    core = _core(event["args"]["name"])
                    if core is not None:
                        core_of[event["pid"]] = core
                    continue
                core = core_of.get(event.get("pid"))
                # Events named after a core belong to the core, not to an operator.
                if core is None or event["ph"] not in "BEX" or event["name"].startswith(CORES):
                    continue
                key, name, time = (event["pid"], event.get("tid")), event["name"], event["ts"]
                if event["ph"] == "B":
                    open_events.setdefault(key, []).append((name, float(time)))
                    continue
                if event["ph"] == "X":
                    start, duration = float(time), float(event["dur"])
                else:
                    stack = open_events.get(key) or [("", 0.0)]
                    if stack[-1][0] != name:
                        lost += 1
                        continue
                    start = stack.pop()[1]
                    duration = float(time) - start
                row = builder.row("operator", name, None, _call(core, operators.get(name)))
                builder.add(row, start, duration, builder.lane(key, f"{core} {key[1]}"))
            except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
                raise DataError(
                    f"{path}: an event does not match the trace format ({error}): "
                    f"{str(event)[:80]}; expected ph, name, pid and ts"
                ) from None
    if not len(builder):
        raise DataError(
            f"{path}: no operator ran on an MME or TPC; expected events between B and E of "
            "processes named *MME and *TPC"
        )
    lost += sum(len(stack) for stack in open_events.values())
    if lost:
        notes.append(f"left out {counted(lost, 'event')} with a beginning or an end only")
    rows, events = builder.finish(units_per_s=_US_PER_S)
    return Profile(str(path), FORMAT, rows, events, device_name=DEVICE, notes=tuple(notes))


def read_symbols(path: Path) -> dict[str, Hl100Operator]:
    """Returns name -> operator of a symbol file.

    Raises:
        DataError: not JSON, or an invalid description of a tensor.
    """
    try:
        nodes = parse_json(read_text(path))["nodes"]
        return {str(node["name"]): _operator(path, node) for node in nodes}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path}: not a symbol file of the HL-100 ({error}); expected nodes with name, op and "
            "attrs"
        ) from None


def _symbols_beside(path: Path) -> tuple[dict[str, Hl100Operator], list[str]]:
    found = sorted(path.parent.glob(_SYMBOLS))
    if len(found) == 1:
        return read_symbols(found[0]), []
    reason = "no symbol file" if not found else f"{len(found)} symbol files"
    return {}, [f"{reason} ({_SYMBOLS}) beside the trace, so tensors are unknown"]


def _core(process: str) -> str | None:
    return next((core for core in CORES if process.lstrip("*") == core), None)


def _call(core: str, operator: Hl100Operator | None) -> Call:
    if operator is None:
        return Call(core)
    return Call(
        f"{core} {operator.kind}", tuple(each.shape for each in operator.inputs),
        tuple(each.dtype for each in operator.inputs),
    )  # fmt: skip


def _operator(path: Path, node: dict[str, Any]) -> Hl100Operator:
    tensors: dict[str, list[Hl100Tensor]] = {"input": [], "output": []}
    for key, text in node["attrs"].items():
        role = next((role for role in tensors if key.startswith(role)), None)
        if role is not None:
            tensors[role].append(_tensor(path, text))
    return Hl100Operator(
        str(node["name"]), str(node["op"]), tuple(tensors["input"]), tuple(tensors["output"])
    )


def _tensor(path: Path, text: str) -> Hl100Tensor:
    found = _TENSOR.match(text)
    dims = [part for part in found["dims"].split(",") if part.strip()] if found else []
    if found is None or len(dims) > _DIMS:
        raise DataError(
            f"{path}: cannot read the tensor {text[:80]!r}; expected `name  |  [1,2,3]  |  int8  "
            "|  zp = 0, scale = 1.0  |  ModelParam = 0`, at most six dimensions"
        )
    return Hl100Tensor(
        found["name"], tuple(int(part) for part in dims), found["kind"] + found["bits"],
        int(found["zero"]), float(found["scale"]), found["param"] == "1",
    )  # fmt: skip
