"""Conversion of AutoTVM records to compact ASTs by the old TVM in the side environment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from cdmpp.datasets.autotvm.logs import AutotvmTask
from cdmpp.datasets.extraction.source import Featurised
from cdmpp.errors import DataError, ReplayError
from cdmpp.programs.compact_ast import CompactAst
from cdmpp.programs.featurise import compact_asts
from cdmpp.programs.loops.canonical import simplified
from cdmpp.programs.loops.loop_tree import LoopTree
from cdmpp.records import MeasureRecord
from tvm_helper.legacy.ansor import legacy_target
from tvm_helper.legacy.client import LegacyProcessError, LegacyTvm, shared_process
from tvm_helper.legacy.tir import loop_tree_from_json
from tvm_helper.legacy.validity import LIMITS, rejection

#: Number of crashes or hangs of the old TVM after which the rest of a task is skipped.
_GIVE_UP_AFTER = 3
_MAX_REASON = 120

T = TypeVar("T")


def featurise_autotvm(task: AutotvmTask, records: Sequence[MeasureRecord]) -> Featurised:
    """Instantiates and lowers the programs of one task.

    Args:
        task: template and arguments.
        records: programs of the task; their costs are ignored.

    Raises:
        UsageError: there is no side environment.
    """
    return features_of(shared_process(), task, records)


def features_of(tvm: LegacyTvm, task: AutotvmTask, records: Sequence[MeasureRecord]) -> Featurised:
    """Does the work of `featurise_autotvm` with the given connection."""
    flop_count, programs = lowered(tvm, task, records, _program)
    results = _featurised(programs, task.target_kind)
    return Featurised("autotvm", task.operator, flop_count, results)


def lowered(
    tvm: LegacyTvm,
    task: AutotvmTask,
    records: Sequence[MeasureRecord],
    read: Callable[[dict[str, Any]], T | ReplayError],
    *,
    with_source: bool = False,
) -> tuple[float | None, list[T | ReplayError]]:
    """Returns the task's FLOP count, None if unknown, and the result of `read` for each program.

    Args:
        read: response for a program -> result.
        with_source: whether the responses have the CUDA source of the measured program.
    """
    flop_count: float | None = None
    programs: list[T | ReplayError] = []
    deaths = 0
    while len(programs) < len(records):
        request = _request(task, records[len(programs) :], with_source=with_source)
        try:
            for answer in tvm.ask(request):
                if "task_error" in answer:
                    failure = _failure(f"AutoTVM task {task.template}", answer["task_error"])
                    programs += [failure] * (len(records) - len(programs))
                elif "flop_count" in answer:
                    flop_count = answer["flop_count"] or None
                elif "error" in answer:
                    programs.append(_failure("AutoTVM", answer["error"]))
                else:
                    programs.append(read(answer))
        except LegacyProcessError as error:
            deaths += 1
            lost = 1 if deaths < _GIVE_UP_AFTER else len(records) - len(programs)
            programs += [_failure("old TVM's process", str(error))] * lost
    return flop_count, programs


def _request(
    task: AutotvmTask, records: Sequence[MeasureRecord], *, with_source: bool
) -> dict[str, Any]:
    return {
        "kind": "autotvm",
        "template": task.template,
        "arguments": task.arguments,
        "target": legacy_target(task.target),
        "entities": [list(record.steps) for record in records],
        "with_source": with_source,
    }


def _program(answer: dict[str, Any]) -> LoopTree | ReplayError:
    try:
        return simplified(loop_tree_from_json(answer["tir"]))
    except (DataError, RecursionError) as error:
        return _failure("lowered program", str(error))


def _featurised(
    programs: Sequence[LoopTree | ReplayError], target_kind: str
) -> list[CompactAst | ReplayError]:
    results = compact_asts(programs, [LIMITS] * len(programs))
    for number, (program, result) in enumerate(zip(programs, results, strict=True)):
        if isinstance(program, LoopTree) and isinstance(result, CompactAst) and result.valid:
            reason = rejection(program, target_kind)
            results[number] = replace(result, valid=reason is None, reject_reason=reason)
    return results


def _failure(what: str, text: object) -> ReplayError:
    """Returns an error whose reason names the failure on one line."""
    line = " ".join(str(text).split()).replace(": ", ", ")
    return ReplayError(f"{what}, {line}"[:_MAX_REASON])
