"""Errors of the operator model on calls that were held out of its fit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cdmpp.analytic.intervals import (
    DeviceErrors,
    LogErrors,
    errors_on,
)
from cdmpp.analytic.operators.operators import Operators

#: Fields that measure the size of an operator.
SIZES = ("batch", "m", "n", "k", "rows", "cols", "bytes", "flop")
#: Kinds that are evaluated separately; all others are evaluated as element-wise.
_OWN = ("bmm", "linear", "softmax", "ln")


@dataclass(frozen=True)
class OperatorErrors:
    """Errors of isolated calls, from a validation.

    Attributes:
        by_device: device label or `UNSEEN` -> `judged_as` -> errors on held-out shapes.
        larger: `judged_as` -> errors on shapes larger than those of the fit, on GPUs held out of
            the fit: the widest over these GPUs.
        largest: `judged_as` -> name of `SIZES` -> largest measured value.
    """

    by_device: DeviceErrors
    larger: dict[str, LogErrors]
    largest: dict[str, dict[str, float]]

    def is_larger(self, operators: Operators) -> NDArray[np.bool_]:
        """Returns bool [N], whether an operator exceeds all measured ones in any of `SIZES`."""
        found = np.zeros(len(operators), np.bool_)
        for row, kind in enumerate(operators.kind):
            largest = self.largest.get(judged_as(str(kind)), {})
            found[row] = any(getattr(operators, name)[row] > largest[name] for name in largest)
        return found

    def of(self, kind: str, device: str, *, is_larger: bool) -> LogErrors | None:
        """Returns the errors of an operator kind on a device; None if unknown.

        Args:
            is_larger: value of `is_larger` for the operator.
        """
        group = judged_as(kind)
        own = self.larger if is_larger else errors_on(self.on(group), device)
        return own.get(group)

    def on(self, group: str) -> DeviceErrors:
        """Returns the errors of the devices with errors of `group` (a value of `judged_as`)."""
        return {label: own for label, own in self.by_device.items() if group in own}


def judged_as(kind: str) -> str:
    """Returns the group that an operator is evaluated in: its kind, or `elementwise`."""
    return kind if kind in _OWN else "elementwise"


def largest_sizes(operators: Operators) -> dict[str, dict[str, float]]:
    """Returns `OperatorErrors.largest` of measured operators."""
    groups = np.array([judged_as(str(kind)) for kind in operators.kind])
    return {
        str(group): {
            name: float(f"{np.max(getattr(operators, name)[groups == group]):.7g}")
            for name in SIZES
        }
        for group in np.unique(groups)
    }
