"""Converts measure records and loop trees to compact ASTs with the native code."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache

from cdmpp.errors import ReplayError
from cdmpp.programs.ansor.dag import Dag, parse_dag
from cdmpp.programs.ansor.state import ScheduleState
from cdmpp.programs.compact_ast import CompactAst
from cdmpp.programs.gpu_limits import GpuLimits, gpu_limits
from cdmpp.programs.loops.loop_tree import LoopTree
from cdmpp.programs.native.binding import NativeBatch, NativeTask, Status, featurise_trees
from cdmpp.programs.native.build import native_library
from cdmpp.records import GPU_TARGET_KINDS, MeasureRecord, TensetTask

#: Reason for programs that the native code declines; the detail names the unsupported part.
UNSUPPORTED = "unsupported program"
_CACHED_TASKS = 8
# Plain integers compare ten times as fast as members of the enumeration.
_VALID, _FAILED, _DECLINED = int(Status.VALID), int(Status.FAILED), int(Status.DECLINED)
_WITH_FEATURES = (_VALID, int(Status.REJECTED))


def featurise_records(
    task: TensetTask, records: Sequence[MeasureRecord], *, threads: int = 1
) -> list[CompactAst | ReplayError]:
    """Replays and lowers the programs of one task.

    Args:
        task: the computation.
        records: programs of this task; their costs are ignored.
        threads: number of threads of the native code.

    Returns:
        The compact AST of each record, or the reason why it cannot be replayed.

    Raises:
        DataError: the task's computation cannot be read, or the native code is missing.
    """
    dag, native = prepared_task(task.dag_json)
    if not records:
        return []
    batch = native_batch(native, records, threads=threads)
    results = outcomes(batch)
    for number, status in enumerate(batch.status.tolist()):
        if status == _DECLINED:
            results[number] = _replay_error(dag, records[number]) or results[number]
    return results


def compact_asts(
    programs: Sequence[LoopTree | ReplayError], limits: Sequence[GpuLimits | None]
) -> list[CompactAst | ReplayError]:
    """Featurises loop trees.

    Args:
        programs: loop trees, or errors, which are returned in their place.
        limits: limits of a kernel, one per program; None = unlimited.

    Raises:
        DataError: the native code is missing.
    """
    pairs = zip(programs, limits, strict=True)
    chosen = [(one, limit) for one, limit in pairs if isinstance(one, LoopTree)]
    trees, of_trees = [one for one, _ in chosen], [limit for _, limit in chosen]
    made = iter(outcomes(featurise_trees(trees, of_trees, native_library())))
    return [one if isinstance(one, ReplayError) else next(made) for one in programs]


def native_batch(
    native: NativeTask, records: Sequence[MeasureRecord], *, threads: int = 1
) -> NativeBatch:
    """Featurises the programs of one task with the native code."""
    limits = {hardware: gpu_limits(hardware) for hardware in {r.hardware_params for r in records}}
    return native.featurise_steps(
        [_steps_text(record) for record in records],
        is_gpu=[is_gpu_kind(record.target_kind) for record in records],
        limits=[limits[record.hardware_params] for record in records],
        threads=threads,
    )


def is_gpu_kind(target_kind: str) -> bool:
    """Returns whether programs of a target kind (first word of a target) are GPU kernels."""
    return target_kind in GPU_TARGET_KINDS


@lru_cache(maxsize=_CACHED_TASKS)
def prepared_task(dag_json: str) -> tuple[Dag, NativeTask]:
    """Returns a computation and its native featuriser.

    Raises:
        DataError: the computation cannot be read, or the native code is missing.
    """
    dag = parse_dag(dag_json)
    return dag, NativeTask(dag, native_library())


def _steps_text(record: MeasureRecord) -> bytes:
    if record.steps_text is not None:
        return record.steps_text.encode()
    import orjson  # here, because the side environment of the old TVM lacks it

    try:
        return orjson.dumps(record.steps)
    except TypeError:  # an integer of more than 64 bits or a lone surrogate
        return json.dumps(record.steps).encode()


def _replay_error(dag: Dag, record: MeasureRecord) -> ReplayError | None:
    """Returns the malformed step of a declined record; None if the steps are not the reason."""
    try:
        ScheduleState(dag).apply(list(record.steps))
    except ReplayError as error:
        return error
    except (ArithmeticError, AttributeError, RecursionError):  # steps that Ansor never writes
        return None
    return None


def outcomes(batch: NativeBatch) -> list[CompactAst | ReplayError]:
    """Returns the compact AST or error of each program of a batch; arrays are views of it."""
    leaf, tree = batch.leaf_offset.tolist(), batch.tree_offset.tolist()
    results: list[CompactAst | ReplayError] = []
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
            results.append(ReplayError(UNSUPPORTED, batch.reasons[number]))
    return results
