"""Cells of ONNX files: predictions of their kernels as compiled by TVM."""

from __future__ import annotations

from cdmpp.comparison.cell import CompareCell
from cdmpp.devices.spec import DeviceSpec

METHOD = "TVM, untuned"
_NOT_ASKED = (
    "ONNX files can only be compared on devices of `cdmpp device list` and on this-cpu; for your "
    "own: cdmpp predict FILE.onnx --device-spec YAML",
)
#: Latency, its ends, and reasons for low confidence or a missing latency.
Answer = tuple[float | None, float | None, float | None, tuple[str, ...]]


def compiled_cell(name: str, batch: int, device: DeviceSpec, answer: Answer | None) -> CompareCell:
    """Returns the cell of a compiled network; its memory need is unknown.

    Args:
        answer: None = there is no prediction for the device.
    """
    latency_s, low_s, high_s, reasons = answer or (None, None, None, _NOT_ASKED)
    return CompareCell(
        f"{name} compiled", batch, device.name, 1, "inference", batch, latency_s, low_s,
        high_s, METHOD if latency_s is not None else "", tdp_w=device.tdp_w, reasons=reasons,
    )  # fmt: skip
