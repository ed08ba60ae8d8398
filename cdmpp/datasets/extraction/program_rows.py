"""Rows of the two tables of an extracted dataset: from records and what their featuriser gave."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from cdmpp.datasets.tenset.flops import flop_count
from cdmpp.datasets.tenset.operator_name import operator_name
from cdmpp.errors import DataError, ReplayError
from cdmpp.programs.ansor.json_graph import JsonGraph
from cdmpp.programs.compact_ast import LEAF_FEATURE_COUNT, CompactAst
from cdmpp.programs.native.build import NativeBuildError
from cdmpp.records import MeasureRecord, Source, TensetTask

Featurise: TypeAlias = Callable[
    [TensetTask, list[MeasureRecord]], Sequence[CompactAst | ReplayError]
]

_CACHED_TASKS = 8
#: Reasons that do not come from replaying a program.
_OWN_REASONS = ("internal error", "task not in network_info", "unreadable task")


def reason_group(reason: str) -> str:
    """Returns the part of a reject reason that many programs share: what is before the detail."""
    parts = re.sub(r" \(\d+\)", "", reason).split(": ")
    has_prefix = parts[0] in ("replay", "internal error")
    return ": ".join(parts[: 2 if has_prefix else 1])[:100]


def measurement_row(identity: str, record: MeasureRecord) -> dict[str, Any]:
    """Returns the row of `measurements` of a record."""
    mean = record.latency_s
    return {
        "program_id": identity,
        "device": record.device,
        "latency_s": mean,
        "latency_std_s": None if mean is None else _deviation(record.costs_s, mean),
        "costs_s": list(record.costs_s),
        "error_code": record.error_code,
        "measured_at": record.measured_at,
    }


def _deviation(costs_s: Sequence[float], mean: float) -> float:
    """Returns the population standard deviation of a few numbers (faster than an array's)."""
    return math.sqrt(sum((cost - mean) ** 2 for cost in costs_s) / len(costs_s))


def program_rows(
    task: TensetTask | None,
    networks: list[tuple[str, int]],
    records: dict[str, MeasureRecord],
    featurise: Featurise,
) -> Iterable[tuple[str, dict[str, Any]]]:
    """Yields (program id, row) for the distinct programs of one task."""
    operator, flops = ("unknown", None) if task is None else _describe(task.dag_json)
    features: Sequence[CompactAst | ReplayError]
    if task is None:
        features = [ReplayError("task not in network_info")] * len(records)
    else:
        features = _featurise(task, list(records.values()), featurise)
    known_finite = _are_finite([ast for ast in features if isinstance(ast, CompactAst)])
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
                known_finite=known_finite,
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
    known_finite: bool = False,
) -> dict[str, Any]:
    """Returns the row of `programs` of a program: one of its records and what featurising gave.

    `fallback` is for counting only, the table has no such column.

    Args:
        known_finite: whether the features have been checked for NaN and infinity.
    """
    ast, reason = _features(result, known_finite=known_finite)
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
        "schedule": record.schedule if source == "tenset" else None,
        "fallback": ast.fallback,
    }


@lru_cache(maxsize=_CACHED_TASKS)
def _describe(dag_json: str) -> tuple[str, float | None]:
    """Returns (operator name, flop count); `unknown`, None where the task cannot be read."""
    try:
        graph = JsonGraph(dag_json)
        return operator_name(graph), flop_count(graph)
    except DataError:
        return "unknown", None


def _featurise(
    task: TensetTask, records: list[MeasureRecord], featurise: Featurise
) -> list[CompactAst | ReplayError]:
    """Calls the featuriser on all records; when that raises, on one at a time.

    So one bad program costs one program: what it raises becomes its reject reason and is counted.

    Raises:
        DataError: there is no native code, or the featuriser's results are not one a record.
    """
    try:
        results = list(featurise(task, records))
    except NativeBuildError:  # not a fault of any program
        raise
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


def _are_finite(asts: Sequence[CompactAst]) -> bool:
    """Whether all features of some programs are finite (faster than one program at a time)."""
    return all(
        bool(np.isfinite(np.concatenate([values.ravel() for values in block])).all())
        for block in ([ast.leaf_features for ast in asts], [ast.leaf_extra for ast in asts])
        if block
    )


def _features(
    result: CompactAst | ReplayError, *, known_finite: bool
) -> tuple[CompactAst, str | None]:
    """Returns what is stored of a program, empty where it has no features, and why it is invalid.

    What the original toolchain rejects keeps its features: some of it runs all the same.
    """
    if isinstance(result, ReplayError):
        is_replay = not result.reason.startswith(_OWN_REASONS)
        return _EMPTY_AST, f"replay: {result.reason}" if is_replay else result.reason
    leaf_count = len(result.leaf_position)
    if result.leaf_features.shape != (leaf_count, LEAF_FEATURE_COUNT):
        return _EMPTY_AST, f"features of shape {result.leaf_features.shape}"
    if not (known_finite or _are_finite([result])):
        return _EMPTY_AST, "features are not finite"
    if not result.valid:
        return result, result.reject_reason or "rejected"
    return result, None if leaf_count else "no stores"


_EMPTY_AST = CompactAst(
    leaf_features=np.zeros((0, LEAF_FEATURE_COUNT), np.float32),
    leaf_extra=np.zeros((0, 0), np.float32),
    leaf_position=np.zeros(0, np.int32),
    tree=np.zeros(0, np.int32),
    valid=False,
)
