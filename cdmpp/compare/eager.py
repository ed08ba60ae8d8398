"""Cells of torch networks, run eagerly in float32: the best judged model that covers the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from cdmpp.compare.cell import CompareCell, fits_into, no_fit
from cdmpp.compare.operators import is_fitted, is_modelled, network_sums
from cdmpp.devices.spec import DeviceSpec

if TYPE_CHECKING:  # it imports torch
    from cdmpp.networks.graph.graph import NetworkGraph
    from cdmpp.networks.predict import NetworkPredictor, TorchPrediction

MEASURED = "whole-network model"
OPERATORS = "operator models"
OPERATOR_ROOFLINES = "operator rooflines"
ROOFLINE = "whole-network roofline"
_NEEDED = ("peak_fp32_flop_per_s", "mem_bandwidth_bytes_per_s")


def eager_cells(
    predictor: NetworkPredictor, graphs: Sequence[NetworkGraph], devices: Sequence[DeviceSpec]
) -> list[CompareCell]:
    """Returns the cells of a network at every batch on every device.

    A device of the whole-network model's own measurements is answered by it; another NVIDIA GPU by
    the operator models, another GPU by its operators' rooflines; a CPU or an accelerator by the
    whole-network model along its roofline. A device whose peak or bandwidth is unknown has no
    latency, as has one whose memory is too small.
    """
    measured = {spec.name for spec in predictor.trained.devices}
    specs = {device.name: device for device in devices}
    by_batch = {graph.batch: graph for graph in graphs}
    return [
        _cell(one, by_batch[one.batch], specs[one.device], is_measured=one.device in measured)
        for one in predictor.predict(graphs, devices)
        if one.mode == "infer"
    ]


def _cell(
    one: TorchPrediction, graph: NetworkGraph, device: DeviceSpec, *, is_measured: bool
) -> CompareCell:
    cell = CompareCell(
        f"{one.name} float32, eager", one.batch, device.name, 1, "inference", one.batch,
        memory_bytes=one.memory_bytes.value, memory_limit_bytes=one.memory_limit_bytes,
        fits=_fits(one), tdp_w=device.tdp_w, reasons=one.reasons,
    )  # fmt: skip
    if one.fits is False:
        return replace(cell, reasons=(no_fit(cell),))
    missing = [name for name in _NEEDED if getattr(device, name) is None]
    if missing and not is_measured:
        return replace(cell, reasons=(f"`{missing[0]}` of {device.name} is not known",))
    if device.kind == "gpu" and not is_measured:
        return _by_operators(cell, graph, device)
    return replace(
        cell, latency_s=one.time_s.value, low_s=one.time_s.low, high_s=one.time_s.high,
        method=MEASURED if is_measured else ROOFLINE,
    )  # fmt: skip


def _by_operators(cell: CompareCell, graph: NetworkGraph, device: DeviceSpec) -> CompareCell:
    from cdmpp.networks.graph.live_memory import least_seconds

    sums, floor_s = network_sums(graph, device), 0.0
    if is_modelled(device):  # matrix units of others do float32 beyond the peak that is known
        floor_s = least_seconds(graph, device)
    latency_s, low_s, high_s = (max(end, floor_s) for end in sums.total())
    doubt = f"no operator was measured on {device.name}"
    return replace(
        cell, latency_s=latency_s, low_s=low_s, high_s=high_s,
        method=OPERATORS if is_modelled(device) else OPERATOR_ROOFLINES,
        reasons=() if is_fitted(device) else (doubt,), parts=sums.by_kind,
    )  # fmt: skip


def _fits(one: TorchPrediction) -> bool | None:
    """Returns whether it fits; None also where the device's memory would be nearly full."""
    if one.fits is not True or one.memory_bytes.value is None:
        return one.fits
    return fits_into(one.memory_bytes.high or one.memory_bytes.value, one.memory_limit_bytes)
