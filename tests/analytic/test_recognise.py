"""Convolutions and lookups recognised in what TVM lowers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cdmpp.analytic.embedding.shapes import EmbeddingShape
from cdmpp.analytic.recognise import recognise
from cdmpp.testing.synthetic import make_samples
from tests.programs.reference.tree import compact_ast

tvm = pytest.importorskip("tvm")
from tvm import te  # noqa: E402

from tvm_helper.tir.loop_tree import loop_tree_from_tir  # noqa: E402

pytestmark = pytest.mark.tvm


def recognised(tensors: list[Any]) -> Any:
    """Returns what the lowered program of these arguments is: a shape or a reason."""
    module = tvm.IRModule({"main": te.create_prim_func(tensors)})
    ast = compact_ast(loop_tree_from_tir(module))
    leaves = len(ast.leaf_features)
    programs = replace(
        make_samples(1, 1).programs,
        leaf_offset=np.array([0, leaves], np.int64),
        leaf_features=ast.leaf_features,
        leaf_extra=ast.leaf_extra,
        leaf_position=ast.leaf_position,
    )
    found = recognise(programs, np.array([0]))
    return found.conv.get(0) or found.embedding.get(0) or found.reason[0]


def convolution(batch: int, channels: int, width: int, out: int, kernel: int, padding: int) -> Any:
    image = te.placeholder((batch, channels, width, width), "float32", name="image")
    weights = te.placeholder((out, channels, kernel, kernel), "float32", name="weights")
    side = width + 2 * padding
    padded = te.compute(
        (batch, channels, side, side),
        lambda n, c, y, x: tvm.tirx.if_then_else(
            tvm.tirx.all(y >= padding, y < side - padding, x >= padding, x < side - padding),
            image[n, c, y - padding, x - padding],
            0.0,
        ),
    )
    axes = [te.reduce_axis((0, size)) for size in (channels, kernel, kernel)]
    c, i, j = axes
    result = te.compute(
        (batch, out, side - kernel + 1, side - kernel + 1),
        lambda n, o, y, x: te.sum(padded[n, c, y + i, x + j] * weights[o, c, i, j], axis=axes),
    )
    return [image, weights, result]


@pytest.mark.parametrize("kernel", [3, 5])
def test_a_padded_convolution(kernel):
    shape = recognised(convolution(2, 16, 28, 32, kernel, kernel // 2))
    assert shape.reduction[0] == kernel**2 * 16
    assert (shape.out_channels[0], shape.kernel[0]) == (32, kernel)
    assert shape.batch[0] * shape.out_width[0] ** 2 == 2 * 28**2


def test_a_matrix_product_is_none():
    assert recognised(convolution(2, 16, 28, 32, 1, 0)) == "pointwise"


@pytest.mark.parametrize("is_bag", [True, False])
def test_a_lookup(is_bag):
    table = te.placeholder((5000, 64), "float32", name="table")
    indices = te.placeholder((256, 20) if is_bag else (5120,), "int32", name="indices")
    step = te.reduce_axis((0, 20))
    if is_bag:
        result = te.compute((256, 64), lambda b, w: te.sum(table[indices[b, step], w], axis=step))
    else:
        result = te.compute((5120, 64), lambda b, w: table[indices[b], w])
    lookups = 20 if is_bag else 1
    wanted = EmbeddingShape(256 if is_bag else 5120, 5000, 1, lookups, 64, 4)
    assert recognised([table, indices, result]) == wanted


def test_a_sum_of_two_tensors_is_no_lookup():
    first = te.placeholder((64, 64), "float32", name="first")
    second = te.placeholder((64, 64), "float32", name="second")
    assert (
        recognised([first, second, te.compute((64, 64), lambda i, j: first[i, j] + second[i, j])])
        == "other"
    )
