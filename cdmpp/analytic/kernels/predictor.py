"""What the analytic models say of an operator in a trace."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from cdmpp.analytic.kernels.work import Work
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import CdmppError

if TYPE_CHECKING:
    from cdmpp.analytic.conv.layers.closed_form_model import LatentModel
    from cdmpp.analytic.operators.model import OperatorModel

_MS_PER_S = 1e3
_HALF = frozenset({"c10::Half", "c10::BFloat16"})
ROOFLINE = "roofline"


@dataclass(frozen=True)
class Prediction:
    """Seconds of one call and the model that says so; a roofline is a lower bound."""

    seconds: float
    model: str


class Predictor:
    """Predicts operators on one device; answers are kept."""

    def __init__(self, device: DeviceSpec) -> None:
        self.device = device
        self._known: dict[Work, Prediction | None] = {}

    def predict(self, work: Work) -> Prediction | None:
        """Returns the time of one call: by the model of the operator on an NVIDIA GPU in fp32,
        else the roofline; None = the registry knows too little of the device.
        """
        if work not in self._known:
            self._known[work] = self._model(work) or self._roofline(work)
        return self._known[work]

    def peak_flop_per_s(self, dtype: str) -> float | None:
        """Returns the arithmetic peak for a type of data; None = unknown."""
        if dtype in _HALF:
            return self.device.peak_tensor_flop_per_s or self.device.peak_fp16_flop_per_s
        if dtype == "tf32":
            return None
        return self.device.peak_fp32_flop_per_s if dtype == "float" else None

    def _roofline(self, work: Work) -> Prediction | None:
        peak, bandwidth = self.peak_flop_per_s(work.dtype), self.device.mem_bandwidth_bytes_per_s
        limits = []
        if peak:
            limits.append(work.flop / peak)
        if bandwidth:
            limits.append(work.moved_bytes / bandwidth)
        return Prediction(max(limits), ROOFLINE) if limits else None

    def _model(self, work: Work) -> Prediction | None:
        if self.device.kind != "gpu" or self.device.vendor != "NVIDIA" or work.dtype != "float":
            return None
        try:
            if work.kind == "conv":
                return self._convolution(work)
            if work.kind == "embedding":
                return self._embedding(work)
            return self._operator(work)
        except CdmppError:
            return None  # a shape or device beyond the model: the roofline answers

    def _convolution(self, work: Work) -> Prediction | None:
        from cdmpp.analytic.conv.shapes import ConvShapes

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
        shapes = ConvShapes.of(
            size["batch"], size["in_channels"], size["in_width"], size["out_channels"],
            size["kernel"], size["stride"], size["padding"],
        )  # fmt: skip
        time_ms, _ = self._conv_model.predict(shapes, self._conv_device)
        return Prediction(float(time_ms.min()) / _MS_PER_S, "convolution model")

    def _embedding(self, work: Work) -> Prediction | None:
        from cdmpp.analytic.embedding.devices import kernel_device
        from cdmpp.analytic.embedding.gpu import estimate
        from cdmpp.analytic.embedding.shapes import EmbeddingShape

        found = estimate(EmbeddingShape(**dict(work.sizes)), kernel_device(self.device.name))
        return Prediction(found.latency_s, "embedding model")

    def _operator(self, work: Work) -> Prediction | None:
        import numpy as np

        from cdmpp.analytic.operators.device import hardware
        from cdmpp.analytic.operators.operators import make_operators

        sizes = {name: [float(size)] for name, size in work.sizes}
        operators = make_operators([work.name], sizes)
        label = self.device.name
        seconds = self._operator_model.predict(
            operators, np.array([label]), {label: hardware(self.device)}, context="queued"
        )
        return Prediction(float(seconds[0]), "operator model")

    @cached_property
    def _operator_model(self) -> OperatorModel:
        from cdmpp.analytic.operators.model import OperatorModel, packaged_model_path

        return OperatorModel.load(packaged_model_path())

    @cached_property
    def _conv_model(self) -> LatentModel:
        from cdmpp.analytic.conv.layers.model import load_layers_model
        from cdmpp.analytic.kernels.packaged import packaged_conv_model_path

        return load_layers_model(packaged_conv_model_path()).closed

    @cached_property
    def _conv_device(self) -> DeviceSpec:
        """The GPU under the label of the same chip that the model was fitted on, if any."""
        from cdmpp.devices.registry import load_registry

        known = load_registry()
        for label in self._conv_model.forms:
            other = known.get(label)
            if other is not None and _chip(other) == _chip(self.device):
                return replace(self.device, name=label)
        return self.device


def _chip(spec: DeviceSpec) -> tuple[object, ...]:
    return (
        spec.architecture, spec.core_count, spec.clock_hz, spec.peak_fp32_flop_per_s,
        spec.mem_bandwidth_bytes_per_s, spec.l2_bytes,
    )  # fmt: skip
