"""Calibration of a server's predictions with measured loads of it.

Three values are fitted: seconds per request and a factor for times to the first token, and a factor
for times per token. All shrink towards the packaged fit: least squares of logs, in which each
measured load has weight 1 and the distance to the packaged values has the weights of `Shrinkage`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.analytic.table_file import TableFile
from cdmpp.arrays import FloatArray
from cdmpp.comparison.llm.config_file import known_models, read_model
from cdmpp.comparison.llm.load import LoadedServer, ServerCalibration, Shrinkage
from cdmpp.comparison.llm.schedule import LEAST_SHARE, Load
from cdmpp.devices.registry import get_device
from cdmpp.errors import CdmppError, DataError

#: Seconds per request at which loads are simulated; times are interpolated between them.
HOSTS_S = (0.0, 0.05, 0.3, 10.0)
_TRIED_S = np.geomspace(3e-3, HOSTS_S[-1], 90)
_POINT = ("concurrency", "isl", "osl", "ttft_ms", "tpot_ms")
#: Columns with one value per server, if the file has them.
_OF_SERVER = ("model_path", "precision", "gemm_quant_mode", "moe_quant_mode", "backend_version")
#: Maximum factors between measured and predicted times, per token and to the first token. Servers
#: differ less, wrong units more.
_MOST_TPOT, _MOST_TTFT = 30.0, 300.0
_MS = 1e3


def calibrated(server: LoadedServer, measured: Path | TableFile) -> LoadedServer:
    """Returns a server whose predictions are calibrated with measured loads of it.

    Args:
        measured: CSV or Parquet in the layout of `--evaluate`, at least with `_POINT`, or its rows.
            Loads with requests that wait for room in the cache are not used.

    Raises:
        DataError: the file cannot be read, or has rows of another server or impossible times.
    """
    if isinstance(measured, TableFile):
        table = measured
    else:
        table = TableFile.read(measured, _POINT, what="measured loads")
    path = table.path
    _check_server(table, server)
    users, inputs, outputs = (table.values(name, _whole) for name in _POINT[:3])
    times_s = np.column_stack([table.times(name, scale=1 / _MS) for name in _POINT[3:]])
    loads = []
    for row, *numbers in zip(table.rows, users, inputs, outputs, strict=True):
        count, tokens_in, tokens_out = numbers
        try:
            loads.append(Load(count, tokens_in, tokens_out, LEAST_SHARE))
        except CdmppError as error:
            raise DataError(f"{path}: row {row}: {error}") from None
    if server.table is None:
        return server
    curves = np.array([curve(server, load) for load in loads])
    for row, load, own, (ttft_s, tpot_s) in zip(table.rows, loads, curves, times_s, strict=True):
        problem = _impossible(server, load, own, ttft_s, tpot_s)
        if problem:
            raise DataError(f"{path}: row {row}: {problem}")
    is_early = np.isfinite(curves).all(axis=(1, 2))
    if not is_early.any():
        raise DataError(
            f"{path}: requests of every row wait for room in the cache, so the rows say nothing of "
            f"the time to the first token: got concurrency {', '.join(map(str, users))}, expected "
            "a load that fits. Add a row with fewer users"
        )
    found = fitted(curves[is_early], times_s[is_early], server.host_s, server.hosts.shrinkage)
    lengths = frozenset((one.input_tokens, one.output_tokens) for one in compress(loads, is_early))
    points = int(is_early.sum())
    return replace(server, calibration=replace(found, points=points, lengths=lengths))


def table_of_rows(rows: Sequence[Mapping[str, Any]], name: str) -> TableFile:
    """Returns measured loads as a table file.

    Args:
        rows: column -> value, for `_POINT` and optional columns; None = empty.
        name: name in error messages.
    """
    titles = dict.fromkeys(title for row in rows for title in row)
    cells = {
        title: ["" if (cell := row.get(title)) is None else str(cell) for row in rows]
        for title in titles
    }
    return TableFile(Path(name), cells, range(1, len(rows) + 1))


def curve(server: LoadedServer, load: Load) -> FloatArray:
    """Returns float64 [2, len(HOSTS_S)]: seconds to the first token (NaN if requests wait for room
    in the cache or for others) and seconds per further token, for each of `HOSTS_S` per request.
    """
    found = [replace(server, calibration=ServerCalibration(one)).served(load) for one in HOSTS_S]
    ttft_s = [math.nan if one.waited or one.queued_s else one.ttft_s for one in found]
    return np.array([ttft_s, [one.tpot_s for one in found]])


def fitted(
    curves: FloatArray, measured: FloatArray, host_s: float, shrinkage: Shrinkage
) -> ServerCalibration:
    """Returns the calibration by measured loads.

    Args:
        curves: float64 [loads, 2, len(HOSTS_S)], see `curve`.
        measured: float64 [loads, 2], seconds to the first token and per further token.
        host_s: seconds per request in the packaged fit.
    """
    tried = np.array([
        [np.interp(_TRIED_S, HOSTS_S, times) for times in own] for own in curves
    ])  # fmt: skip
    logs = np.log(measured[:, :, None] / tried)
    factor = logs[:, 0].sum(axis=0) / (len(logs) + shrinkage.ttft)
    away = np.log(_TRIED_S / max(host_s, _TRIED_S[0]))
    cost = ((logs[:, 0] - factor) ** 2).sum(axis=0)
    cost += shrinkage.ttft * factor**2 + shrinkage.host * away**2
    best = int(np.argmin(cost))
    tpot = logs[:, 1, best].sum() / (len(logs) + shrinkage.tpot)
    return ServerCalibration(float(_TRIED_S[best]), math.exp(factor[best]), math.exp(tpot))


def _check_server(table: TableFile, server: LoadedServer) -> None:
    """Raises if rows are of another server, or of several servers."""
    parallel, device = server.parallel, server.device.name
    expected: list[tuple[str, Any, Callable[[str], Any]]] = [
        ("mode", "agg", str), ("backend", server.backend, str),
        ("system", device, lambda text: get_device(text).name),
        ("tp_size", parallel.tensor, _whole), ("attention_dp_size", parallel.data, _whole),
        ("moe_ep_size", parallel.expert if server.model.has_experts else 1, _whole),
        ("pp_size", parallel.pipeline, _whole),
    ]  # fmt: skip
    for name, own, read in expected:
        for row, cell in zip(table.rows, table.columns.get(name, ()), strict=False):
            if cell and table.where(name, cell).values(name, read)[0] != own:
                raise _other(table, f"row {row} with {name} {cell}", str(own))
    for name in _OF_SERVER:
        values = [cell for cell in dict.fromkeys(table.columns.get(name, ())) if cell]
        if len(values) > 1:
            raise _other(table, f"rows with {name} {', '.join(values)}", "one of them")
        is_model = name == "model_path" and values and values[0] in known_models()
        if is_model and read_model(values[0]).layers != server.model.layers:
            raise _other(table, f"model_path {values[0]}", server.model.name)


def _other(table: TableFile, got: str, expected: str) -> DataError:
    return DataError(
        f"{table.path}: measured loads of another server: got {got}, expected {expected}. Keep "
        "only rows of the server that the options describe, or describe theirs"
    )


def _impossible(
    server: LoadedServer, load: Load, own: FloatArray, ttft_s: float, tpot_s: float
) -> str:
    """Returns why measured times are impossible for a load; empty if they are possible."""
    least_s, _ = server.least_s(load)
    if ttft_s < least_s:
        return (
            f"ttft_ms is impossibly short: got {_MS * ttft_s:g}, expected at least "
            f"{_MS * least_s:.3g}, in which {server.device.name} reads the prompt at its peak "
            "rates. Give milliseconds, measured without a prefix cache"
        )
    for name, time_s, times, most in (
        ("ttft_ms", ttft_s, own[0], _MOST_TTFT), ("tpot_ms", tpot_s, own[1], _MOST_TPOT),
    ):  # fmt: skip
        predicted_s = float(np.interp(server.host_s, HOSTS_S, times))
        if not math.isnan(predicted_s) and not 1 / most <= time_s / predicted_s <= most:
            return (
                f"{name} is in another unit or of another server: got {_MS * time_s:g}, expected "
                f"{_MS * predicted_s:.3g} within a factor of {most:.0f}. Give milliseconds"
            )
    return ""


def _whole(text: str) -> int:
    """Returns the integer in a cell; columns with empty cells contain 4.0 for 4."""
    value = float(text)
    if not value.is_integer():
        raise ValueError(text)
    return int(value)
