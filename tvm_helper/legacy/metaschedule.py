"""Featurisation of older MetaSchedule databases by the old TVM in the side environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cdmpp.datasets.extraction.source import Featurised
from cdmpp.datasets.metaschedule.older import module_format, upgraded_module, upgraded_trace
from cdmpp.errors import DataError, ReplayError
from cdmpp.programs.featurise import compact_asts
from cdmpp.programs.gpu_limits import gpu_limits
from cdmpp.programs.loops.loop_tree import LoopTree
from cdmpp.records import MeasureRecord
from tvm_helper.legacy.block_tir import loop_tree_of_blocks
from tvm_helper.legacy.client import LegacyProcessError, LegacyTvm, shared_process
from tvm_helper.tasks.block_names import operator_of_blocks

#: Number of crashes or hangs of the old TVM after which the rest of a workload is skipped.
_GIVE_UP_AFTER = 3
_MAX_DETAIL = 160


def featurise_older_traces(module_json: str, records: list[MeasureRecord]) -> Featurised:
    """Replays programs of one workload of an older TVM's database.

    Args:
        module_json: the workload's module in the database's format.
        records: records whose `steps` are traces (instructions, decisions).

    Raises:
        DataError: the old TVM cannot load the module.
        UsageError: there is no side environment.
    """
    return features_of(shared_process(), module_json, records)


def features_of(tvm: LegacyTvm, module_json: str, records: Sequence[MeasureRecord]) -> Featurised:
    """Does the work of `featurise_older_traces` with the given connection."""
    module = upgraded_module(module_json)
    head: dict[str, Any] = {}
    programs: list[LoopTree | ReplayError] = []
    deaths = 0
    while len(programs) < len(records):
        traces = [upgraded_trace(list(record.steps)) for record in records[len(programs) :]]
        request = {"kind": "metaschedule", "module": module, "traces": traces}
        try:
            for answer in tvm.ask(request):
                if "task_error" in answer:
                    raise DataError(_cannot_load(module_json, answer["task_error"]))
                if "blocks" in answer:
                    head = answer
                else:
                    programs.append(_program(answer))
        except LegacyProcessError as error:
            deaths += 1
            lost = 1 if deaths < _GIVE_UP_AFTER else len(records) - len(programs)
            programs += [_failure("old TVM's process died", error)] * lost
    blocks = [(str(name), int(axes)) for name, axes in head.get("blocks", [])]
    results = compact_asts(programs, [gpu_limits(record.hardware_params) for record in records])
    return Featurised("metaschedule", operator_of_blocks(blocks), head.get("flop_count"), results)


def _cannot_load(module_json: str, reason: str) -> str:
    version = module_format(module_json).version
    return (
        "TVM 0.17, which reads databases of older TVMs, cannot load this module of TVM "
        f"{version} ({reason}); expected a module of TVM 0.16 or before, or of TVM 0.27"
    )


def _program(answer: dict[str, Any]) -> LoopTree | ReplayError:
    if "error" in answer:
        return _failure("trace cannot be applied", answer["error"])
    try:
        return loop_tree_of_blocks(answer["tir"])
    except (DataError, RecursionError) as error:
        return _failure("no loop tree", error)


def _failure(what: str, detail: object) -> ReplayError:
    return ReplayError(f"{what}: {' '.join(str(detail).split())[:_MAX_DETAIL]}")
