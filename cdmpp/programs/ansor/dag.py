"""Reads Tenset's pickled ComputeDAG without TVM: operations, axes and expressions."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from cdmpp.errors import DataError
from cdmpp.programs.ansor.dag_json import ExprGraph
from cdmpp.programs.loops.expr import Buffer, Expr, variables_of

#: Maximum number of points at which an extent is evaluated to check that it is constant.
_MAX_POINTS = 65536
_EVALUATE: Mapping[str, Callable[[int, int], int]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "min": min, "max": max,
    "floordiv": operator.floordiv, "floormod": operator.mod, "eq": operator.eq, "ne": operator.ne,
    "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
    "and": lambda left, right: left and right, "or": lambda left, right: left or right,
    "div": lambda left, right: int(left / right),
    "mod": lambda left, right: left - right * int(left / right),
}  # fmt: skip

CombinerKind = Literal["sum", "prod", "max", "min", "general"]


@dataclass(frozen=True)
class Axis:
    """An iteration axis over `[minimum, minimum + extent)`; `name` is unique in its Dag."""

    name: str
    extent: int
    minimum: int = 0


@dataclass(frozen=True)
class Reduction:
    """The combiner of a reduction.

    Attributes:
        kind: the standard combiner, or `general`.
        left: variable names of the accumulators, one per output.
        right: variable names of the next values, one per output.
        results: new accumulators in terms of `left` and `right`, one per output.
        identities: start values, one per output.
        condition: restricts the combined points; None = all.
        init: start values that replace `identities`; empty = none.
    """

    kind: CombinerKind
    left: tuple[str, ...]
    right: tuple[str, ...]
    results: tuple[Expr, ...]
    identities: tuple[Expr, ...]
    condition: Expr | None = None
    init: tuple[Expr, ...] = ()


@dataclass(frozen=True, eq=False)
class DagOp:
    """One operation (one stage of Ansor's initial state). Compared by identity.

    Attributes:
        name: display name, not unique.
        kind: `placeholder` has outputs only; `compute` has axes and bodies.
        axes: spatial axes, one per dimension.
        reduce_axes: reduction axes; empty without reduction.
        body: one expression per output; with a reduction, the combined value.
        reduce: the combiner; None without reduction.
        outputs: output tensors, all of the same shape.
        inputs: tensors read by `body`, each once, in order of first use (innermost first).
        tag: TVM's operator tag such as `conv2d_nhwc`, may be empty.
        attrs: TVM's attributes as plain values.
    """

    name: str
    kind: Literal["placeholder", "compute"]
    outputs: tuple[Buffer, ...]
    axes: tuple[Axis, ...] = ()
    reduce_axes: tuple[Axis, ...] = ()
    body: tuple[Expr, ...] = ()
    reduce: Reduction | None = None
    inputs: tuple[Buffer, ...] = ()
    tag: str = ""
    attrs: dict[str, Any] = field(default_factory=dict)

    @property
    def dtype(self) -> str:
        """Element type of the first output."""
        return self.outputs[0].dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of every output, in elements."""
        return self.outputs[0].shape


@dataclass(frozen=True)
class Dag:
    """A computation.

    Attributes:
        ops: operations in the order of Ansor's stages; stage numbers in steps index this tuple.
        outputs: indices of operations that no other operation reads.
        parameters: tensors of the program's signature, inputs before outputs.
    """

    ops: tuple[DagOp, ...]
    outputs: tuple[int, ...]
    parameters: tuple[Buffer, ...]

    def producers(self) -> dict[Buffer, int]:
        """Returns tensor -> index in `ops` of the operation that computes it."""
        return {buffer: i for i, op in enumerate(self.ops) for buffer in op.outputs}


def depth_first_order(dag: Dag) -> list[int]:
    """Returns operation numbers, producers first, in depth-first order from the outputs."""
    producers = dag.producers()
    order: dict[int, None] = {}

    def visit(index: int) -> None:
        if index in order:
            return
        for buffer in dag.ops[index].inputs:
            visit(producers[buffer])
        order.setdefault(index)

    for output in dag.outputs:
        visit(output)
    return list(order)


def evaluate_int(expr: Expr, values: dict[str, int]) -> int:
    """Returns the value of an integer (or boolean) expression.

    Args:
        expr: an expression of constants, variables, arithmetic, comparisons and `select`.
        values: variable -> value.

    Raises:
        DataError: the expression contains a load, a call or an unknown variable.
    """
    if expr.op == "const":
        return int(expr.value)
    if expr.op == "var" and expr.value in values:
        return values[expr.value]
    if expr.op == "select":
        condition, on_true, on_false = expr.args
        return evaluate_int(on_true if evaluate_int(condition, values) else on_false, values)
    if expr.op in ("cast", "not"):
        value = evaluate_int(expr.args[0], values)
        return value if expr.op == "cast" else int(not value)
    if expr.op in _EVALUATE:
        left, right = (evaluate_int(argument, values) for argument in expr.args)
        return int(_EVALUATE[expr.op](left, right))
    raise DataError(f"Cannot evaluate {expr!r}: expected integer arithmetic on known variables.")


def loads_of(expr: Expr) -> list[Buffer]:
    """Returns the tensors read in an expression, each once, inner reads before outer ones."""
    found: dict[Buffer, None] = {}

    def visit(node: Expr) -> None:
        for argument in node.args:
            visit(argument)
        if node.op == "load":
            found.setdefault(node.value)

    visit(expr)
    return list(found)


def parse_dag(dag_json: str) -> Dag:
    """Reads the JSON node graph of a pickled ComputeDAG (TVM 0.8).

    Args:
        dag_json: the text under `tensors` in the pickled state.

    Returns:
        The computation, operations ordered as Ansor orders its stages.

    Raises:
        DataError: the text is not such a graph or uses an unsupported operation.
    """
    graph = ExprGraph(dag_json)
    try:
        tensors = graph.items(graph.root)
        order = _stage_order(graph, [graph.op_of_tensor(tensor)[0] for tensor in tensors])
        parameters = tuple(graph.buffer(tensor) for tensor in tensors)
        ops = tuple(_read_op(graph, index) for index in order)
    except DataError:
        raise
    except (
        LookupError, ValueError, TypeError, AttributeError, ArithmeticError, RecursionError,
    ) as error:  # fmt: skip
        raise DataError(
            f"Cannot read the computation graph of a task: {type(error).__name__}: {error}; "
            "expected TVM 0.8's node graph. Unpack network_info again."
        ) from error
    read = {buffer for op in ops for buffer in op.inputs}
    outputs = tuple(
        i
        for i, op in enumerate(ops)
        if op.kind == "compute" and not any(buffer in read for buffer in op.outputs)
    )
    return Dag(ops, outputs, parameters)


def _input_tensors(graph: ExprGraph, op: int) -> list[int]:
    """Returns one tensor node for each tensor that an operation reads, in order of first use."""
    if graph.type_key(op) == "PlaceholderOp":
        return []
    found: dict[tuple[int, int], int] = {}
    seen: set[int] = set()

    def visit(index: int) -> None:
        if index in seen:
            return
        seen.add(index)
        kind = graph.type_key(index)
        if kind == "tir.ProducerLoad":
            visit(graph.reference(index, "indices"))
            tensor = graph.reference(index, "producer")
            found.setdefault(graph.op_of_tensor(tensor), tensor)
        elif kind == "tir.Reduce":
            for name in ("source", "init", "condition"):
                visit(graph.reference(index, name))
        elif kind == "Array":
            for item in graph.items(index):
                visit(item)
        else:
            names = ("a", "b", "condition", "true_value", "false_value", "args")
            attrs = graph.nodes[index].get("attrs", {})
            for name in (*names, "value") if kind == "tir.Cast" else names:
                if name in attrs:
                    visit(int(attrs[name]))

    visit(graph.reference(op, "body"))
    return list(found.values())


def _stage_order(graph: ExprGraph, roots: list[int]) -> list[int]:
    """Returns operation nodes in the order of Ansor's stage numbers.

    A stack-based search from the last tensor of the signature ranks the operations; an operation is
    pushed when it is first read. Then, among the operations whose inputs are all placed, the one of
    the highest rank comes next.
    """
    rank: dict[int, int] = {}
    waiting: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    stack = list(roots)
    pushed: set[int] = set()
    while stack:
        op = stack.pop()
        if op in rank:
            continue
        rank[op] = len(rank)
        if graph.type_key(op) not in ("PlaceholderOp", "ComputeOp"):
            raise DataError(
                f"Cannot read a computation graph: operation of type {graph.type_key(op)!r}; "
                "expected PlaceholderOp or ComputeOp. Leave this task out."
            )
        inputs = [graph.op_of_tensor(tensor)[0] for tensor in _input_tensors(graph, op)]
        waiting[op] = len(inputs)
        for source in inputs:
            readers.setdefault(source, []).append(op)
        for source in inputs:
            if source not in pushed:
                pushed.add(source)
                stack.append(source)
    ready = [op for op, count in waiting.items() if count == 0]
    order = []
    while ready:
        op = max(ready, key=rank.__getitem__)
        ready.remove(op)
        order.append(op)
        for reader in readers.get(op, []):
            waiting[reader] -= 1
            if waiting[reader] == 0:
                ready.append(reader)
    if len(order) != len(rank):
        raise DataError("Cannot read a computation graph: its operations form a cycle.")
    return order


def _read_op(graph: ExprGraph, index: int) -> DagOp:
    name, tag = graph.required(index, "name"), graph.required(index, "tag")
    attrs = (
        graph.attrs_map(graph.reference(index, "attrs")) if graph.reference(index, "attrs") else {}
    )
    if graph.type_key(index) == "PlaceholderOp":
        shape, dtype = graph.shape(graph.reference(index, "shape")), graph.required(index, "dtype")
        output = graph.output(index, 0, dtype, shape)
        return DagOp(name, "placeholder", (output,), tag=tag, attrs=attrs)
    axes = tuple(_read_axis(graph, item) for item in graph.items(graph.reference(index, "axis")))
    reduce_axes = tuple(
        _read_axis(graph, item, axes) for item in graph.items(graph.reference(index, "reduce_axis"))
    )
    bodies = graph.items(graph.reference(index, "body"))
    inputs = tuple(graph.buffer(tensor) for tensor in _input_tensors(graph, index))
    reduction: Reduction | None = None
    if graph.type_key(bodies[0]) == "tir.Reduce":
        reduction = _read_reduction(graph, bodies[0])
        values = tuple(
            graph.expr(item) for item in graph.items(graph.reference(bodies[0], "source"))
        )
    else:
        values = tuple(graph.expr(item) for item in bodies)
    shape = tuple(axis.extent for axis in axes)
    outputs = tuple(
        graph.output(index, number, value.dtype, shape) for number, value in enumerate(values)
    )
    return DagOp(
        name, "compute", outputs, axes, reduce_axes, values, reduction, inputs, tag, attrs
    )  # fmt: skip


def _read_axis(graph: ExprGraph, index: int, outer: tuple[Axis, ...] = ()) -> Axis:
    domain = graph.reference(index, "dom")
    extent = graph.reference(domain, "extent")
    return Axis(
        graph.var_name(graph.reference(index, "var")),
        graph.constant(extent)
        if graph.type_key(extent) == "IntImm"
        else _constant_over(graph.expr(extent), outer),
        graph.constant(graph.reference(domain, "min")),
    )


def _constant_over(expr: Expr, axes: tuple[Axis, ...]) -> int:
    """Returns the constant value of an integer expression on all points of `axes`.

    Adaptive pooling, for example, has windows of (i + 1) * n - i * n.
    """
    used = [axis for axis in axes if axis.name in variables_of(expr)]
    ranges = [range(axis.minimum, axis.minimum + axis.extent) for axis in used]
    if math.prod(len(values) for values in ranges) <= _MAX_POINTS:
        names = [axis.name for axis in used]
        found = {
            evaluate_int(expr, dict(zip(names, point, strict=True)))
            for point in itertools.product(*ranges)
        }
        if len(found) == 1:
            return found.pop()
    raise DataError(
        f"Cannot read a computation graph: the extent {expr!r} of an axis is not constant. "
        "Windows of varying size are not supported; leave this task out."
    )


def _read_reduction(graph: ExprGraph, index: int) -> Reduction:
    combiner = graph.reference(index, "combiner")
    left = tuple(graph.var_name(item) for item in graph.items(graph.reference(combiner, "lhs")))
    right = tuple(graph.var_name(item) for item in graph.items(graph.reference(combiner, "rhs")))
    results = tuple(graph.expr(item) for item in graph.items(graph.reference(combiner, "result")))
    identity = graph.items(graph.reference(combiner, "identity_element"))
    condition = graph.expr(graph.reference(index, "condition"))
    always = condition.op == "const" and bool(condition.value)
    return Reduction(
        _combiner_kind(left, right, results),
        left,
        right,
        results,
        tuple(graph.expr(item) for item in identity),
        None if always else condition,
        tuple(graph.expr(item) for item in graph.items(graph.reference(index, "init"))),
    )


def _combiner_kind(
    left: tuple[str, ...], right: tuple[str, ...], results: tuple[Expr, ...]
) -> CombinerKind:
    if len(results) == 1 and all(argument.op == "var" for argument in results[0].args):
        names = tuple(argument.value for argument in results[0].args)
        kinds: dict[str, CombinerKind] = {"add": "sum", "mul": "prod", "max": "max", "min": "min"}
        if names in ((left[0], right[0]), (right[0], left[0])) and results[0].op in kinds:
            return kinds[results[0].op]
    return "general"
