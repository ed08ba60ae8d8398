"""Measure records to compact ASTs: the one function that datasets and predictions use.

The native code does it where it can be compiled, Python (its reference) otherwise and for the few
records that the native code declines; the results are the same.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from cdmpp.errors import DataError, ReplayError
from cdmpp.programs.ansor.dag import Dag, parse_dag
from cdmpp.programs.ansor.lower import lower_record
from cdmpp.programs.compact_ast import CompactAst
from cdmpp.programs.gpu_limits import gpu_limits, gpu_violation
from cdmpp.programs.leaves.tree import compact_ast, reject_reason
from cdmpp.programs.loops.loop_tree import LoopTree
from cdmpp.programs.native import NativeBatch, NativeTask, Status, native_library
from cdmpp.records import GPU_TARGET_KINDS, MeasureRecord, TensetTask

_CACHED_TASKS = 8
# As plain numbers, which compare ten times as fast as members of the enumeration.
_VALID, _FAILED = int(Status.VALID), int(Status.FAILED)
_WITH_FEATURES = (_VALID, int(Status.REJECTED))


def featurise_records(
    task: TensetTask, records: Sequence[MeasureRecord], *, threads: int = 1
) -> list[CompactAst | ReplayError]:
    """Replays and lowers the programs of one task.

    Args:
        task: the computation.
        records: programs of that task; their costs are not looked at.
        threads: how many threads the native code works with.

    Returns:
        For every record its compact AST, or why it could not be replayed.

    Raises:
        DataError: the task's computation cannot be read.
    """
    dag, native = prepared_task(task.dag_json)
    if native is None or not records:
        return [_featurise(dag, record) for record in records]
    batch = native_batch(native, records, threads=threads)
    return [
        _featurise(dag, record) if result is None else result
        for record, result in zip(records, outcomes(batch), strict=True)
    ]


def native_batch(
    native: NativeTask, records: Sequence[MeasureRecord], *, threads: int = 1
) -> NativeBatch:
    """Returns what the native code makes of the programs of one task."""
    limits = {hardware: gpu_limits(hardware) for hardware in {r.hardware_params for r in records}}
    return native.featurise_steps(
        [_steps_text(record) for record in records],
        is_gpu=[is_gpu_kind(record.target_kind) for record in records],
        limits=[limits[record.hardware_params] for record in records],
        threads=threads,
    )


def is_gpu_kind(target_kind: str) -> bool:
    """Whether programs of that target kind (first word of a target) are GPU kernels."""
    return target_kind in GPU_TARGET_KINDS


def rejection(tree: LoopTree, record: MeasureRecord) -> str | None:
    """Returns why the original toolchain rejects a replayed program, or None."""
    reason = reject_reason(tree)
    limits = gpu_limits(record.hardware_params) if tree.is_gpu else None
    if reason is None and limits is not None:
        reason = gpu_violation(tree, limits)
    return reason


@lru_cache(maxsize=_CACHED_TASKS)
def prepared_task(dag_json: str) -> tuple[Dag, NativeTask | None]:
    """Returns a computation and its native featuriser; None where Python has to do it."""
    dag = parse_dag(dag_json)
    library = native_library()
    if library is None:
        return dag, None
    try:
        return dag, NativeTask(dag, library)
    except DataError:  # too large or odd for the native form: the reference does it
        return dag, None


def _steps_text(record: MeasureRecord) -> bytes:
    if record.steps_text is not None:
        return record.steps_text.encode()
    import orjson  # here, because the side environment of the old TVM has none

    try:
        return orjson.dumps(record.steps)
    except TypeError:  # a number of more than 64 bits or half a character
        return json.dumps(record.steps).encode()


def outcomes(batch: NativeBatch) -> list[CompactAst | ReplayError | None]:
    """Returns what became of every record of a batch, None where Python has to decide.

    The arrays are views of the batch's.
    """
    leaf, tree = batch.leaf_offset.tolist(), batch.tree_offset.tolist()
    results: list[CompactAst | ReplayError | None] = []
    for number, status in enumerate(batch.status.tolist()):
        if status in _WITH_FEATURES:
            leaves = slice(leaf[number], leaf[number + 1])
            features = batch.leaf_features[leaves]
            results.append(
                CompactAst(
                    leaf_features=features,
                    leaf_extra=batch.leaf_extra[leaves],
                    leaf_position=batch.leaf_position[leaves],
                    tree=batch.tree[tree[number] : tree[number + 1]],
                    valid=status == _VALID,
                    reject_reason=batch.reasons[number] or None,
                )
            )
        elif status == _FAILED:
            results.append(ReplayError(batch.reasons[number], batch.details[number]))
        else:
            results.append(None)
    return results


def _featurise(dag: Dag, record: MeasureRecord) -> CompactAst | ReplayError:
    try:
        tree = lower_record(dag, record.steps, is_gpu=is_gpu_kind(record.target_kind))
        ast = compact_ast(tree)
    except ReplayError as error:
        return error
    except RecursionError:
        return ReplayError("expression nested too deeply")
    except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
        # Steps that no Ansor writes can contradict each other in ways that nothing above looks for.
        return ReplayError("steps contradict each other", f"{type(error).__name__}: {error}"[:80])
    reason = rejection(tree, record)
    return replace(ast, valid=reason is None, reject_reason=reason)
