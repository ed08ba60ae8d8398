"""Rows of the two tables of an extracted dataset: from records and what their featuriser gave."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from cdmpp.datasets.flops import flop_count
from cdmpp.datasets.json_graph import JsonGraph
from cdmpp.datasets.operators import operator_name
from cdmpp.errors import DataError, ReplayError
from cdmpp.features.compact_ast import LEAF_FEATURE_COUNT, CompactAst
from cdmpp.records import MeasureRecord, Source, TensetTask

Featurise: TypeAlias = Callable[
    [TensetTask, list[MeasureRecord]], Sequence[CompactAst | ReplayError]
]

#: Reasons that do not come from replaying a program.
_OWN_REASONS = ("internal error", "task not in network_info", "unreadable task")


def reason_group(reason: str) -> str:
    """Returns the part of a reject reason that many programs share: what is before the detail."""
    parts = re.sub(r" \(\d+\)", "", reason).split(": ")
    has_prefix = parts[0] in ("replay", "internal error")
    return ": ".join(parts[: 2 if has_prefix else 1])[:100]


def measurement_row(identity: str, record: MeasureRecord) -> dict[str, Any]:
    return {
        "program_id": identity,
        "device": record.device,
        "latency_s": record.latency_s,
        "latency_std_s": float(np.std(record.costs_s)) if record.is_ok else None,
        "costs_s": list(record.costs_s),
        "error_code": record.error_code,
        "measured_at": record.measured_at,
    }


def program_rows(
    task: TensetTask | None,
    networks: list[tuple[str, int]],
    records: dict[str, MeasureRecord],
    featurise: Featurise,
) -> Iterable[tuple[str, dict[str, Any]]]:
    """Yields (program id, row) for the distinct programs of one task."""
    operator, flops = _describe(task)
    features: Sequence[CompactAst | ReplayError]
    if task is None:
        features = [ReplayError("task not in network_info")] * len(records)
    else:
        features = _featurise(task, list(records.values()), featurise)
    for (identity, record), result in zip(records.items(), features, strict=True):
        yield (
            identity,
            program_row(
                identity,
                record,
                result,
                source="tenset",
                operator=operator,
                networks=networks,
                flop_count=flops,
            ),
        )


def program_row(
    identity: str,
    record: MeasureRecord,
    result: CompactAst | ReplayError,
    *,
    source: Source,
    operator: str,
    networks: Sequence[tuple[str, int]],
    flop_count: float | None,
) -> dict[str, Any]:
    """Returns the row of `programs` of a program: one of its records and what featurising gave."""
    reason = _reject_reason(result)
    ast = result if isinstance(result, CompactAst) else _empty_ast()
    return {
        "program_id": identity,
        "source": source,
        "workload_key": record.workload_key,
        "operator": operator,
        "target_kind": record.target_kind,
        "networks": [{"name": name, "weight": weight} for name, weight in networks],
        "flop_count": flop_count,
        "valid": reason is None,
        "reject_reason": reason,
        "leaf_features": np.asarray(ast.leaf_features, np.float32).ravel(),
        "leaf_extra": np.asarray(ast.leaf_extra, np.float32).ravel(),
        "leaf_position": np.asarray(ast.leaf_position, np.int32),
        "tree": np.asarray(ast.tree, np.int32),
    }


def _describe(task: TensetTask | None) -> tuple[str, float | None]:
    """Returns (operator name, flop count); `unknown`, None where the task cannot be read."""
    if task is None:
        return "unknown", None
    try:
        graph = JsonGraph(task.dag_json)
        return operator_name(graph), flop_count(graph)
    except DataError:
        return "unknown", None


def _featurise(
    task: TensetTask, records: list[MeasureRecord], featurise: Featurise
) -> list[CompactAst | ReplayError]:
    """Calls the featuriser on all records; when that raises, on one at a time.

    So one bad program costs one program: what it raises becomes its reject reason and is counted.
    """
    try:
        results = list(featurise(task, records))
    except Exception as error:
        if len(records) > 1:
            return [result for one in records for result in _featurise(task, [one], featurise)]
        if isinstance(error, DataError):
            return [ReplayError(getattr(error, "reason", f"unreadable task: {error}"))]
        return [ReplayError(f"internal error: {type(error).__name__}: {error}"[:200])]
    if len(results) != len(records):
        raise DataError(
            f"the featuriser returned {len(results)} results for {len(records)} records of task "
            f"{task.workload_key}"
        )
    return results


def _reject_reason(result: CompactAst | ReplayError) -> str | None:
    """Returns why a program cannot be a sample, None when it can."""
    if isinstance(result, ReplayError):
        is_replay = not result.reason.startswith(_OWN_REASONS)
        return f"replay: {result.reason}" if is_replay else result.reason
    if not result.valid:
        return result.reject_reason or "rejected"
    leaf_count = len(result.leaf_position)
    if leaf_count == 0:
        return "no stores"
    if result.leaf_features.shape != (leaf_count, LEAF_FEATURE_COUNT):
        return f"features of shape {result.leaf_features.shape}"
    if not (np.isfinite(result.leaf_features).all() and np.isfinite(result.leaf_extra).all()):
        return "features are not finite"
    return None


def _empty_ast() -> CompactAst:
    return CompactAst(
        leaf_features=np.zeros((0, LEAF_FEATURE_COUNT), np.float32),
        leaf_extra=np.zeros((0, 0), np.float32),
        leaf_position=np.zeros(0, np.int32),
        tree=np.zeros(0, np.int32),
        valid=False,
    )
