"""Evaluation of loads on measured servers: errors, coverage, ranking, baselines."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from cdmpp.arrays import FloatArray
from cdmpp.comparison.llm.config_file import known_models, read_model
from cdmpp.comparison.llm.decoder import Decoder, Formats, LatentAttention, Parallel, check_parallel
from cdmpp.comparison.llm.load import HostFit, LoadCell, LoadedServer, packaged_hosts
from cdmpp.comparison.llm.memory import cache_bytes, missing_rate, weight_bytes
from cdmpp.comparison.llm.schedule import LEAST_SHARE, Load, Rules
from cdmpp.comparison.llm.server_options import BACKENDS, SERVER_OPTIONS, rules_of
from cdmpp.comparison.llm.step_table import StepTable
from cdmpp.comparison.llm.times import KernelModel
from cdmpp.devices.registry import get_device
from cdmpp.errors import CdmppError, DataError
from cdmpp.metrics import spearman
from cdmpp.text import percent_text

#: Required columns, in the layout of aiconfigurator's `silicon_sample.csv`.
_COLUMNS = (
    "model_family", "model_path", "system", "backend", "precision", "gemm_quant_mode",
    "moe_quant_mode", "mode", "isl", "osl", "concurrency", "tp_size", "pp_size",
    "attention_dp_size", "moe_tp_size", "moe_ep_size", "ttft_ms", "tpot_ms", "parallel_suspect",
)  # fmt: skip
#: Launch options; null = default.
_LAUNCHED = tuple(dict.fromkeys(name for known in SERVER_OPTIONS.values() for name in known))
#: Spread of repeats; launch options; speculative decoding (null = no).
_OPTIONAL = ("tpot_min_ms", "tpot_max_ms", *_LAUNCHED, "speculative")
#: Columns that identify repeats; the version of the server may differ.
_REPEATED = (
    "model_family", "system", "backend", "precision", "gemm_quant_mode", "moe_quant_mode", "isl",
    "osl", "concurrency", "tp_size", "pp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size",
)  # fmt: skip
_FORMATS = {"fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "fp4", "int4_wo": "int4"}
#: Maximum ratio of repeats of one configuration; beyond it, they are different kinds of servers.
_TWO_POPULATIONS = 1.5
_MS = 1e3
Repeats = Literal["agree", "slower", "faster"]


@dataclass(frozen=True)
class MeasuredLoad:
    """A measured configuration with its prediction.

    Attributes:
        family, system, backend: the groups of the report.
        server: key of its sweep over concurrencies.
        cell: the prediction.
        ttft_s, tpot_s: measured.
        baseline_s: seconds to read weights and cache at the memory bandwidth.
        repeats: whether the repeats of its configuration, in any version, `agree`. Otherwise the
            row is one of the `slower` or `faster` ones, possibly due to speculative decoding.
        is_speculative: whether its row says that it used speculative decoding.
        slow_layers: see `LoadedServer`.
    """

    family: str
    system: str
    backend: str
    server: tuple[Any, ...]
    cell: LoadCell
    ttft_s: float
    tpot_s: float
    baseline_s: float
    repeats: Repeats
    is_speculative: bool = False
    slow_layers: int = 0

    @property
    def is_queued(self) -> bool:
        """Whether the first token took longer than all others, because requests waited."""
        return self.ttft_s > (self.cell.load.output_tokens - 1) * self.tpot_s

    @property
    def tokens_per_s_gpu(self) -> float:
        """Measured throughput, derived from the two times."""
        load = self.cell.load
        each = self.ttft_s + (load.output_tokens - 1) * self.tpot_s
        return load.concurrency * load.output_tokens / each / self.cell.parallel.gpus

    def within(self, spread: Mapping[str, tuple[float, float]]) -> MeasuredLoad:
        """Returns the row with its interval ends multiplied by the factors of `ttft` and `tpot`."""
        ttft, tpot = (
            None if one is None else (one[0], one[1] * spread[name][0], one[2] * spread[name][1])
            for name, one in (("ttft", self.cell.ttft_s), ("tpot", self.cell.tpot_s))
        )
        return replace(self, cell=replace(self.cell, ttft_s=ttft, tpot_s=tpot))


@dataclass(frozen=True)
class ServingReport:
    """The result of an evaluation.

    Attributes:
        rows: rows with a prediction.
        left_out: reason -> number of rows without a prediction.
    """

    rows: tuple[MeasuredLoad, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)


def read_serving(path: Path) -> list[dict[str, Any]]:
    """Reads measured servers in the layout of llm-serving.

    Raises:
        DataError: unreadable, or a column is missing.
    """
    import pyarrow as pa
    import pyarrow.parquet as parquet

    try:
        table = parquet.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: cannot read the measured servers ({error})") from None
    missing = [name for name in _COLUMNS if name not in table.column_names]
    if missing:
        raise DataError(f"{path}: no column {', '.join(missing)}; expected {', '.join(_COLUMNS)}")
    names = [*_COLUMNS, *(name for name in _OPTIONAL if name in table.column_names)]
    return list(table.select(names).to_pylist())


def evaluate_serving(
    rows: Iterable[Mapping[str, Any]],
    kernels: KernelModel,
    models: Mapping[str, Decoder] | None = None,
    hosts: HostFit | None = None,
    servers: dict[tuple[Any, ...], LoadedServer] | None = None,
) -> ServingReport:
    """Predicts measured configurations. Disaggregated servers, rows of uncertain parallelism and
    models without a config are left out and counted.

    Args:
        models: Hugging Face name -> decoder, in addition to the known ones.
        hosts: fitted times of the host; None = the packaged ones.
        servers: cache of servers, shared by calls with the same kernels.
    """
    servers = {} if servers is None else servers
    rows = list(rows)
    ranges = _ranges(rows)
    left_out: Counter[str] = Counter()
    found = []
    for row in rows:
        reason = _unfit(row)
        if reason:
            left_out[reason] += 1
            continue
        try:
            server = _server(row, kernels, models or {}, servers)
            server = replace(server, hosts=hosts or packaged_hosts(), rules=_rules(row, server))
            load = Load(row["concurrency"], row["isl"], row["osl"], LEAST_SHARE)
            one = _measured(row, server, server.cell(load), _repeats(row, ranges))
        except CdmppError as error:
            left_out[str(error)] += 1
            continue
        if one.cell.tpot_s is None:
            left_out["; ".join(one.cell.reasons).partition(":")[0]] += 1
        else:
            found.append(one)
    return ServingReport(tuple(found), dict(left_out))


def _unfit(row: Mapping[str, Any]) -> str:
    if row["mode"] != "agg":
        return "disaggregated"
    if row["parallel_suspect"]:
        return "parallelism not recoverable"
    if row["backend"] not in BACKENDS:
        return f"backend {row['backend']}"
    return ""


def _ranges(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[Any, ...], tuple[float, float]]:
    """Returns configuration -> minimum and maximum time per token of its repeats."""
    found: dict[tuple[Any, ...], tuple[float, float]] = {}
    for row in rows:
        if not _unfit(row):
            ends = (row.get(f"tpot_{end}_ms") or row["tpot_ms"] for end in ("min", "max"))
            key, (low, high) = _configuration(row), ends
            least, most = found.get(key, (low, high))
            found[key] = min(least, low), max(most, high)
    return found


def _configuration(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return (*(row[name] for name in _REPEATED), *_launched(row))


def _repeats(
    row: Mapping[str, Any], ranges: Mapping[tuple[Any, ...], tuple[float, float]]
) -> Repeats:
    low, high = ranges[_configuration(row)]
    if high <= _TWO_POPULATIONS * low:
        return "agree"
    return "faster" if row["tpot_ms"] ** 2 < low * high else "slower"


def _server(
    row: Mapping[str, Any],
    kernels: KernelModel,
    models: Mapping[str, Decoder],
    known: dict[tuple[Any, ...], LoadedServer],
) -> LoadedServer:
    names = (
        "model_path", "system", "backend", "precision", "gemm_quant_mode", "moe_quant_mode",
        "tp_size", "pp_size", "attention_dp_size", "moe_ep_size",
    )  # fmt: skip
    key = tuple(row[name] for name in names)
    if key not in known:
        model, device = _model(row, models), get_device(row["system"])
        parallel = Parallel(
            row["tp_size"] or 1, row["attention_dp_size"] or 1,
            (row["moe_ep_size"] or 1) if model.has_experts else 1, row["pp_size"] or 1,
        )  # fmt: skip
        check_parallel(model, parallel)
        refusal = missing_rate(model, device)
        if refusal:
            raise DataError(refusal)
        table = StepTable.of(model, parallel, device, kernels, row["backend"], BACKENDS)
        known[key] = LoadedServer(model, parallel, device, row["backend"], table)
    return known[key]


def _rules(row: Mapping[str, Any], server: LoadedServer) -> Rules:
    """Returns the scheduling rules from the launch options in a row; null = default."""
    given = {name: row[name] for name in SERVER_OPTIONS[server.backend] if row.get(name)}
    return rules_of(server.backend, given, server.parallel)


def _launched(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in _LAUNCHED)


def _model(row: Mapping[str, Any], models: Mapping[str, Decoder]) -> Decoder:
    """Returns the decoder of a row with the formats of its label. Experts in MXFP4 keep the format
    of the file, and latent attention keeps 16 bits with NVFP4, as in NVIDIA's checkpoints.
    """
    name = row["model_path"]
    if name not in models and name not in known_models():
        raise DataError(f"model {name} without a config.json")
    model = models.get(name) or read_model(name)
    dense, experts = (_FORMATS.get(row[one] or "") for one in ("gemm_quant_mode", "moe_quant_mode"))
    is_file = model.formats.experts == "mxfp4" and dense == "fp4"
    if dense is None or experts is None or is_file:
        return model
    is_latent = any(isinstance(layer.attention, LatentAttention) for layer in model.layers)
    attention = "bf16" if is_latent and dense == "fp4" else dense
    return replace(model, formats=Formats(attention, dense, experts), kv_dtype="fp8")  # type: ignore[arg-type]


def _measured(
    row: Mapping[str, Any], server: LoadedServer, cell: LoadCell, repeats: Repeats
) -> MeasuredLoad:
    model, parallel, load = server.model, server.parallel, cell.load
    ttft_s, tpot_s = row["ttft_ms"] / _MS, row["tpot_ms"] / _MS
    context = load.input_tokens + load.output_tokens // 2
    sequences = -(-load.concurrency // parallel.data)
    read = weight_bytes(model, parallel) + sequences * cache_bytes(model, parallel, context)
    baseline_s = read / (server.device.mem_bandwidth_bytes_per_s or np.nan)
    is_speculative = bool(row.get("speculative"))
    names = ("model_path", "system", "isl", "osl")
    launched = _launched(row)
    sweep = (server.model.formats, is_speculative, *(row[one] for one in names), *launched)
    return MeasuredLoad(
        row["model_family"], row["system"], row["backend"], sweep, cell, ttft_s, tpot_s,
        baseline_s, repeats, is_speculative, server.slow_layers,
    )  # fmt: skip


@dataclass(frozen=True)
class ServingScores:
    """Errors of a group of rows.

    Attributes:
        count: number of rows.
        ttft_count: number of rows whose first token does not wait for room in the cache.
        tpot_ape, ttft_ape: medians of the absolute relative errors.
        tpot_ratio: median of predicted over measured.
        tpot_inside, ttft_inside: coverage of the 90 % intervals.
        order: mean over sweeps (model, system, format, lengths) of Spearman's correlation of tokens
            per second and GPU; None = no sweep has five configurations.
        baseline_ape: median error of a baseline: reading weights and cache at the bandwidth, times
            the median ratio of the other families; None = there is no other family.
    """

    count: int
    ttft_count: int
    tpot_ape: float
    ttft_ape: float | None
    tpot_ratio: float
    tpot_inside: float
    ttft_inside: float | None
    order: float | None
    baseline_ape: float | None


def scores(rows: Sequence[MeasuredLoad], every: Sequence[MeasuredLoad]) -> ServingScores:
    """Returns the scores of a group of rows.

    Args:
        every: all rows, for the baseline.

    Raises:
        ValueError: no rows.
    """
    if not rows:
        raise ValueError("no rows")
    tpot = _ratios(rows, lambda one: one.cell.tpot_s[0] / one.tpot_s)  # type: ignore[index]
    early = [one for one in rows if one.cell.ttft_s is not None]
    ttft = _ratios(early, lambda one: one.cell.ttft_s[0] / one.ttft_s)  # type: ignore[index]
    inside = [one.cell.tpot_s[1] <= one.tpot_s <= one.cell.tpot_s[2] for one in rows]  # type: ignore[index]
    inside_ttft = [
        one.cell.ttft_s is not None and one.cell.ttft_s[1] <= one.ttft_s <= one.cell.ttft_s[2]
        for one in early
    ]
    return ServingScores(
        len(rows), len(early), _median_ape(tpot), _median_ape(ttft) if early else None,
        float(np.median(tpot)), float(np.mean(inside)),
        float(np.mean(inside_ttft)) if early else None, _order(rows), _baseline(rows, every),
    )  # fmt: skip


def groups(report: ServingReport) -> dict[str, list[MeasuredLoad]]:
    """Returns the rows of a report in groups: all, by agreement of repeats, model, system and
    backend, and by speculative decoding if any row has it.
    """
    rows = report.rows
    drafts = [one for one in rows if one.is_speculative]
    found: dict[str, list[MeasuredLoad]] = {
        "all": list(rows),
        "without speculative decoding": [one for one in rows if drafts and not one.is_speculative],
        "with speculative decoding": drafts,
        "repeats agree": [one for one in rows if one.repeats == "agree"],
        "repeats differ: slower runs": [one for one in rows if one.repeats == "slower"],
        "repeats differ: faster runs": [one for one in rows if one.repeats == "faster"],
        "first token later than the whole answer": [one for one in rows if one.is_queued],
    }
    by_group: dict[str, list[MeasuredLoad]] = defaultdict(list)
    for name in ("family", "system", "backend"):
        for one in rows:
            by_group[getattr(one, name)].append(one)
    return {name: part for name, part in {**found, **by_group}.items() if part}


def report_lines(report: ServingReport) -> list[list[str]]:
    """Returns the titles and a line per group of rows."""
    lines = [[
        "rows", "n", "TPOT error, median (%)", "predicted / measured", "TPOT within the interval",
        "rows with TTFT", "TTFT error, median (%)", "TTFT within the interval", "order",
        "baseline's TPOT error (%)",
    ]]  # fmt: skip
    for name, part in groups(report).items():
        one = scores(part, report.rows)
        lines.append([
            name, str(one.count), f"{100 * one.tpot_ape:.1f}", f"{one.tpot_ratio:.2f}",
            percent_text(one.tpot_inside, 0), str(one.ttft_count),
            "-" if one.ttft_ape is None else f"{100 * one.ttft_ape:.1f}",
            percent_text(one.ttft_inside, 0), "-" if one.order is None else f"{one.order:.2f}",
            "-" if one.baseline_ape is None else f"{100 * one.baseline_ape:.1f}",
        ])  # fmt: skip
    return lines


def _ratios(rows: Sequence[MeasuredLoad], ratio: Callable[[MeasuredLoad], float]) -> FloatArray:
    return np.array([ratio(one) for one in rows], np.float64)


def _median_ape(ratios: FloatArray) -> float:
    return float(np.median(np.abs(ratios - 1.0)))


def _order(rows: Sequence[MeasuredLoad]) -> float | None:
    sweeps: dict[tuple[Any, ...], list[MeasuredLoad]] = defaultdict(list)
    for one in rows:
        sweeps[one.server].append(one)
    found = [
        spearman(
            np.array([one.cell.tokens_per_s_gpu[0] for one in part]),  # type: ignore[index]
            np.array([one.tokens_per_s_gpu for one in part]),
        )
        for part in sweeps.values()
        if len(part) >= 5
    ]
    return float(np.mean(found)) if found else None


def _baseline(rows: Sequence[MeasuredLoad], every: Sequence[MeasuredLoad]) -> float | None:
    errors = []
    for family in {one.family for one in rows}:
        others = [one for one in every if one.family != family]
        if not others:
            return None
        constant = np.median(_ratios(others, lambda one: one.tpot_s / one.baseline_s))
        errors += [
            abs(constant * one.baseline_s / one.tpot_s - 1.0) for one in rows
            if one.family == family
        ]  # fmt: skip
    return float(np.median(errors))
