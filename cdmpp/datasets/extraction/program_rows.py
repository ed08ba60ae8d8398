"""Rows of the two tables of an extracted dataset, from records and their features."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from cdmpp.datasets.extraction.source import Featurised
from cdmpp.errors import DataError, ReplayError
from cdmpp.programs.compact_ast import LEAF_FEATURE_COUNT, CompactAst
from cdmpp.records import MeasureRecord

#: Reasons that do not come from replaying a program.
_OWN_REASONS = ("internal error", "task not in network_info", "unreadable task")


def reason_group(reason: str) -> str:
    """Returns a reject reason without its details, for counting."""
    parts = re.sub(r" \(\d+\)", "", reason).split(": ")
    has_prefix = parts[0] in ("replay", "internal error")
    return ": ".join(parts[: 2 if has_prefix else 1])[:100]


def measurement_row(identity: str, record: MeasureRecord) -> dict[str, Any]:
    """Returns the row of `measurements` for a record."""
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


def program_rows(records: dict[str, MeasureRecord], found: Featurised) -> list[dict[str, Any]]:
    """Returns the rows of `programs` for programs of one task.

    The key `fallback` is for counting only; the table has no such column.

    Args:
        records: program id -> a record of the program.
        found: result of the featuriser, in the same order.

    Raises:
        DataError: the numbers of results and records differ.
    """
    if len(found.programs) != len(records):
        raise DataError(
            f"the featuriser returned {len(found.programs)} results for {len(records)} records of "
            f"task {next(iter(records.values())).workload_key}"
        )
    known_finite = _are_finite([ast for ast in found.programs if isinstance(ast, CompactAst)])
    rows = []
    for (identity, record), result in zip(records.items(), found.programs, strict=True):
        ast, reason = _features(result, known_finite=known_finite)
        rows.append({
            "program_id": identity,
            "source": found.source,
            "workload_key": record.workload_key,
            "operator": found.operator,
            "target_kind": record.target_kind,
            "networks": [{"name": name, "weight": weight} for name, weight in found.networks],
            "flop_count": found.flop_count,
            "valid": reason is None,
            "reject_reason": reason,
            "leaf_features": np.asarray(ast.leaf_features, np.float32).ravel(),
            "leaf_extra": np.asarray(ast.leaf_extra, np.float32).ravel(),
            "leaf_position": np.asarray(ast.leaf_position, np.int32),
            "tree": np.asarray(ast.tree, np.int32),
            "schedule": record.schedule if found.source == "tenset" else None,
            "fallback": ast.fallback,
        })  # fmt: skip
    return rows


def _are_finite(asts: Sequence[CompactAst]) -> bool:
    """Whether all features of the programs are finite (faster than one program at a time)."""
    return all(
        bool(np.isfinite(np.concatenate([values.ravel() for values in block])).all())
        for block in ([ast.leaf_features for ast in asts], [ast.leaf_extra for ast in asts])
        if block
    )


def _features(
    result: CompactAst | ReplayError, *, known_finite: bool
) -> tuple[CompactAst, str | None]:
    """Returns the stored features of a program (possibly empty), and why it is invalid.

    Programs that the original toolchain rejects keep their features: some of them run.
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
