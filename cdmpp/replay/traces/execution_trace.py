"""Execution traces of torch's ExecutionTraceObserver: operators with tensors and data edges."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from cdmpp.analytic.kernels.work import DTYPE_BYTES, operator_flop
from cdmpp.errors import DataError
from cdmpp.files.json_stream import array_batches
from cdmpp.replay.costs import OperatorCost
from cdmpp.replay.graph import Operator, OperatorGraph
from cdmpp.replay.traces.host_operators import is_view, plain_name
from cdmpp.replay.traces.iteration_walk import WalkedOperator, walked_kernel
from cdmpp.replay.traces.overheads import HostOverheads
from cdmpp.replay.traces.trace_events import STEP, is_operator_annotation
from cdmpp.text import counted

#: Prefixes of nodes for a process or a thread, in all versions of torch.
_ROOTS = ("[pytorch|profiler|", "__ROOT_")
#: torch's RecordScope of `record_function` in a user's program.
_USER_SCOPE = 7
#: Wrappers that only pass a tensor on if no operator is below them.
_HANDS_ON = frozenset({"AccumulateGrad"})
_MOST_NESTED = 200
#: Device of operators on the host.
HOST = "cpu"
#: Launch call if the overheads name none.
_LAUNCH = "cudaLaunchKernel"

#: (storage, device, bytes).
Tensor = tuple[int, str, float]


@dataclass(frozen=True)
class TracedCall:
    """A call of an operator, with the calls that it made.

    Attributes:
        id: id of its node.
        name: name without namespace.
        function: number of the record function; -1 = unknown.
        inputs, outputs: its own tensors.
        shapes: shapes of its inputs, including those in lists.
        is_operator: whether torch's dispatcher ran it; otherwise it is a wrapper or user code.
        calls: calls that it made, in order.
    """

    id: int
    name: str
    function: int
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    shapes: tuple[tuple[int, ...], ...]
    is_operator: bool = True
    calls: list[TracedCall] = field(default_factory=list)

    @property
    def shape_texts(self) -> tuple[str, ...]:
        """Its shapes as texts such as `2048x512`."""
        return tuple("x".join(map(str, shape)) for shape in self.shapes)

    def everything(self) -> Iterator[TracedCall]:
        """Yields this call and all calls below it."""
        yield self
        for one in self.calls:
            yield from one.everything()

    def has_tensors(self) -> bool:
        """Whether this call or one below it has a tensor."""
        return any(one.inputs or one.outputs for one in self.everything())

    def computing(self) -> list[TracedCall]:
        """Returns the calls that do its work, without views: an operator of torch itself, or the
        operators below a wrapper (a backward function, an optimiser's step).

        A wrapper without computing calls below it is returned itself, as only its name is known.
        """
        if self.is_operator:
            return [] if is_view(self.name) else [self]
        below = [one for call in self.calls for one in call.computing()]
        if below or is_view(self.name) or (self.name in _HANDS_ON and self.has_tensors()):
            return below
        return [self]


def read_calls(path: Path) -> list[TracedCall]:
    """Returns the calls that no other operator made, in order.

    Ranges marked by a program (`record_function`, `ProfilerStep`) are left out, but not the calls
    in them, as in profiles.

    Raises:
        DataError: unreadable, truncated, or without operators.
    """
    path = Path(path)
    calls: dict[int, TracedCall] = {}
    parents: dict[int, int] = {}
    hidden: set[int] = set()
    count = 0
    for count, value in enumerate(chain.from_iterable(array_batches(path, "nodes")), start=1):
        call, parent, is_hidden = _node(value, f"{path}: node {count}")
        calls[call.id], parents[call.id] = call, parent
        if is_hidden:
            hidden.add(call.id)
    top = []
    for identity in sorted(calls):
        if identity in hidden:
            continue
        parent, passed = parents[identity], {identity}
        while parent in hidden and parent not in passed:
            passed.add(parent)
            parent = parents[parent]
        if parent in calls and parent not in hidden:
            calls[parent].calls.append(calls[identity])
        else:
            top.append(calls[identity])
    level = top
    for _ in range(_MOST_NESTED):
        level = [call for one in level for call in one.calls]
    if level:
        raise DataError(f"{path}: calls nested more than {_MOST_NESTED} deep; the file is damaged")
    if not top:
        raise DataError(
            f"{path}: {counted(count, 'node')}, but no operator; expected the file that an "
            "ExecutionTraceObserver writes between start() and stop()"
        )
    return top


def read_execution_trace(
    path: Path,
    times_s: Mapping[int, float] | None = None,
    device_times_s: Mapping[int, float] | None = None,
) -> OperatorGraph:
    """Reads the top-level operators of an execution trace and the tensors passed between them.

    An operator depends on the last writer of each storage that it reads. A wrapper (a backward
    function, an optimiser's step) has the tensors of the operators below it; without a measured
    time, those operators replace it. Bytes are those of the tensors, except that a lookup reads at
    most as much as it writes. Operations come from names and shapes if known. Views are left out.

    Args:
        times_s: number of the record function -> measured seconds, from a chrome trace of the same
            run.
        device_times_s: number of the record function -> measured seconds of the kernels that it
            launched, for operators on devices.

    Raises:
        DataError: see `read_calls`, or all operators are views.
    """
    path = Path(path)
    operators = _operators(read_calls(path), times_s or {}, device_times_s or {})
    if not operators:
        raise DataError(f"{path}: all its operators are views; expected operators that compute")
    return OperatorGraph(name=path.name.partition(".")[0], operators=operators, source=str(path))


def walked_calls(
    calls: Iterable[TracedCall], costs: Mapping[str, OperatorCost], overheads: HostOverheads
) -> tuple[list[WalkedOperator], tuple[str, ...]]:
    """Returns top-level calls as operators of a walk, and the names of those with assumed launches.

    An operator launches what the overheads name, but at least one kernel per computing operator
    below it.

    Args:
        costs: id of an operator of `read_execution_trace` -> its cost, for operators on a device.
    """
    known = [name for name in overheads.t4 if "launch" in name.lower()]
    usual = max(known, key=lambda name: overheads.t4[name].count, default=_LAUNCH)
    walked = []
    assumed: dict[str, None] = {}
    for one in calls:
        found = [costs[str(call.id)] for call in one.computing() if str(call.id) in costs]
        launches = overheads.launches.get(one.name, ())
        if len(launches) < len(found):
            assumed[one.name] = None
            launches = (*launches, *(usual,) * (len(found) - len(launches)))
        kernels = tuple(walked_kernel(cost.latency_s, *cost.ends_s) for cost in found)
        walked.append(WalkedOperator(one.name, launches, kernels))
    return walked, tuple(assumed)


def _operators(
    top: Sequence[TracedCall],
    times_s: Mapping[int, float],
    device_times_s: Mapping[int, float],
) -> tuple[Operator, ...]:
    writer: dict[tuple[int, str], str] = {}
    found = []
    usual = next((one[1] for one in _tensors_of(top)), HOST)
    kept = [
        one for call in top for one in ([call] if call.function in times_s else call.computing())
    ]
    for call in kept:
        inside = list(call.everything()) if not (call.inputs or call.outputs) else [call]
        inputs = [tensor for one in inside for tensor in one.inputs]
        outputs = [tensor for one in inside for tensor in one.outputs]
        outputs += [one.inputs[0] for one in inside if one.name.endswith("_") and one.inputs]
        after = dict.fromkeys(writer[one[:2]] for one in inputs if one[:2] in writer)
        device = next((place for _, place, _ in (*outputs, *inputs)), usual)
        most = sum(one[2] for one in call.outputs) if _is_lookup(call.name) else math.inf
        distinct = {one[:2]: min(one[2], most) for one in inputs}
        distinct |= {one[:2]: one[2] for one in outputs}
        found.append(
            Operator(
                id=str(call.id), name=call.name, kind=call.name, after=tuple(after), device=device,
                shapes=call.shape_texts, flop=operator_flop(call.name, call.shapes),
                bytes=sum(distinct.values()) or None,
                time_s=_time_s(call, device, times_s, device_times_s),
            )
        )  # fmt: skip
        writer |= dict.fromkeys(distinct.keys() & {one[:2] for one in outputs}, str(call.id))
    return tuple(found)


def _time_s(
    call: TracedCall,
    device: str,
    times_s: Mapping[int, float],
    device_times_s: Mapping[int, float],
) -> float | None:
    on_host_s = times_s.get(call.function)
    return on_host_s if device == HOST else device_times_s.get(call.function, on_host_s)


def _is_lookup(name: str) -> bool:
    """Whether an operator reads only some rows of a table."""
    low = name.lower()
    is_forward = "backward" not in low
    return is_forward and any(word in low for word in ("embedding", "lookup", "index", "gather"))


def _tensors_of(calls: Iterable[TracedCall]) -> Iterator[Tensor]:
    for call in calls:
        for one in call.everything():
            yield from (*one.outputs, *one.inputs)


def _node(value: Any, where: str) -> tuple[TracedCall, int, bool]:
    """Reads a node of the current schema, or of the older one with flat fields.

    Returns:
        The call, the id of its parent, and whether it is only a range around other calls.
    """
    try:
        inputs, outputs = value["inputs"], value["outputs"]
        if isinstance(inputs, dict):
            read = _tensors(inputs["values"], inputs["shapes"], inputs["types"])
            written = _tensors(outputs["values"], outputs["shapes"], outputs["types"])
            attributes = {entry["name"]: entry["value"] for entry in value.get("attrs", [])}
            parent = value["ctrl_deps"]
        else:
            read = _tensors(inputs, value["input_shapes"], value["input_types"])
            written = _tensors(outputs, value["output_shapes"], value["output_types"])
            attributes, parent = value, value["parent"]
        name = str(value["name"])
        is_range = name.startswith((*_ROOTS, STEP)) or (
            attributes.get("scope") == _USER_SCOPE and not is_operator_annotation(name)
        )
        call = TracedCall(
            int(value["id"]), plain_name(name), int(attributes.get("rf_id", -1)),
            tuple(tensor for tensor, _ in read), tuple(tensor for tensor, _ in written),
            tuple(shape for _, shape in read if shape), "::" in name and "autograd::" not in name,
        )  # fmt: skip
        return call, int(parent), is_range
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise DataError(
            f"{where}: {type(error).__name__} {error}; expected id, name, ctrl_deps or parent, "
            "inputs and outputs as ExecutionTraceObserver writes them"
        ) from None


def _tensors(
    values: Sequence[Any], shapes: Sequence[Any], types: Sequence[Any]
) -> list[tuple[Tensor, tuple[int, ...]]]:
    """Returns the tensors among some arguments, including those in lists, with their shapes."""
    found: list[tuple[Tensor, tuple[int, ...]]] = []
    for value, shape, kind in zip(values, shapes, types, strict=False):
        if not isinstance(kind, str):
            continue
        if kind.startswith("GenericList[") and isinstance(value, list):
            found += _tensors(value, shape, kind[len("GenericList[") : -1].split(","))
        elif kind.startswith("Tensor"):
            sizes = tuple(int(n) for n in shape) if _is_shape(shape) else ()
            if isinstance(value, list):  # tensor, storage, offset, elements, bytes of one, device
                device = str(value[5]) if len(value) > 5 else HOST
                tensor = int(value[1]), device, float(value[3]) * float(value[4])
            elif isinstance(value, int):  # older versions of torch: only the tensor's number
                size = DTYPE_BYTES.get(kind.removeprefix("Tensor(").removesuffix(")"), 4)
                tensor = value, HOST, float(size * math.prod(sizes))
            else:
                continue
            found.append((tensor, sizes))
    return found


def _is_shape(shape: Any) -> bool:
    return isinstance(shape, list) and all(isinstance(n, int) and 0 <= n < math.inf for n in shape)
