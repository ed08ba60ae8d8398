"""Measure records to compact ASTs: the one function that datasets and predictions use."""

from __future__ import annotations

from collections.abc import Sequence

from cdmpp.errors import ReplayError
from cdmpp.features.compact_ast import CompactAst
from cdmpp.features.tree import compact_ast
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


def _featurise(dag: Dag, record: MeasureRecord) -> CompactAst | ReplayError:
    try:
        tree = lower_record(dag, record.steps, is_gpu=record.target_kind in _GPU_KINDS)
        return compact_ast(tree)
    except ReplayError as error:
        return error
    except RecursionError:
        return ReplayError("expression nested too deeply")
