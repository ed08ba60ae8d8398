"""Evaluation of a model without and with machine code on measured programs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from cdmpp.arrays import BoolArray
from cdmpp.calibration.intervals import operator_kinds
from cdmpp.datasets.extraction.machine_code import MachineCode
from cdmpp.datasets.samples import Samples
from cdmpp.files.json_text import parse_json
from cdmpp.metrics import mean_over_owners
from cdmpp.predict.corrections import MachineCodeCorrection
from cdmpp.predict.estimates import Estimates, TrainedModel
from cdmpp.predict.machine_code.known import code_columns
from cdmpp.predict.machine_code.model import CodeModel

#: Names of the tiers; the third is the fast tier on the programs of the compiled one.
FAST, COMPILED, FAST_OF_COMPILED = "fast", "compiled", "fast_of_compiled"
_RANGES = (
    (0.0, ""), (1e-5, "under 10 µs"), (1e-4, "10 to 100 µs"), (1e-3, "0.1 to 1 ms"),
    (1e-2, "1 to 10 ms"), (math.inf, "over 10 ms"),
)  # fmt: skip
_INSTRUCTIONS = ("kind", "mcpu", "mtriple", "mattr", "arch")


def judge_tiers(
    trained: TrainedModel, samples: Samples, code: Sequence[MachineCode], fast: Estimates
) -> dict[str, Any]:
    """Returns tier -> figures of `tier_figures`.

    The tiers are `fast`, `compiled` (None if the model reads the machine code of no program) and,
    if it reads that of only some programs, `fast_of_compiled`. Each also has `by_time` (range of
    measured time -> figures) and `by_operator` (kind of operator -> figures).

    Args:
        trained: the model, with its machine-code models.
        fast: its estimates of the samples, without machine code.
    """
    compiled = with_code(trained, samples, code, fast)
    values = {FAST: _judged(samples, fast, np.ones(len(samples), bool)), COMPILED: None}
    if compiled.is_compiled is not None and compiled.is_compiled.any():
        values[COMPILED] = _judged(samples, compiled, compiled.is_compiled)
        if not compiled.is_compiled.all():
            values[FAST_OF_COMPILED] = _judged(samples, fast, compiled.is_compiled)
    return values


def with_code(
    trained: TrainedModel, samples: Samples, code: Sequence[MachineCode], fast: Estimates
) -> Estimates:
    """Corrects estimates by the machine code that the model reads.

    It reads that of its own devices and, on CPUs, of devices with the instructions of one of them.
    """
    for table in code:
        reader = trained.gpu_code if table.kind == "gpu" else trained.code
        if reader is not None:
            columns = code_columns(samples, _read_part(reader, table))
            fast = MachineCodeCorrection(columns, kind=table.kind).apply(trained, samples, fast)
    return fast


def tier_figures(samples: Samples, found: Estimates) -> dict[str, Any]:
    """Returns error metrics of estimates; means and shares are over programs.

    Returns:
        `n` and `tasks`; `mape`, `median_ape`, `mean_log_error` and `median_ratio` as in
        `cdmpp.metrics`; `mape_interval` and `mean_log_error_interval`, 95 % intervals over tasks,
        None for fewer than six tasks; `inside_interval`, the share of measured times in their
        interval, and `interval_factor`, the median of exp(half width), None without intervals;
        `out_of_distribution`, the share of flagged programs, None if the model has no flags.
    """
    ratio = found.latency_s / samples.latency_s
    error, log_error = np.abs(ratio - 1.0), np.abs(np.log(ratio))
    inside = (found.low_s <= samples.latency_s) & (samples.latency_s <= found.high_s)
    half_width = np.log(found.high_s / found.low_s) / 2.0
    has_intervals = bool(np.isfinite(half_width).all())
    strange = found.out_of_distribution
    mape, mape_interval = mean_over_owners(error, samples.task_id)
    mean_log_error, log_interval = mean_over_owners(log_error, samples.task_id)
    return {
        "n": len(samples),
        "tasks": len(np.unique(samples.task_id)),
        "mape": mape,
        "mape_interval": mape_interval,
        "median_ape": float(np.median(error)),
        "mean_log_error": mean_log_error,
        "mean_log_error_interval": log_interval,
        "median_ratio": float(np.median(ratio)),
        "inside_interval": float(inside.mean()) if has_intervals else None,
        "interval_factor": float(np.exp(np.median(half_width))) if has_intervals else None,
        "out_of_distribution": None if strange is None else float(strange.mean()),
    }


def _judged(samples: Samples, found: Estimates, rows: BoolArray) -> dict[str, Any]:
    def of(part: BoolArray) -> dict[str, Any]:
        return tier_figures(samples.take(rows & part), found.take(rows & part))

    def by(groups: Mapping[str, BoolArray]) -> dict[str, Any]:
        return {name: of(part) for name, part in groups.items() if (rows & part).any()}

    kinds = operator_kinds(samples)
    return {
        **of(rows),
        "by_time": by(dict(_by_time(samples))),
        "by_operator": by({str(name): kinds == name for name in sorted(set(kinds.tolist()))}),
    }


def _by_time(samples: Samples) -> Iterator[tuple[str, BoolArray]]:
    for (low_s, _), (high_s, name) in pairwise(_RANGES):
        yield name, (low_s <= samples.latency_s) & (samples.latency_s < high_s)


def _read_part(reader: CodeModel, table: MachineCode) -> MachineCode:
    """Returns a table with only the targets whose code the model reads."""

    def is_read(label: str, text: str) -> bool:
        if label in reader.targets:
            known = [reader.targets[label]]
        else:
            known = list(reader.targets.values()) if table.kind == "cpu" else []
        return _instructions(text) in map(_instructions, known)

    targets = {label: text for label, text in table.targets.items() if is_read(label, text)}
    return MachineCode(targets, table.columns, table.kind)


def _instructions(target: str) -> list[Any]:
    """Returns the entries of a TVM target (JSON) that determine the instruction set."""
    try:
        options = parse_json(target)
    except ValueError:
        return [target]
    return [options.get(name) for name in _INSTRUCTIONS] if isinstance(options, dict) else [target]
