"""Seconds of kernels on one GPU, each from the model for its kind of kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cdmpp.analytic.device_numbers import as_fitted
from cdmpp.analytic.embedding.devices import KernelDevice, rates_of
from cdmpp.analytic.embedding.gpu import estimate
from cdmpp.analytic.embedding.shapes import EmbeddingShape, Pass
from cdmpp.analytic.gpu_kernels.calls import Gemm
from cdmpp.analytic.intervals import LogErrors
from cdmpp.analytic.kernels.data_movement import (
    HOST_COPY,
    MOVEMENTS,
    element_wise_operators,
    movement_s,
)
from cdmpp.analytic.operators.device import Hardware, hardware
from cdmpp.analytic.operators.intervals import JudgedOperators, packaged_operators
from cdmpp.analytic.operators.operators import Operators, make_operators
from cdmpp.analytic.roofline.floor import least_kernel_s
from cdmpp.analytic.sweep.predict import SweptKernels, SweptOperators
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DataError, UsageError

if TYPE_CHECKING:
    from cdmpp.analytic.conv.layers.closed_form_model import LatentModel
    from cdmpp.analytic.conv.shapes import ConvShapes

_EMBEDDINGS: Mapping[str, Pass] = {
    "embedding": "forward", "embedding-backward-sgd": "backward-sgd",
    "embedding-backward-adagrad": "backward-adagrad",
}  # fmt: skip

#: Names of the operator model's row-wise kernels.
_ROW_WISE = {"softmax": "softmax", "layer-norm": "ln"}

#: `error_group` -> operator whose fitted devices are those of the group.
_LIKE = {"gemm": "linear", "softmax": "softmax", "layer-norm": "ln", "element-wise": "relu"}

#: Tensors that a batch norm moves: it reads its input for the statistics and again, and writes.
_BATCH_NORM_TENSORS = 3

ELEMENT_BYTES = 4

#: Nominal seconds of an empty kernel on a device where it was not measured; an estimate, while
#: `least_kernel_s` is the lower bound.
NOMINAL_KERNEL_S = 2e-6


@dataclass(frozen=True)
class KernelCall:
    """A kernel and its sizes.

    Attributes:
        kernel: one of `kernel_names`.
        sizes: sizes by name.
    """

    kernel: str
    sizes: Mapping[str, float] = field(default_factory=dict)


def kernel_names() -> tuple[str, ...]:
    """Returns the names of all kernels with a model."""
    return ("gemm", *_ROW_WISE, "batch-norm", *_EMBEDDINGS, *MOVEMENTS, *element_wise_operators())


def error_group(kernel: str) -> str | None:
    """Returns the group that a kernel's error is evaluated in: `gemm`, `softmax`, `layer-norm`, or
    `element-wise` for all that move or combine elements on the device; None for lookups and copies
    from the host, whose errors were not measured.
    """
    if kernel in _EMBEDDINGS or kernel == HOST_COPY:
        return None
    return kernel if kernel == "gemm" or kernel in _ROW_WISE else "element-wise"


class KernelTimes:
    """Seconds of kernels on one GPU.

    Each model is loaded on first use and raises DeviceError if the registry lacks values of the
    device.

    Args:
        operators: model of framework operators; None = the packaged one.
    """

    def __init__(self, device: DeviceSpec, operators: JudgedOperators | None = None) -> None:
        self.device = device
        self._given = operators

    @cached_property
    def rates(self) -> KernelDevice:
        """Achievable rates of the device."""
        return rates_of(self.device)

    def latency_s(self, call: KernelCall) -> float:
        """Returns the seconds of a kernel by name: at least the device's smallest kernel, for a
        closed form also at least an empty kernel.

        Raises:
            UsageError: unknown kernel.
            DataError: a size is missing, negative or not finite.
        """
        for name, size in call.sizes.items():
            if not 0.0 <= size < np.inf:
                raise DataError(
                    f"kernel {call.kernel!r}: {name} is {size}; expected a number of at least 0"
                )
        try:
            return max(self._named_s(call.kernel, call.sizes), least_kernel_s(self.device))
        except (KeyError, TypeError) as error:
            raise DataError(
                f"kernel {call.kernel!r}: a size is missing ({error}); got "
                f"{', '.join(call.sizes) or 'none'}"
            ) from None

    def interval_s(self, call: KernelCall) -> tuple[float, float | None, float | None]:
        """Returns (seconds, lower end, upper end) of a kernel by name. The interval covers 90 % of
        the measured kernels of its group (`log_errors` in the operator model's card), on GPUs of
        the fit or on others; None if no kernel of the group was measured.

        Raises:
            UsageError, DataError: as `latency_s`.
        """
        seconds = self.latency_s(call)
        group, label = error_group(call.kernel), self._operators.measured_as(self.device)
        if group is None:
            return seconds, None, None
        errors = self._swept_errors(call) or self._operators.errors_of(
            _LIKE[group], label, "log_errors", group=group
        )
        low_s, high_s = errors.ends(seconds)
        return seconds, max(low_s, least_kernel_s(self.device)), high_s

    def operator_s(self, kind: str, sizes: Mapping[str, float]) -> float:
        """Returns the seconds of a framework operator that is queued behind others.

        Args:
            kind: operator of the operator model, such as `linear`.
        """
        operators = make_operators([kind], {name: [float(size)] for name, size in sizes.items()})
        found = self._operators.model.predict(
            operators, np.array([self.device.name]), self._hardware, context="queued"
        )
        swept = self._swept(operators)
        factor = 1.0 if swept is None else float(swept[0][0])
        return max(factor * float(found[0]), least_kernel_s(self.device))

    def swept_errors(self, kind: str, sizes: Mapping[str, float]) -> LogErrors | None:
        """Returns the errors of an operator that the device's kernel sweep corrects; None for any
        other.

        Args:
            kind: as in `operator_s`.
        """
        if self.device.kernel_sweep is None:
            return None
        operators = make_operators([kind], {name: [float(size)] for name, size in sizes.items()})
        swept = self._swept(operators)
        return None if swept is None else swept[1]

    def half_product_s(self, sizes: Mapping[str, int]) -> float:
        """Returns the seconds of a 16-bit matrix product, as serving frameworks run it."""
        product = Gemm(sizes["m"], sizes["n"], sizes["k"])
        return float(SweptKernels.packaged().times([product], self.device).latency_s[0])

    def convolutions_s(self, shapes: ConvShapes) -> NDArray[np.float64]:
        """Returns float64 [N], seconds of convolutions by the fastest algorithm."""
        time_ms, _ = self._conv_model.predict(shapes, self._as_fitted)
        return np.asarray(time_ms.min(axis=1) / 1e3, np.float64)

    def embedding_s(self, shape: EmbeddingShape, which: Pass = "forward") -> float:
        """Returns the seconds of a lookup or its gradient."""
        return estimate(shape, self.rates, which).latency_s

    def _named_s(self, name: str, sizes: Mapping[str, float]) -> float:
        if name == "gemm":
            batch = sizes.get("batch", 1)
            shape = {"batch": batch, **{key: sizes[key] for key in ("m", "n", "k")}}
            return self.operator_s(_product_kind(sizes), shape)
        if name in _ROW_WISE:
            return self.operator_s(_ROW_WISE[name], {key: sizes[key] for key in ("rows", "cols")})
        if name == "batch-norm":
            moved = _BATCH_NORM_TENSORS * ELEMENT_BYTES * sizes["elements"]
            return max(self._floor_s, self.rates.dram_time_s(moved))
        if name in _EMBEDDINGS:
            lookup = EmbeddingShape(**{key: int(size) for key, size in sizes.items()})
            return max(self._floor_s, self.embedding_s(lookup, _EMBEDDINGS[name]))
        if name not in kernel_names():
            raise UsageError(
                f"kernel {name!r} has no model; expected one of {', '.join(kernel_names())}"
            )
        return max(self._floor_s, movement_s(name, sizes, self.rates))

    def _swept_errors(self, call: KernelCall) -> LogErrors | None:
        is_product = call.kernel == "gemm"
        if not is_product and call.kernel not in _ROW_WISE:
            return None
        kind = _product_kind(call.sizes) if is_product else _ROW_WISE[call.kernel]
        names = ("batch", "m", "n", "k") if is_product else ("rows", "cols")
        return self.swept_errors(kind, {name: call.sizes.get(name, 1) for name in names})

    def _swept(self, operators: Operators) -> tuple[NDArray[np.float64], LogErrors | None] | None:
        if self._given:
            return None
        return SweptOperators.packaged().correction(operators, self.device)

    @property
    def _floor_s(self) -> float:
        curve = self.rates.dram_curve
        return curve.overhead_s if curve is not None else NOMINAL_KERNEL_S

    @cached_property
    def _hardware(self) -> dict[str, Hardware]:
        return {self.device.name: hardware(self.device)}

    @property
    def _operators(self) -> JudgedOperators:
        return self._given or packaged_operators()

    @cached_property
    def _conv_model(self) -> LatentModel:
        from cdmpp.analytic.conv.layers.model import LayerModel

        return LayerModel.load(LayerModel.packaged_path()).closed

    @cached_property
    def _as_fitted(self) -> DeviceSpec:
        """The GPU under a fitted label of the same chip, if the convolution model has one."""
        return as_fitted(self.device, self._conv_model.forms)


def _product_kind(sizes: Mapping[str, float]) -> str:
    """Returns the operator that a product of these sizes is."""
    return "linear" if sizes.get("batch", 1) == 1 else "bmm"
