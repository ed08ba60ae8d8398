"""Constant folding of the shape arithmetic in an ONNX model before its import.

Exporters write sizes as a graph of small operators (Shape, Slice, Concat, Reshape). With known
input sizes, `onnx` infers the shapes and its reference evaluator computes that graph.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Maximum number of elements of a folded tensor; larger tensors are data, not sizes.
_MOST_ELEMENTS = 4096
_MOST_ROUNDS = 64
_RANDOM = frozenset({
    "RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial",
    "Bernoulli",
})  # fmt: skip


def shapes_of(model: Any) -> dict[str, tuple[Any, tuple[int, ...]]]:
    """Returns name -> (ONNX type, shape) of the tensors with constant shapes."""
    graph = inferred(model).graph
    found = {
        one.name: (one.type.tensor_type.elem_type, shape)
        for one in (*graph.input, *graph.value_info, *graph.output)
        if (shape := _constant_shape(one)) is not None
    }
    return found | {one.name: (one.data_type, tuple(one.dims)) for one in graph.initializer}


def inferred(model: Any) -> Any:
    """Returns a model with the shapes that `onnx` infers; the model itself if inference fails."""
    from onnx import shape_inference

    try:
        return shape_inference.infer_shapes(model, data_prop=True)
    except Exception:  # a model of more than 2 GiB, or an inconsistent one
        return model


def contradicts_itself(model: Any) -> bool:
    """Returns whether shapes of a model do not fit its operators."""
    from onnx import shape_inference

    try:
        shape_inference.infer_shapes(model, strict_mode=True)
    except shape_inference.InferenceError:
        return True
    except Exception:  # a model of more than 2 GiB
        return False
    return False


def fold(model: Any) -> None:
    """Folds nodes that depend only on constant sizes, in place; an `If` with a constant condition
    is replaced by its branch.

    Args:
        model: a model whose inputs have constant shapes.
    """
    for _ in range(_MOST_ROUNDS):
        if not _fold_once(model):
            return


def _fold_once(model: Any) -> bool:
    """Returns whether anything was folded."""
    from onnx import numpy_helper

    graph = model.graph
    shapes = shapes_of(model)
    values = {
        one.name: numpy_helper.to_array(one)
        for one in graph.initializer
        if math.prod(one.dims) <= _MOST_ELEMENTS
    }
    kept: list[Any] = []
    folded: dict[str, NDArray[Any]] = {}
    is_changed = False
    for node in graph.node:
        results = _values(node, values, shapes, model)
        if results is not None:
            values |= results
            folded |= results
        elif node.op_type == "If" and node.input[0] in values:
            kept += _branch(model, node, bool(values[node.input[0]]))
            is_changed = True
        else:
            kept.append(node)
    del graph.node[:]
    graph.node.extend(kept)
    graph.initializer.extend(numpy_helper.from_array(one, key) for key, one in folded.items())
    return is_changed or bool(folded)


def _values(
    node: Any,
    values: Mapping[str, NDArray[Any]],
    shapes: Mapping[str, tuple[Any, tuple[int, ...]]],
    model: Any,
) -> dict[str, NDArray[Any]] | None:
    """Returns output -> value of a constant, small node; None for another node."""
    inputs = [name for name in node.input if name]
    if node.op_type in ("Shape", "Size") and inputs[0] in shapes:
        shape = shapes[inputs[0]][1]
        if node.op_type == "Size":
            return {node.output[0]: np.array(math.prod(shape), np.int64)}
        ends = {one.name: one.i for one in node.attribute}
        part = shape[ends.get("start", 0) : ends.get("end", len(shape))]
        return {node.output[0]: np.array(part, np.int64)}
    if (
        node.domain not in ("", "ai.onnx")
        or node.op_type in _RANDOM
        or any(one.HasField("g") for one in node.attribute)
        or not all(name in values for name in inputs)
        or any(math.prod(shapes[key][1]) > _MOST_ELEMENTS for key in node.output if key in shapes)
    ):
        return None
    return _evaluated(node, {name: values[name] for name in inputs}, model)


def _evaluated(
    node: Any, inputs: Mapping[str, NDArray[Any]], model: Any
) -> dict[str, NDArray[Any]] | None:
    from onnx import TensorProto, helper
    from onnx.reference import ReferenceEvaluator

    names = [name for name in node.output if name]
    ends = [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in names]
    graph = helper.make_graph([node], "fold", [], ends)
    graph.input.extend(
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(one.dtype), one.shape)
        for name, one in inputs.items()
    )
    alone = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    try:
        found = ReferenceEvaluator(alone).run(names, dict(inputs))
    except Exception:  # the evaluator does not support the node, which is not folded then
        return None
    results = {name: np.asarray(one) for name, one in zip(names, found, strict=True)}
    if any(one.size > _MOST_ELEMENTS or one.dtype == object for one in results.values()):
        return None
    return results


def _branch(model: Any, node: Any, condition: bool) -> list[Any]:
    """Returns the nodes of the branch that an `If` takes, with the `If`'s output names."""
    from onnx import helper

    wanted = "then_branch" if condition else "else_branch"
    branch = next(one.g for one in node.attribute if one.name == wanted)
    model.graph.initializer.extend(branch.initializer)
    ends = zip(branch.output, node.output, strict=True)
    return [
        *branch.node,
        *(helper.make_node("Identity", [inner.name], [outer]) for inner, outer in ends),
    ]


def _constant_shape(one: Any) -> tuple[int, ...] | None:
    tensor = one.type.tensor_type
    if not tensor.elem_type or not tensor.HasField("shape"):
        return None
    axes = tensor.shape.dim
    if not all(axis.HasField("dim_value") for axis in axes):
        return None
    return tuple(int(axis.dim_value) for axis in axes)
