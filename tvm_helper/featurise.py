"""Measure records to compact ASTs: the one function that datasets and predictions use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cdmpp.errors import ReplayError
from cdmpp.features.compact_ast import CompactAst
from cdmpp.features.gpu_limits import gpu_limits, gpu_violation
from cdmpp.features.loop_tree import LoopTree
from cdmpp.features.tree import compact_ast, reject_reason
from cdmpp.records import MeasureRecord, TensetTask
from tvm_helper.dag import Dag, parse_dag
from tvm_helper.lower import lower_record

_GPU_KINDS = frozenset(("cuda", "rocm", "opencl", "vulkan", "metal"))


def featurise_records(
    task: TensetTask, records: Sequence[MeasureRecord]
) -> list[CompactAst | ReplayError]:
    """Replays and lowers the programs of one task.

    Args:
        task: the computation.
        records: programs of that task; their costs are not looked at.

    Returns:
        For every record its compact AST, or why it could not be replayed.

    Raises:
        DataError: the task's computation cannot be read.
    """
    dag = parse_dag(task.dag_json)
    return [_featurise(dag, record) for record in records]


def is_gpu_kind(target_kind: str) -> bool:
    """Whether programs of that target kind (first word of a target) are GPU kernels."""
    return target_kind in _GPU_KINDS


def rejection(tree: LoopTree, record: MeasureRecord) -> str | None:
    """Returns why the original toolchain rejects a replayed program, or None."""
    reason = reject_reason(tree)
    limits = gpu_limits(record.hardware_params) if tree.is_gpu else None
    if reason is None and limits is not None:
        reason = gpu_violation(tree, limits)
    return reason


def _featurise(dag: Dag, record: MeasureRecord) -> CompactAst | ReplayError:
    try:
        tree = lower_record(dag, record.steps, is_gpu=is_gpu_kind(record.target_kind))
        ast = compact_ast(tree)
    except ReplayError as error:
        return error
    except RecursionError:
        return ReplayError("expression nested too deeply")
    reason = rejection(tree, record)
    return replace(ast, valid=reason is None, reject_reason=reason)
