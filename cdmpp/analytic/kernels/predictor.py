"""Predictions of the analytic models for the operators of a trace."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cdmpp.analytic.conv.shapes import ConvShapes
from cdmpp.analytic.embedding.shapes import EmbeddingShape
from cdmpp.analytic.kernels.times import KernelTimes
from cdmpp.analytic.kernels.work import Work
from cdmpp.analytic.operators.intervals import JudgedOperators
from cdmpp.analytic.roofline.floor import least_kernel_s
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import CdmppError

_HALF = frozenset({"c10::Half", "c10::BFloat16"})
ROOFLINE, OPERATOR_MODEL = "roofline", "operator model"


@dataclass(frozen=True)
class KernelPrediction:
    """Seconds of one call and the name of the model; at least the device's smallest kernel.

    A roofline is the time of the minimum work at peak rates: an estimate that most calls exceed.
    """

    seconds: float
    model: str


class KernelPredictor:
    """Predicts operators on one device and caches the results.

    Args:
        operators: as in `KernelTimes`.
    """

    def __init__(self, device: DeviceSpec, operators: JudgedOperators | None = None) -> None:
        self.device = device
        self._times = KernelTimes(device, operators)
        self._known: dict[Work, KernelPrediction | None] = {}

    def predict(self, work: Work) -> KernelPrediction | None:
        """Returns the time of one call; None if the registry lacks values of the device.

        On NVIDIA GPUs, fp32 operators use the model of their family and 16-bit `linear` products
        that of serving kernels. Everything else uses the roofline.
        """
        if work not in self._known:
            found = self._model(work) or self._roofline(work)
            self._known[work] = found and replace(
                found, seconds=max(found.seconds, least_kernel_s(self.device))
            )
        return self._known[work]

    def peak_flop_per_s(self, dtype: str) -> float | None:
        """Returns the arithmetic peak of a data type; None if unknown."""
        if dtype in _HALF:
            return self.device.peak_tensor_flop_per_s or self.device.peak_fp16_flop_per_s
        if dtype == "tf32":
            return None
        return self.device.peak_fp32_flop_per_s if dtype == "float" else None

    def _roofline(self, work: Work) -> KernelPrediction | None:
        peak, bandwidth = self.peak_flop_per_s(work.dtype), self.device.mem_bandwidth_bytes_per_s
        limits = []
        if peak:
            limits.append(work.flop / peak)
        if bandwidth:
            limits.append(work.moved_bytes / bandwidth)
        return KernelPrediction(max(limits), ROOFLINE) if limits else None

    def _model(self, work: Work) -> KernelPrediction | None:
        is_half = work.dtype in _HALF and work.name == "linear"
        is_modelled = is_half or work.dtype == "float"
        if self.device.kind != "gpu" or self.device.vendor != "NVIDIA" or not is_modelled:
            return None
        try:
            if is_half:
                return KernelPrediction(
                    self._times.half_product_s(dict(work.sizes)), "kernel model"
                )
            if work.kind == "conv":
                shapes = _conv_shapes(work)
                if shapes is None:
                    return None
                return KernelPrediction(
                    float(self._times.convolutions_s(shapes)[0]), "convolution model"
                )
            if work.kind == "embedding":
                lookup = EmbeddingShape(**dict(work.sizes))
                return KernelPrediction(self._times.embedding_s(lookup), "embedding model")
            return KernelPrediction(
                self._times.operator_s(work.name, dict(work.sizes)), OPERATOR_MODEL
            )
        except CdmppError:
            return None  # the model does not cover this shape or device: use the roofline


def _conv_shapes(work: Work) -> ConvShapes | None:
    """Returns the layer of a convolution; None if the model does not cover it."""
    size = dict(work.sizes)
    is_square = (
        size["in_height"] == size["in_width"]
        and size["kernel_height"] == size["kernel"]
        and size["stride"] == size["stride_width"]
        and size["padding"] == size["padding_width"]
        and size["dilation"] == size["groups"] == 1
    )
    if not is_square:
        return None
    return ConvShapes.of(
        size["batch"], size["in_channels"], size["in_width"], size["out_channels"],
        size["kernel"], size["stride"], size["padding"],
    )  # fmt: skip
