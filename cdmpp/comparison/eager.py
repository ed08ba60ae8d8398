"""Cells of torch networks: predictions of `predict` for one mode of execution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from cdmpp.comparison.cell import CompareCell, no_fit
from cdmpp.devices.spec import DeviceSpec
from cdmpp.networks.gpu_operators import MEASURED, RATES
from cdmpp.networks.graph.execution import Mode, Running

if TYPE_CHECKING:  # imports torch
    from cdmpp.networks.graph.graph import NetworkGraph
    from cdmpp.networks.predict import NetworkPredictor
    from cdmpp.networks.prediction import TorchPrediction

_MODES: Mapping[Mode, str] = {"infer": "", "train": ", training step"}
_ITEMS: Mapping[Mode, Literal["inference", "sample"]] = {"infer": "inference", "train": "sample"}


def eager_cells(
    predictor: NetworkPredictor,
    graphs: Sequence[NetworkGraph],
    devices: Sequence[DeviceSpec],
    running: Running,
) -> list[CompareCell]:
    """Returns the cells of a network at every batch on every device, predicted by
    `NetworkPredictor` for one mode (inference unless training is requested). A device without a
    known peak or bandwidth, or with too little memory, has no latency.
    """
    specs = {device.name: device for device in devices}
    return [
        _cell(one, specs[one.device])
        for one in predictor.predict(graphs, devices, running=running)
        if one.mode == (running.mode or "infer")
    ]


def _cell(one: TorchPrediction, device: DeviceSpec) -> CompareCell:
    cell = CompareCell(
        f"{one.name} {one.execution.text}{_MODES[one.mode]}", one.batch, device.name, 1,
        _ITEMS[one.mode], one.batch,
        memory_bytes=one.memory_bytes.value, memory_limit_bytes=one.memory_limit_bytes,
        fits=one.fits, tdp_w=device.tdp_w, reasons=one.reasons,
    )  # fmt: skip
    if one.fits is False:
        return replace(cell, reasons=(no_fit(cell),))
    if one.time_s.value is None:
        return cell
    missing = [name for name in RATES if getattr(device, name) is None]
    if missing and one.method != MEASURED:
        return replace(cell, reasons=(f"`{missing[0]}` of {device.name} is unknown",))
    return replace(
        cell, latency_s=one.time_s.value, low_s=one.time_s.low, high_s=one.time_s.high,
        method=one.method, parts=one.parts,
    )  # fmt: skip
