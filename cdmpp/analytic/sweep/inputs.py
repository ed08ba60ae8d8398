"""Input features of corrections: columns of GPU kernels and of operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from cdmpp.analytic.gpu_kernels.account.work import KernelWork, logs
from cdmpp.analytic.operators.operators import OPERATOR_KINDS, Operators, make_operators
from cdmpp.analytic.sweep.calls import Fp32Operator
from cdmpp.arrays import FloatArray

_SIZES = ("batch", "m", "n", "k", "rows", "cols", "bytes", "flop")


def kernel_inputs(work: KernelWork, predicted_s: FloatArray) -> FloatArray:
    """Returns float64 [N, F], the inputs of calls of one family.

    Args:
        predicted_s: float64 [N], uncorrected predictions.
    """
    shares = {name: term / predicted_s for name, term in work.terms.items()}
    columns: Mapping[str, FloatArray] = {**logs(**shares, time=predicted_s), **work.inputs}
    return np.stack(list(columns.values()), axis=1)


def operator_inputs(operators: Operators, predicted_s: FloatArray) -> FloatArray:
    """Returns float64 [N, F], the inputs of fp32 operators; see `kernel_inputs`."""
    columns = logs(time=predicted_s, **{name: getattr(operators, name) for name in _SIZES})
    kinds = [np.asarray(operators.kind == kind, np.float64) for kind in OPERATOR_KINDS]
    return np.stack([*columns.values(), *kinds], axis=1)


def operators_of(calls: Sequence[Fp32Operator]) -> Operators:
    """Converts calls to rows of the operator model."""
    parts = [
        make_operators([call.kind], {name: [float(size)] for name, size in call.sizes.items()})
        for call in calls
    ]
    return Operators.concatenate(parts)
