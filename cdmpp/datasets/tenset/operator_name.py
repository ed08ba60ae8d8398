"""Operator names of tasks, such as `conv2d+add+relu`, from their compute graphs."""

from __future__ import annotations

import re

from cdmpp.datasets.tenset.dag_graph import ComputeOp, compute_ops, walk_expression
from cdmpp.programs.ansor.json_graph import JsonGraph

#: Pattern of an operation's tag or name -> operator name without layout (`_nhwc`); first match.
_PATTERNS = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (r"winograd", "winograd_conv2d"),
        (r"conv2d_transpose", "conv2d_transpose"),
        (r"conv3d_transpose", "conv3d_transpose"),
        (r"depthwise_?conv2d", "depthwise_conv2d"),
        (r"group_conv2d", "group_conv2d"),
        (r"conv3d", "conv3d"),
        (r"conv2d", "conv2d"),
        (r"conv1d", "conv1d"),
        (r"batch_matmul", "batch_matmul"),
        (r"dense|matmul|gemm", "dense"),
        (r"softmax", "softmax"),
        (r"adaptive_pool_sum", "adaptive_avg_pool"),
        (r"adaptive_pool_max", "adaptive_max_pool"),
        (r"pool_sum", "avg_pool"),
        (r"pool_max", "max_pool"),
    )
)
#: Stages of a Winograd convolution other than the one that gives the name.
_WINOGRAD_STAGES = frozenset(
    {"A", "B", "G", "data_pad", "input_tile", "data_pack", "kernel_pack", "bgemm", "inverse"}
)


def operator_name(graph: JsonGraph) -> str:
    """Returns the names of a task's operations in the order of computation, joined by `+`.

    Omits paddings and constants; the stages of one operator (softmax, Winograd convolution, average
    pooling) count as one. `copy` if no name is left.

    Raises:
        DataError: the graph is malformed.
    """
    ops = compute_ops(graph)
    winograd = any("winograd" in op.name + op.tag for op in ops)
    names: list[str] = []
    for op in ops:
        if winograd and op.name in _WINOGRAD_STAGES:
            continue
        name = _op_name(graph, op, previous=names[-1] if names else "")
        if name and not (names and names[-1] == name and name == "softmax"):
            names.append(name)
    return "+".join(names) or "copy"


def _op_name(graph: JsonGraph, op: ComputeOp, *, previous: str) -> str:
    """Returns the name of one operation; empty for paddings, constants and final divisions."""
    for pattern, name in _PATTERNS:
        if pattern.search(op.tag) or pattern.search(op.name.lower()):
            return name
    if op.reduce_axis_count:
        return _reduction_name(graph, op)
    if "pad" in op.tag or re.match(r"pad", op.name.lower()) or "const" in op.name:
        return ""
    if op.name in ("tensor", "compute"):
        if op.name == "tensor" and previous.endswith("avg_pool"):
            return ""
        return _elementwise_name(graph, op)
    return re.sub(r"^T_", "", op.name).lower()


def _reduction_name(graph: JsonGraph, op: ComputeOp) -> str:
    """Returns the name of an untagged reduction: a sum of products is a matmul or a convolution."""
    nodes = [node for body in op.body for node in walk_expression(graph, body)]
    kinds = {graph.type_key(node) for node in nodes}
    loads = sum(graph.type_key(node) == "tir.ProducerLoad" for node in nodes)
    if loads >= 2 and "tir.Mul" in kinds:
        if op.reduce_axis_count == 1:
            return "batch_matmul" if len(op.axis_extents or ()) > 2 else "dense"
        return f"conv{op.reduce_axis_count - 1}d"
    combiner = "max" if "tir.Max" in kinds else "min" if "tir.Min" in kinds else "sum"
    return f"reduce_{combiner}"


def _elementwise_name(graph: JsonGraph, op: ComputeOp) -> str:
    """Returns the name of an element-wise operation without a specific name."""
    kinds = {graph.type_key(node) for body in op.body for node in walk_expression(graph, body)}
    if {"tir.Max", "tir.Min"} <= kinds:
        return "clip"
    body = graph.type_key(op.body[0]) if op.body else ""
    known = {"tir.Max": "relu", "tir.Add": "add", "tir.Mul": "multiply", "tir.Div": "divide"}
    return known.get(body, "elemwise")
