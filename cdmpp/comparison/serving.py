"""Cells of a decoder: the kernels of a pass in sequence, on every device."""

from __future__ import annotations

from dataclasses import replace

from cdmpp.comparison.cell import CompareCell, no_fit
from cdmpp.comparison.llm.decoder import Decoder
from cdmpp.comparison.llm.memory import memory_need, missing_rate
from cdmpp.comparison.llm.times import KernelModel, step_times
from cdmpp.comparison.transformer import Pass
from cdmpp.devices.spec import DeviceSpec, fits_into
from cdmpp.errors import CdmppError

METHOD = "serving kernels"


def serving_cell(
    model: Decoder, one: Pass, device: DeviceSpec, kernels: KernelModel
) -> CompareCell:
    """Returns the cell of a pass on a device. It has no latency if the model does not fit, the
    device has no rate for a data type, or no kernel model covers it.

    Raises:
        UsageError: the devices cannot share the decoder.
    """
    parallel = one.parallel
    need = memory_need(model, parallel, one.step, one.sequences, one.length).total
    spread = f", {parallel.text}" if parallel.text else ""
    cell = CompareCell(
        f"{model.name} {model.main_format}, {one.text}{spread}", one.batch, device.name,
        parallel.gpus, "token", one.tokens, memory_bytes=need,
        memory_limit_bytes=device.mem_bytes, fits=fits_into(need, device.mem_bytes),
        tdp_w=device.tdp_w,
    )  # fmt: skip
    refusal = missing_rate(model, device) or (no_fit(cell) if cell.fits is False else "")
    if refusal:
        return replace(cell, reasons=(refusal,))
    try:
        (found,) = step_times(model, parallel, [one.step], device, kernels)
    except CdmppError as error:
        return replace(cell, reasons=(str(error),))
    latency_s, low_s, high_s = found.ends
    return replace(
        cell, latency_s=latency_s, low_s=low_s, high_s=high_s, method=METHOD, parts=found.parts,
        reasons=(*found.reasons, *model.beyond_context(one.length)), operators=found.operators,
    )  # fmt: skip
