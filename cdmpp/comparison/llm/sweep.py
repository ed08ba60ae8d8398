"""Decoders on many devices under many loads: the curve, its Pareto front and tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cdmpp.analytic.table_file import TableFile
from cdmpp.comparison.llm.calibrate import calibrated
from cdmpp.comparison.llm.decoder import Decoder, Parallel, check_names, check_parallel
from cdmpp.comparison.llm.load import Ends, LoadCell, LoadedServer
from cdmpp.comparison.llm.memory import missing_rate
from cdmpp.comparison.llm.schedule import Load
from cdmpp.comparison.llm.server_options import BACKENDS, Backend, read_options, rules_of
from cdmpp.comparison.llm.step_table import StepTable
from cdmpp.comparison.llm.times import KernelModel
from cdmpp.comparison.prices import Price
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import CdmppError, DataError, UsageError
from cdmpp.text import interval_text

_UNKNOWN = "unknown"


def load_cells(
    models: Sequence[Decoder],
    parallels: Sequence[Parallel],
    devices: Sequence[DeviceSpec],
    loads: Sequence[Load],
    backend: Backend,
    kernels: KernelModel,
    prices: Mapping[str, Price],
    hypothetical: frozenset[str] = frozenset(),
    measured: Path | TableFile | None = None,
    options: Mapping[str, Any] | None = None,
) -> list[LoadCell]:
    """Returns the predictions by model, for every parallelism, device and load.

    Args:
        measured: loads of the only server, which calibrate its predictions, see `calibrated`.
        options: launch options of the servers, see `rules_of`.

    Raises:
        UsageError: two models have the same name, devices cannot share a model in any of the given
            ways, there are several servers with measured loads, or an unknown launch option.
        DataError: no device can be predicted, or the measured loads cannot be used.
    """
    check_names(models)
    found = []
    read = read_options(backend, options or {})
    said = ",".join(f"{name}={str(value).lower()}" for name, value in read.items())
    shared = [(model, parallel) for model in models for parallel in _possible(model, parallels)]
    if measured is not None and len(shared) * len(devices) != 1:
        raise UsageError(
            f"measured loads are of one server: got {len(shared) * len(devices)} combinations of "
            "model, device and parallelism, expected 1. Ask about one, or leave the measured loads "
            "out"
        )
    for model, parallel in shared:
        rules = rules_of(backend, read, parallel) if read else None
        for device in devices:
            server = replace(_server(model, parallel, device, backend, kernels), rules=rules)
            if measured is not None:
                server = calibrated(server, measured)
            for load in loads:
                if load.concurrency < parallel.data * parallel.pipeline and len(loads) > 1:
                    continue
                cell = server.cell(load, prices.get(device.name))
                is_hypothetical = device.name in hypothetical
                found.append(replace(cell, is_hypothetical=is_hypothetical, server_options=said))
    if shared and not found:
        least = min(parallel.data * parallel.pipeline for _, parallel in shared)
        raise UsageError(
            f"--concurrency {','.join(str(load.concurrency) for load in loads)}: expected at least "
            f"{least}, one request for each of the replicas and stages that share a model"
        )
    if all(cell.tpot_s is None for cell in found):
        reasons = dict.fromkeys(reason for cell in found for reason in cell.reasons)
        raise DataError(f"no device could be predicted: {'; '.join(list(reasons)[:3])}")
    return found


def _possible(model: Decoder, parallels: Sequence[Parallel]) -> list[Parallel]:
    """Returns the valid parallelisms of a model."""
    found, errors = [], []
    for parallel in parallels:
        try:
            check_parallel(model, parallel)
            found.append(parallel)
        except UsageError as error:
            errors.append(error)
    if not found:
        raise errors[0]
    return found


def _server(
    model: Decoder, parallel: Parallel, device: DeviceSpec, backend: Backend, kernels: KernelModel
) -> LoadedServer:
    refusal = missing_rate(model, device)
    if backend == "trtllm" and device.vendor != "NVIDIA":
        refusal = f"TensorRT-LLM runs on NVIDIA's GPUs only, not on {device.name}"
    table = None
    if not refusal:
        try:
            table = StepTable.of(model, parallel, device, kernels, backend, BACKENDS)
        except CdmppError as error:
            refusal = str(error)
    return LoadedServer(model, parallel, device, backend, table, refusal)


def on_front(cells: Sequence[LoadCell]) -> set[int]:
    """Returns the indices of the Pareto front of time per token and cost; tokens per second and GPU
    instead of cost if fewer than two prices are known.
    """
    second = _cost if sum(_cost(cell) is not None for cell in cells) > 1 else _slowness
    known = [
        (cell.tpot_s[0], value, place)
        for place, cell in enumerate(cells)
        if cell.tpot_s is not None and (value := second(cell)) is not None
    ]
    found, best = set(), float("inf")
    for _, value, place in sorted(known):
        if value < best:
            found.add(place)
            best = value
    return found


def _cost(cell: LoadCell) -> float | None:
    return None if cell.cost_per_million is None else cell.cost_per_million[0]


def _slowness(cell: LoadCell) -> float | None:
    return None if cell.tokens_per_s_gpu is None else -cell.tokens_per_s_gpu[0]


def sweep_rows(cells: Sequence[LoadCell], number: Callable[[float | None], str]) -> list[list[str]]:
    """Returns titles and lines of one model's predicted cells, cheapest first."""
    front = on_front(cells)
    titles = [
        "device", "GPUs", "users", "TTFT [interval]", "TPOT [interval]", "tokens/s/GPU [interval]",
        "$/million tokens [interval]",
    ]  # fmt: skip

    def ends(one: Ends | None) -> str:
        if one is None:
            return _UNKNOWN
        return f"{number(one[0])} [{number(one[1])}, {number(one[2])}]"

    def order(place: int) -> tuple[float, float]:
        cost = _cost(cells[place])
        return float("inf") if cost is None else cost, _slowness(cells[place]) or 0.0

    lines = []
    for place in sorted(range(len(cells)), key=order):
        cell = cells[place]
        if cell.tpot_s is None:
            continue
        mark = (" *" if place in front else "") + (" ?" if cell.is_hypothetical else "")
        parallel = cell.parallel.text or f"tensor {cell.parallel.tensor}"
        ttft = "queueing" if cell.ttft_s is None else interval_text(*cell.ttft_s)
        lines.append([
            cell.device + mark, f"{cell.parallel.gpus} ({parallel.removesuffix(' parallel')})",
            str(cell.load.concurrency), ttft, interval_text(*cell.tpot_s),
            ends(cell.tokens_per_s_gpu), ends(cell.cost_per_million),
        ])  # fmt: skip
    return [titles, *lines]


def sweep_notes(cells: Sequence[LoadCell], target_tpot_s: float | None) -> list[str]:
    """Returns the notes on `sweep_rows`: the cheapest server within the target, reasons for low
    confidence, and why devices have no prediction.
    """
    found = [] if target_tpot_s is None else [_within(cells, target_tpot_s)]
    said: dict[str, list[str]] = {}
    for cell in cells:
        for reason in cell.reasons:
            where = f"{cell.device} x {cell.parallel.gpus}"
            said.setdefault(reason, []).append(f"{where} at {cell.load.concurrency}")
    for reason, places in said.items():
        names = list(dict.fromkeys(places))
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        is_all = all(reason in cell.reasons for cell in cells if cell.tpot_s is not None)
        found.append(reason if is_all else f"{', '.join(names[:3])}{more}: {reason}")
    return found


def best_within(cells: Sequence[LoadCell], target_tpot_s: float) -> int | None:
    """Returns the place of the cheapest cell within a time per token, of the one with most tokens a
    second and GPU where no price is known; None where no cell is within.
    """
    inside = [
        place
        for place, cell in enumerate(cells)
        if cell.tpot_s is not None and cell.tpot_s[0] <= target_tpot_s
    ]
    key = _cost if any(_cost(cells[place]) is not None for place in inside) else _slowness
    known = [(value, place) for place in inside if (value := key(cells[place])) is not None]
    return min(known)[1] if known else None


def _within(cells: Sequence[LoadCell], target_s: float) -> str:
    place = best_within(cells, target_s)
    goal = f"{1e3 * target_s:g} ms per token"
    if place is None:
        return f"no configuration is within {goal}"
    best = cells[place]
    assert best.tpot_s is not None
    sure = "surely" if best.tpot_s[2] <= target_s else "uncertain: its interval exceeds the target"
    what = "highest tokens per second and GPU" if _cost(best) is None else "cheapest"
    return (
        f"{what} within {goal}: {best.device} x {best.parallel.gpus} with {best.load.concurrency} "
        f"users ({sure})"
    )


def sweep_json(
    cells: Sequence[LoadCell], target_tpot_s: float | None = None
) -> list[dict[str, Any]]:
    """Returns a flat JSON object per cell, in order, with `is_on_front` among its model's cells,
    and with a target `is_best_within_target` (see `best_within`).
    """
    places: set[int] = set()
    best: set[int] = set()
    for name in dict.fromkeys(cell.network for cell in cells):
        own = [place for place, cell in enumerate(cells) if cell.network == name]
        part = [cells[place] for place in own]
        places |= {own[one] for one in on_front(part)}
        found = None if target_tpot_s is None else best_within(part, target_tpot_s)
        best |= set() if found is None else {own[found]}
    rows = [cell.to_json() | {"is_on_front": place in places} for place, cell in enumerate(cells)]
    if target_tpot_s is None:
        return rows
    return [row | {"is_best_within_target": place in best} for place, row in enumerate(rows)]
