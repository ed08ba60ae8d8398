"""Times of kernels known by their arguments: whose model answers for which kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from cdmpp.analytic.embedding.devices import KernelDevice, kernel_device
from cdmpp.analytic.embedding.gpu import KernelOptions, Version
from cdmpp.analytic.embedding.shapes import Pass
from cdmpp.analytic.kernels.data_movement import DataMovementModel, element_wise_operators
from cdmpp.analytic.kernels.kernel_models import EmbeddingKernelModel, KernelModel
from cdmpp.analytic.operators.model import OperatorModel, known_hardware, packaged_model_path
from cdmpp.analytic.operators.operators import make_operators
from cdmpp.errors import UsageError

_EMBEDDINGS: Mapping[str, Pass] = {
    "embedding": "forward", "embedding-backward-sgd": "backward-sgd",
    "embedding-backward-adagrad": "backward-adagrad",
}  # fmt: skip

#: Names of the operator model's row-wise kernels.
_ROW_WISE = {"softmax": "softmax", "layer-norm": "ln"}

#: A batch norm reads its input for the statistics and again, and writes: tensors moved.
_BATCH_NORM_TENSORS = 3

_ELEMENT_BYTES = 4

#: A kernel without work, where the device's own is not known, seconds.
NOMINAL_KERNEL_S = 2e-6


@dataclass(frozen=True)
class KernelCall:
    """A kernel and its sizes.

    Attributes:
        kernel: see `KernelTimes`.
        sizes: by name.
    """

    kernel: str
    sizes: Mapping[str, float] = field(default_factory=dict)


def kernel_names() -> tuple[str, ...]:
    """Returns the names of all kernels that have a model."""
    movement = ("concat", "memcpy", "transpose", "tril")
    return ("gemm", *_ROW_WISE, "batch-norm", *_EMBEDDINGS, *movement, *element_wise_operators())


class KernelTimes:
    """Seconds of kernels on one GPU.

    Args:
        device: label.
        learned: kernel -> a model that was fitted on the device, used instead of the closed form.
        embedding_version: of the embedding formulas.

    Raises:
        DeviceError: the device is unknown, no GPU, or lacks a rate.
    """

    def __init__(
        self,
        device: str,
        *,
        learned: Mapping[str, KernelModel] | None = None,
        embedding_version: Version = "lru",
    ) -> None:
        self.device: KernelDevice = kernel_device(device)
        self._label = device
        self._hardware = known_hardware([device])
        self._model = OperatorModel.load(packaged_model_path())
        curve = self.device.dram_curve
        self._floor_s = curve.overhead_s if curve is not None else NOMINAL_KERNEL_S
        self._learned = dict(learned or {})
        self._options = KernelOptions(version=embedding_version)

    def latency_s(self, call: KernelCall) -> float:
        """Returns the seconds of a kernel; a closed form takes at least what moving
        nothing takes.

        Raises:
            UsageError: no model has that name.
            DataError: a size is missing.
        """
        name, sizes = call.kernel, call.sizes
        if name in self._learned:
            return _first(self._learned[name], sizes)
        if name == "gemm":
            shape = {key: [float(sizes[key])] for key in ("m", "n", "k")}
            shape["batch"] = [float(sizes.get("batch", 1))]
            kind = "linear" if sizes.get("batch", 1) == 1 else "bmm"
            return self._operator(kind, shape)
        if name in _ROW_WISE:
            return self._operator(_ROW_WISE[name], {k: [float(sizes[k])] for k in ("rows", "cols")})
        if name == "batch-norm":
            moved = _BATCH_NORM_TENSORS * _ELEMENT_BYTES * sizes["elements"]
            return max(self._floor_s, self.device.dram_time_s(moved))
        if name in _EMBEDDINGS:
            model = EmbeddingKernelModel(self.device, _EMBEDDINGS[name], self._options)
            return max(self._floor_s, _first(model, sizes))
        if name not in kernel_names():
            raise UsageError(
                f"kernel {name!r} has no model; expected one of {', '.join(kernel_names())}"
            )
        return max(self._floor_s, _first(DataMovementModel(name, self.device), sizes))

    def _operator(self, kind: str, shape: Mapping[str, Sequence[float]]) -> float:
        operators = make_operators([kind], shape)
        found = self._model.predict(
            operators, np.array([self._label]), self._hardware, context="queued"
        )
        return float(found[0])


def _first(model: KernelModel, sizes: Mapping[str, float]) -> float:
    return float(model.latency_s({name: [value] for name, value in sizes.items()})[0])
