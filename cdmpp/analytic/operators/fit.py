"""Least squares of a closed form with parameters per class, per device, per both, or for all rows.

Each row depends on one value of every parameter. One evaluation per parameter therefore gives all
its columns of the Jacobian, for any number of classes and devices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from cdmpp.arrays import FloatArray

Scope = Literal["all", "class", "device", "class_device"]
#: Parameter -> its value in each row, float64 [N].
RowValues = Mapping[str, FloatArray]

_STEP = 1e-5
#: Residual (log seconds) above which the soft L1 loss reduces a row's weight.
_LOSS_SCALE = 0.1
_MOST_EVALUATIONS = 40


@dataclass(frozen=True)
class Parameter:
    """One parameter of a closed form.

    Attributes:
        name: key in the row values.
        scope: what the parameter has separate values for.
        start: initial value, and mean of the prior.
        pull: weight of the prior; the residuals are log seconds.
        least: lower bound.
        is_coolest: fitted per class and device; predictions use a device's minimum over classes.
    """

    name: str
    scope: Scope
    start: float
    pull: float = 1.0
    least: float = -np.inf
    is_coolest: bool = False


@dataclass(frozen=True)
class Layout:
    """Assignment of parameter values to rows.

    Attributes:
        class_index: int [N].
        device_index: int [N].
        class_count: number of classes.
        device_count: number of devices.
    """

    class_index: NDArray[np.intp]
    device_index: NDArray[np.intp]
    class_count: int
    device_count: int

    def width(self, scope: Scope) -> int:
        """Returns the number of values of a parameter with this scope."""
        return {
            "all": 1,
            "class": self.class_count,
            "device": self.device_count,
            "class_device": self.class_count * self.device_count,
        }[scope]

    def place(self, scope: Scope) -> NDArray[np.intp]:
        """Returns int [N], index of the value that each row uses."""
        if scope == "all":
            return np.zeros(len(self.class_index), np.intp)
        if scope == "class":
            return self.class_index
        if scope == "device":
            return self.device_index
        return self.class_index * self.device_count + self.device_index


def fit_parameters(
    parameters: Sequence[Parameter],
    layout: Layout,
    log_time: Callable[[RowValues], FloatArray],
    target: FloatArray,
) -> dict[str, FloatArray]:
    """Returns parameter -> its values, float64 [width].

    Minimises the robust (soft L1) sum of squares of log prediction minus log measurement, plus the
    prior. The result is deterministic.

    Args:
        log_time: row values -> float64 [N], log seconds.
        target: float64 [N], log of the measured seconds.
    """
    from scipy.optimize import least_squares

    places = [layout.place(item.scope) for item in parameters]
    widths = [layout.width(item.scope) for item in parameters]
    starts = np.concatenate([[0], np.cumsum(widths)])
    first = np.repeat([item.start for item in parameters], widths)
    pull = np.repeat([item.pull for item in parameters], widths)
    least = np.repeat([item.least for item in parameters], widths)
    count = len(target)
    rows = np.arange(count)

    def spread(x: FloatArray) -> dict[str, FloatArray]:
        return {
            item.name: x[start + place]
            for item, start, place in zip(parameters, starts, places, strict=False)
        }

    def residual(x: FloatArray) -> FloatArray:
        return np.concatenate([log_time(spread(x)) - target, pull * (x - first)])

    def jacobian(x: FloatArray) -> FloatArray:
        matrix = np.zeros((count + len(x), len(x)))
        values = spread(x)
        here = log_time(values)
        for item, start, place in zip(parameters, starts, places, strict=False):
            moved = {**values, item.name: values[item.name] + _STEP}
            matrix[rows, start + place] = (log_time(moved) - here) / _STEP
        matrix[count + np.arange(len(x)), np.arange(len(x))] = pull
        return matrix

    found = least_squares(
        residual, first, jac=jacobian, loss="soft_l1", f_scale=_LOSS_SCALE,
        max_nfev=_MOST_EVALUATIONS, bounds=(least, np.inf),
    ).x  # fmt: skip
    return {
        item.name: np.asarray(found[start : start + width], np.float64)
        for item, start, width in zip(parameters, starts, widths, strict=False)
    }
