"""Cells of ONNX files: what is said of their kernels as TVM compiles them."""

from __future__ import annotations

from cdmpp.comparison.cell import CompareCell
from cdmpp.devices.spec import DeviceSpec

METHOD = "TVM, untuned"
_NOT_ASKED = (
    "ONNX files can only be compared on devices of `cdmpp device list` and on this-cpu; for your "
    "own: cdmpp predict FILE.onnx --device-spec YAML",
)
#: Latency, its ends, and why it is a guess or missing.
Answer = tuple[float | None, float | None, float | None, tuple[str, ...]]


def compiled_cell(name: str, batch: int, device: DeviceSpec, answer: Answer | None) -> CompareCell:
    """Returns the cell of a compiled network; what it needs in memory is not known.

    Args:
        answer: None = nobody was asked.
    """
    latency_s, low_s, high_s, reasons = answer or (None, None, None, _NOT_ASKED)
    return CompareCell(
        f"{name} compiled", batch, device.name, 1, "inference", batch, latency_s, low_s,
        high_s, METHOD if latency_s is not None else "", tdp_w=device.tdp_w, reasons=reasons,
    )  # fmt: skip
