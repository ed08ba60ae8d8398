"""ONNX files for tests: made node by node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

Node = tuple[str, list[str], list[str], dict[str, Any]]


def write_onnx(
    path: Path,
    nodes: Sequence[Node],
    constants: Mapping[str, NDArray[Any]],
    *,
    x: Sequence[int | str],
    y: Sequence[int | str],
) -> Path:
    """Writes a network from `x` to `y`, float32 of these shapes."""
    graph = helper.make_graph(
        [helper.make_node(kind, inputs, outputs, **more) for kind, inputs, outputs, more in nodes],
        "network",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, list(x))],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, list(y))],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(path))
    return path


def small_network(path: Path) -> Path:
    """Writes convolutions, a pool and a product; packed it is as small as an address may be."""
    weights = {
        name: np.ones(shape, np.float32)
        for name, shape in (("w1", (8, 3, 3, 3)), ("w2", (8, 8, 1, 1)), ("w3", (2048, 64)))
    }
    nodes: list[Node] = [
        ("Conv", ["x", "w1"], ["a"], {"pads": [1, 1, 1, 1]}), ("Relu", ["a"], ["b"], {}),
        ("MaxPool", ["b"], ["c"], {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("Conv", ["c", "w2"], ["d"], {}), ("Relu", ["d"], ["e"], {}),
        ("Conv", ["e", "w2"], ["f"], {}), ("Relu", ["f"], ["g"], {}),
        ("Flatten", ["g"], ["h"], {}), ("MatMul", ["h", "w3"], ["i"], {}),
        ("Softmax", ["i"], ["y"], {}),
    ]  # fmt: skip
    return write_onnx(path, nodes, weights, x=(1, 3, 32, 32), y=(1, 64))
