"""The other operators of a CNN: max-pooling, 1x1 convolutions, layout changes, gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from cdmpp.analytic.conv.least_squares import LinearFit, relative_fit
from cdmpp.analytic.conv.seer.trees import SmallTree, TreeOptions, fit_tree
from cdmpp.analytic.conv.shapes import ConvShapes, FloatArray
from cdmpp.errors import DataError

OtherOperator = Literal[
    "maxpool", "maxpool_gradient", "conv_1x1_narrow", "conv_1x1_wide", "data_layout"
]
_NARROW_CHANNELS = 128
_CHANNEL_STEP = 32
_GRADIENT_FEATURES = ("in_channels", "in_width", "out_channels", "out_width", "kernel", "stride")


def operator_columns(
    operator: OtherOperator, shapes: ConvShapes
) -> tuple[FloatArray, tuple[str, ...]]:
    """Returns (float64 [R, C], names): what the time of an operator is a sum of.

    A layout change looks at the input only; a narrow 1x1 convolution (at most 128 output channels)
    has its output channels rounded up to a multiple of 32 first.

    Raises:
        DataError: an unknown operator, or shapes that are none of it.
    """
    if operator not in get_args(OtherOperator):
        raise DataError(
            f"unknown operator {operator!r}; known: {', '.join(get_args(OtherOperator))}"
        )
    one = np.ones(len(shapes))
    if operator in ("maxpool", "maxpool_gradient"):
        columns = [shapes.outputs * shapes.kernel, shapes.inputs, shapes.outputs]
        names = ["window", "input", "output"]
        if operator == "maxpool":
            columns, names = [*columns, one], [*names, "constant"]
        return np.stack(columns, axis=1), tuple(names)
    if operator == "data_layout":
        return np.stack([shapes.inputs, one], axis=1), ("input", "constant")
    narrow = shapes.out_channels <= _NARROW_CHANNELS
    if (shapes.kernel != 1).any() or (narrow != (operator == "conv_1x1_narrow")).any():
        raise DataError(
            f"{operator} got a layer that is none; expected 1x1 filters and "
            f"{'at most' if operator == 'conv_1x1_narrow' else 'more than'} {_NARROW_CHANNELS} "
            "output channels"
        )
    if operator == "conv_1x1_wide":
        return np.stack([shapes.multiplications, one], axis=1), ("products", "constant")
    rounded = replace(shapes, out_channels=-(-shapes.out_channels // _CHANNEL_STEP) * _CHANNEL_STEP)
    columns = [rounded.inputs, rounded.outputs, rounded.multiplications, one]
    return np.stack(columns, axis=1), ("input", "output", "products", "constant")


def fit_operator(operator: OtherOperator, shapes: ConvShapes, time_ms: FloatArray) -> LinearFit:
    """Returns the coefficients of an operator by relative least squares."""
    columns, names = operator_columns(operator, shapes)
    return relative_fit(columns, time_ms, names)


def operator_ms(operator: OtherOperator, fit: LinearFit, shapes: ConvShapes) -> FloatArray:
    """Returns float64 [R], milliseconds of an operator."""
    return fit.predict(operator_columns(operator, shapes)[0])


@dataclass(frozen=True)
class GradientModel:
    """Gradients of a convolution as multiples of its forward time.

    Attributes:
        to_input: tree of time(gradient of the input) / time(forward).
        to_filter: tree of time(gradient of the filter) / time(forward).
    """

    to_input: SmallTree
    to_filter: SmallTree

    def predict(self, shapes: ConvShapes, forward_ms: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Returns float64 [R] milliseconds of (gradient of the input, gradient of the filter)."""
        features = shapes.matrix(_GRADIENT_FEATURES)
        return (
            self.to_input.predict(features) * forward_ms,
            self.to_filter.predict(features) * forward_ms,
        )

    def to_json(self) -> dict[str, Any]:
        """Returns a value for JSON."""
        return {"to_input": self.to_input.to_json(), "to_filter": self.to_filter.to_json()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> GradientModel:
        """Returns the model of `to_json`."""
        return cls(SmallTree.from_json(value["to_input"]), SmallTree.from_json(value["to_filter"]))


def fit_gradients(
    shapes: ConvShapes,
    forward_ms: FloatArray,
    to_input_ms: FloatArray,
    to_filter_ms: FloatArray,
    options: TreeOptions | None = None,
) -> GradientModel:
    """Returns the model of both gradients."""
    options = options or TreeOptions()
    features = shapes.matrix(_GRADIENT_FEATURES)
    return GradientModel(
        fit_tree(features, to_input_ms / forward_ms, "regressor", options),
        fit_tree(features, to_filter_ms / forward_ms, "regressor", options),
    )
