"""Times of the other operators of a CNN: max-pooling, layout change, 1x1 convolution, gradients.

Operators are polynomials of the shape. Gradients are trees of the ratio of their time to the
forward convolution's. Differs from the paper: the trees learn the logarithm of that ratio.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from cdmpp.analytic.contract import AnalyticModel
from cdmpp.analytic.conv.errors import filters_of
from cdmpp.analytic.conv.least_squares import LinearFit, relative_fit
from cdmpp.analytic.conv.seer.splits import family_split
from cdmpp.analytic.conv.seer.trees import SmallTree, TreeOptions, fit_tree
from cdmpp.analytic.conv.shapes import SHAPE_NAMES, ConvShapes
from cdmpp.analytic.intervals import LogErrors
from cdmpp.analytic.table_file import TableFile
from cdmpp.arrays import FloatArray, IntArray
from cdmpp.errors import DataError, UsageError
from cdmpp.files.atomic import write_json
from cdmpp.files.stored import read_model, to_json
from cdmpp.text import agreed, counted

FORMAT = "cdmpp-conv-operators/1"
#: Operators whose time is predicted as a multiple of the forward convolution's.
GRADIENTS = ("conv_grad_input", "conv_grad_filter")
_FORWARD = "conv_forward"
#: Maximum number of output channels of a narrow 1x1 convolution, which has its own formula.
_NARROW_CHANNELS = 128
_NARROW, _WIDE = "conv_1x1:narrow", "conv_1x1:wide"
_TREE_FEATURES = ("in_channels", "in_width", "out_channels", "out_width", "kernel", "stride")
_FOLDS = 2


@dataclass(frozen=True)
class TimedOperators:
    """Measured operators.

    Attributes:
        shapes: [R], layer of each row.
        time_ms: float64 [R].
    """

    shapes: ConvShapes
    time_ms: FloatArray


@dataclass(frozen=True)
class OtherOperators(AnalyticModel):
    """Fitted times of one device.

    Attributes:
        device: label of the device.
        fits: operator (for 1x1 convolutions `conv_1x1:narrow` and `conv_1x1:wide`) -> polynomial.
        ratios: operator in `GRADIENTS` -> tree of log(its time / time of the forward convolution).
        errors: operator -> errors on held-out rows, without operators with too few rows. Errors of
            a gradient are those of its ratio.
        filters: operator -> (width, stride) of the measured filters.
    """

    what = "model of other operators"
    again = "fit it with: cdmpp analytic conv fit --operators CSV --device NAME --out MODEL.json"

    device: str
    fits: dict[str, LinearFit]
    ratios: dict[str, SmallTree]
    errors: dict[str, LogErrors] = field(default_factory=dict)
    filters: dict[str, frozenset[tuple[int, int]]] = field(default_factory=dict)

    def predict(
        self, operator: str, shapes: ConvShapes, forward_ms: FloatArray | None = None
    ) -> FloatArray:
        """Returns float64 [R], milliseconds.

        Args:
            forward_ms: float64 [R], time of the forward convolution; gradients need it.

        Raises:
            UsageError: the operator was not fitted.
        """
        if operator in self.ratios:
            assert forward_ms is not None, "a gradient is a multiple of the forward convolution"
            return forward_ms * np.exp(self.ratios[operator].predict(_tree_columns(shapes)))
        time_ms = np.full(len(shapes), np.nan)
        for name, (rows, columns, _) in _polynomials(operator, shapes).items():
            if name in self.fits:
                time_ms[rows] = self.fits[name].predict(columns)
        if not np.isfinite(time_ms).all():
            known = ", ".join(sorted({*self.fits, *self.ratios})) or "none"
            raise UsageError(
                f"operator {operator!r} of such layers was not fitted on {self.device}; fitted: "
                f"{known}; measure it with: cdmpp analytic conv collect --operator NAME"
            )
        return time_ms

    def is_unmeasured(self, operator: str, shapes: ConvShapes) -> list[bool]:
        """Returns for each layer whether its filter width and stride were not measured."""
        known = self.filters.get(operator, frozenset())
        pairs = zip(shapes.kernel, shapes.stride, strict=True)
        return [(int(kernel), int(stride)) not in known for kernel, stride in pairs]

    def save(self, path: Path) -> None:
        write_json(path, {"format": FORMAT, **to_json(self)})

    @classmethod
    def load(cls, path: Path) -> OtherOperators:
        return read_model(cls, path, what=cls.what, again=cls.again, format=FORMAT)


def read_operators(paths: Sequence[Path]) -> dict[str, TimedOperators]:
    """Reads the tables that `collect --operator` writes; returns operator -> its rows.

    Raises:
        DataError: a file is missing or malformed.
    """
    parts: dict[str, list[TimedOperators]] = {}
    sizes = [name for name in SHAPE_NAMES if name != "out_width"]
    for path in paths:
        file = TableFile.read(path, ["operator", *sizes, "time_ms"], what="measured operators")
        for operator in dict.fromkeys(file.columns["operator"]):
            own = file.where("operator", operator)
            shapes = ConvShapes.of(*(np.array(own.values(name, int)) for name in sizes))
            parts.setdefault(operator, []).append(TimedOperators(shapes, own.times("time_ms")))
    return {
        operator: TimedOperators(
            ConvShapes.concatenate([part.shapes for part in own]),
            np.concatenate([part.time_ms for part in own]),
        )
        for operator, own in parts.items()
    }


def fit_operators(
    tables: Mapping[str, TimedOperators], device: str, *, seed: int = 0
) -> OtherOperators:
    """Fits the model of a device, with errors on held-out channels and widths.

    Raises:
        DataError: an unknown operator, or a gradient without its forward convolution.
    """
    whole = OtherOperators(device, {}, {})
    for operator, table in tables.items():
        if operator == _FORWARD:
            continue
        shapes, target = table.shapes, table.time_ms
        if operator in GRADIENTS:
            target = target / _forward_ms(operator, shapes, tables.get(_FORWARD))
        fitted = _fit_one(device, operator, shapes, target, seed)
        whole.fits.update(fitted.fits)
        whole.ratios.update(fitted.ratios)
        whole.filters[operator] = filters_of([shapes])
        errors = _held_out_errors(device, operator, shapes, target, seed)
        if errors is not None:
            whole.errors[operator] = errors
    return whole


def _fit_one(
    device: str, operator: str, shapes: ConvShapes, target: FloatArray, seed: int
) -> OtherOperators:
    """Fits a model of one operator; `target` float64 [R] is in ms, for gradients a ratio."""
    if operator in GRADIENTS:
        options = TreeOptions(seed=seed)
        tree = fit_tree(_tree_columns(shapes), np.log(target), "regressor", options)
        return OtherOperators(device, {}, {operator: tree})
    fits = {
        name: relative_fit(columns, target[rows], names)
        for name, (rows, columns, names) in _polynomials(operator, shapes).items()
        if len(rows)
    }
    return OtherOperators(device, fits, {})


def _held_out_errors(
    device: str, operator: str, shapes: ConvShapes, target: FloatArray, seed: int
) -> LogErrors | None:
    """Returns the errors on held-out channels and widths; None if there are too few rows."""
    found = []
    for fold in range(_FOLDS):
        try:
            kept, left_out = (
                np.flatnonzero(part) for part in family_split(shapes, seed=seed + fold)
            )
            fitted = _fit_one(device, operator, shapes[kept], target[kept], seed)
            predicted = fitted.predict(operator, shapes[left_out], np.ones(len(left_out)))
        except (DataError, UsageError):  # too few sizes to hold any out
            continue
        found.append(np.log(target[left_out] / predicted))
    return LogErrors.of(np.concatenate(found)) if found else None


def _forward_ms(operator: str, shapes: ConvShapes, forward: TimedOperators | None) -> FloatArray:
    """Returns float64 [R], the measured time of each layer's forward convolution."""
    known = {}
    if forward is not None:
        known = dict(zip(_keys(forward.shapes), forward.time_ms.tolist(), strict=True))
    keys = _keys(shapes)
    missing = [key for key in keys if key not in known]
    if missing:
        sizes = ", ".join(
            f"{name} {int(v)}" for name, v in zip(SHAPE_NAMES, missing[0], strict=True)
        )
        raise DataError(
            f"{len(missing)} of {counted(len(keys), 'row')} of {operator} "
            f"{agreed(len(missing), 'have')} no {_FORWARD} of the same layer, e.g. {sizes}; "
            "measure both with: cdmpp analytic conv collect --operator "
            "conv_grad"
        )
    return np.array([known[key] for key in keys], np.float64)


def _keys(shapes: ConvShapes) -> list[tuple[float, ...]]:
    return [tuple(row) for row in shapes.matrix(SHAPE_NAMES).tolist()]


def _tree_columns(shapes: ConvShapes) -> FloatArray:
    return shapes.matrix(_TREE_FEATURES)


def _polynomials(
    operator: str, shapes: ConvShapes
) -> dict[str, tuple[IntArray, FloatArray, tuple[str, ...]]]:
    """Returns name of a fit -> (its rows, float64 [rows, C], names of the columns).

    Raises:
        DataError: an unknown operator.
    """
    images = shapes.batch.astype(np.float64)
    data = images * shapes.in_channels * shapes.in_width**2.0
    pooled = images * shapes.in_channels * shapes.out_width**2.0
    one = np.ones(len(shapes))
    every = np.arange(len(shapes))
    if operator == "data_layout":
        return {operator: (every, np.stack([data, one], axis=1), ("elements", "constant"))}
    if operator == "maxpool":
        columns = np.stack([pooled * shapes.kernel, data, pooled, one], axis=1)
        return {operator: (every, columns, ("windows", "input", "output", "constant"))}
    if operator == "maxpool_gradient":
        columns = np.stack([pooled * shapes.kernel, data, one], axis=1)
        return {operator: (every, columns, ("windows", "input", "constant"))}
    if operator != "conv_1x1":
        raise DataError(
            f"unknown operator {operator!r}; expected maxpool, maxpool_gradient, data_layout, "
            f"conv_1x1, {', '.join(GRADIENTS)}"
        )
    is_narrow = shapes.out_channels <= _NARROW_CHANNELS
    narrow, wide = np.flatnonzero(is_narrow), np.flatnonzero(~is_narrow)
    channels = np.where(is_narrow, -(-shapes.out_channels // 32) * 32, shapes.out_channels)
    results = images * channels * shapes.out_width**2.0
    products = results * shapes.in_channels
    low = np.stack([data, results, products, one], axis=1)[narrow]
    high = np.stack([products, one], axis=1)[wide]
    return {
        _NARROW: (narrow, low, ("input", "output", "products", "constant")),
        _WIDE: (wide, high, ("products", "constant")),
    }
