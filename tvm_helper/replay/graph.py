"""Graphs of networks: ONNX or torch.export -> relax -> fused kernels with data edges."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cdmpp.errors import DataError
from cdmpp.networks.onnx_files.cut import CutOperator
from cdmpp.replay.graph import Operator, OperatorGraph
from tvm_helper.compat import Target, meta_schedule, relax, tvm
from tvm_helper.tasks.network_tasks import (
    NetworkTask,
    NetworkTasks,
    cut_operators,
    fused_network,
    network_tasks,
)

#: Label of the only device.
DEVICE = "device"
#: Calls of relax that return another view of a tensor.
_VIEWS = frozenset({
    "relax.reshape", "relax.flatten", "relax.squeeze", "relax.expand_dims",
    "relax.tensor_to_shape", "relax.shape_of",
})  # fmt: skip
#: Operators that read only some rows of a table: at most as many bytes as the result has.
_TABLE_READERS = frozenset({"take", "gather", "gather_elements", "gather_nd"})


@dataclass(frozen=True)
class KernelGraph:
    """Graph of a network's kernels.

    Attributes:
        graph: one operator per call of a kernel; its task is the key of the kernel.
        tasks: kernels that TVM can schedule, with their number of calls.
        module: relax module of the fused network.
        constants: operator id -> the weights among its arguments, in their order; None for other
            arguments.
        cut: operator id -> operator that is not in the module.
    """

    graph: OperatorGraph
    tasks: NetworkTasks
    module: Any
    constants: Mapping[str, tuple[Any | None, ...]] = field(default_factory=dict)
    cut: Mapping[str, CutOperator] = field(default_factory=dict)

    def task(self, key: str) -> NetworkTask | None:
        """Returns the task of a key; None for a kernel that is not a tensor program."""
        return next((one for one in self.tasks.tasks if one.workload_key == key), None)


def network_graph(
    module: Any, target: Target, *, name: str, source: str = "", device: str = ""
) -> KernelGraph:
    """Returns the graph of a relax module.

    Reshapes that become views in the compiled network are not operators; their consumers depend on
    their producers.

    Args:
        target: compile target.
        source: file of the network, if any.
        device: name of the network's DeviceSpec; empty = no device.

    Raises:
        DataError: a shape is dynamic, or the network calls no kernel.
    """
    tasks = network_tasks(module, target)
    fused = fused_network(module, target)
    views = relax.transform.RewriteDataflowReshape()(fused)
    keys: dict[str, str] = {}
    known = {task.workload_key: task for task in tasks.tasks}
    cut = cut_operators(module)
    walker = _Walker(views, keys, known)
    operators = walker.operators(source or name, cut)
    graph = OperatorGraph(
        name=name, operators=operators, devices={DEVICE: device} if device else {}, source=source
    )
    added = operators[len(operators) - len(cut) :]
    named = {one.id: other for one, other in zip(added, cut, strict=True)}
    return KernelGraph(graph, tasks, fused, walker.constants, named)


class _Walker:
    """Visitor of the bindings of `main`, in order.

    Attributes:
        constants: see `KernelGraph`.
    """

    def __init__(self, module: Any, keys: dict[str, str], tasks: dict[str, NetworkTask]) -> None:
        self._module, self._keys, self._tasks = module, keys, tasks
        self._producers: dict[Any, tuple[str, ...]] = {}
        self._found: list[Operator] = []
        self.constants: dict[str, tuple[Any | None, ...]] = {}

    def operators(self, source: str, cut: Sequence[CutOperator]) -> tuple[Operator, ...]:
        """Returns the operators of `main`, followed by those that were cut out of it."""
        main = self._module["main"]
        for block in main.body.blocks if isinstance(main.body, relax.SeqExpr) else ():
            for binding in block.bindings:
                self._bind(binding.var, binding.value)
        for one in cut:
            identity = str(len(self._found) + 1)
            self._found.append(
                Operator(
                    identity, one.name, one.kind, device=DEVICE, flop=one.flop, bytes=one.bytes,
                    shapes=one.shapes,
                )
            )  # fmt: skip
        if not self._found:
            raise DataError(
                f"{source}: the network calls no kernel; expected at least one operator"
            )
        return tuple(self._found)

    def _bind(self, variable: Any, value: Any) -> None:
        if isinstance(value, relax.Call):
            self._producers[variable] = self._call(value)
        else:
            self._producers[variable] = self._from(value)

    def _from(self, value: Any) -> tuple[str, ...]:
        """Returns the operators that produce a value."""
        if isinstance(value, relax.Var):
            return self._producers.get(value, ())
        if isinstance(value, relax.TupleGetItem):
            return self._from(value.tuple_value)
        if isinstance(value, relax.Tuple):
            return tuple(dict.fromkeys(part for one in value.fields for part in self._from(one)))
        return ()

    def _call(self, call: Any) -> tuple[str, ...]:
        name = str(call.op.name) if isinstance(call.op, tvm.ir.Op) else ""
        after = tuple(dict.fromkeys(part for value in call.args for part in self._from(value)))
        if name in _VIEWS:
            return after
        identity = str(len(self._found) + 1)
        if name == "relax.call_tir":
            kernel = call.args[0]
            function = self._module[kernel]
            self._found.append(self._kernel(identity, str(kernel.name_hint), function, after, call))
        else:
            what = name or str(getattr(call.op, "global_symbol", "call"))
            callee = call.args[0] if name.startswith("relax.call_") else None
            label = str(getattr(callee, "global_symbol", what))
            shapes, sizes = _tensor_sizes([*call.args, call], label)
            self._found.append(
                Operator(identity, label, what, after, DEVICE, bytes=sum(sizes), shapes=shapes)
            )
        return (identity,)

    def _kernel(
        self, identity: str, name: str, function: Any, after: tuple[str, ...], call: Any
    ) -> Operator:
        if name not in self._keys:
            main = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
            self._keys[name] = str(meta_schedule.utils.shash2hex(main))
        key = self._keys[name]
        task = self._tasks.get(key)
        given = call.args[1].fields if isinstance(call.args[1], relax.Tuple) else call.args[1:2]
        self.constants[identity] = tuple(
            one.value if isinstance(one, tvm.ir.GenericConst) else None for one in given
        )
        shapes, sizes = _tensor_sizes([*call.args[1:], call], name)
        kind = task.operator if task else name
        if _TABLE_READERS.intersection(kind.split("+")):
            sizes = [min(size, sizes[-1]) for size in sizes]
        return Operator(
            id=identity, name=name, kind=kind, after=after,
            device=DEVICE, bytes=sum(sizes), flop=_flop(function), task=key,
            shapes=task.shapes if task else shapes,
        )  # fmt: skip


def _tensor_sizes(values: Iterable[Any], name: str) -> tuple[tuple[str, ...], list[float]]:
    """Returns the shape and the bytes of each tensor.

    Raises:
        DataError: a shape is not constant.
    """
    shapes: list[str] = []
    total: list[float] = []
    for value in values:
        for kind in _tensor_types(getattr(value, "ty", None)):
            shape = getattr(kind, "shape", None)
            extents = getattr(shape, "values", None)
            if extents is None or not all(isinstance(n, tvm.tirx.IntImm) for n in extents):
                raise DataError(
                    f"kernel {name}: the shape {shape} is dynamic; export the network with "
                    "constant shapes (no dynamic batch or length)"
                )
            sizes = [int(n) for n in extents]
            shapes.append("x".join(map(str, sizes)) or "scalar")
            total.append(float(math.prod(sizes) * tvm.runtime.DataType(str(kind.dtype)).itemsize))
    return tuple(shapes), total


def _tensor_types(kind: Any) -> list[Any]:
    """Returns the tensor types in a type, including those in tuples."""
    if isinstance(kind, relax.TensorType):
        return [kind]
    if isinstance(kind, relax.TupleType):
        return [part for one in kind.fields for part in _tensor_types(one)]
    return []


def _flop(function: Any) -> float | None:
    """Returns TVM's estimate of a kernel's FLOPs; None if there is none."""
    try:
        count = float(tvm.s_tir.analysis.estimate_tir_flops(tvm.IRModule({"main": function})))
    except Exception:  # TVM cannot count every program, such as data-dependent loops
        return None
    return count if count > 0 else None
