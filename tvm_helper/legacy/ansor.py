"""Replay of Tenset records by the old TVM's Ansor: a second reference beside `lower`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from cdmpp.errors import DataError, ReplayError
from cdmpp.programs.compact_ast import CompactAst
from cdmpp.programs.featurise import compact_asts
from cdmpp.programs.gpu_limits import gpu_limits
from cdmpp.programs.loops.canonical import simplified
from cdmpp.programs.loops.loop_tree import LoopTree
from cdmpp.records import MeasureRecord, TensetTask
from tvm_helper.legacy.client import LegacyProcessError, LegacyTvm
from tvm_helper.legacy.tir import loop_tree_from_json

#: Attributes of targets that the old TVM does not support any more.
_GONE_TARGET_ATTRIBUTES = ("-link-params=0", "-link-params=1", "-libs=")


def replay_trees(
    tvm: LegacyTvm, task: TensetTask, records: Sequence[MeasureRecord]
) -> Iterator[LoopTree | ReplayError]:
    """Yields the program of each record of one task, or the reason why Ansor cannot replay it.

    Raises:
        DataError: the task's computation cannot be read.
    """
    position = 0
    dag = _with_constant_matrices(task.dag_json)
    while position < len(records):
        request = {
            "kind": "ansor",
            "workload_key": task.workload_key,
            "dag": dag,
            "records": [_record_text(record) for record in records[position:]],
        }
        try:
            for answer in tvm.ask(request):
                if "task_error" in answer:
                    raise DataError(
                        f"the old TVM cannot read task {task.workload_key}: {answer['task_error']}"
                    )
                position += 1
                yield _program(answer)
        except LegacyProcessError as error:
            position += 1  # skips the record at which the process died; requests the others again
            yield ReplayError("old Ansor's process died", str(error))


def _program(answer: dict[str, Any]) -> LoopTree | ReplayError:
    if "error" in answer:
        return ReplayError("old Ansor", str(answer["error"]))
    try:
        return simplified(loop_tree_from_json(answer["tir"]))
    except (DataError, RecursionError) as error:
        return ReplayError("old Ansor's program", str(error))


def featurise_by_ansor(
    tvm: LegacyTvm, task: TensetTask, records: Sequence[MeasureRecord]
) -> list[CompactAst | ReplayError]:
    """Returns the result of `cdmpp.programs.featurise.featurise_records`, by the old TVM's Ansor.

    Raises:
        DataError: the task's computation cannot be read.
    """
    programs = list(replay_trees(tvm, task, records))
    return compact_asts(programs, [gpu_limits(record.hardware_params) for record in records])


def legacy_target(target: str) -> str:
    """Returns a target without attributes that the old TVM does not support."""
    words = (w for w in target.split() if not w.startswith(_GONE_TARGET_ATTRIBUTES))
    return " ".join(words)


def _record_text(record: MeasureRecord) -> str:
    """Returns the record as a line of a record file of the old TVM."""
    target, hardware = legacy_target(record.target), list(record.hardware_params)
    task = [record.workload_key, target, hardware, "", 0, []]
    value = {
        "i": [task, [[], list(record.steps)]],
        "r": [[0.0], 0, 0, 0],
        "v": "v0.6",
    }
    return json.dumps(value)


def _with_constant_matrices(dag_json: str) -> str:
    """Returns the graph with the bodies of constant matrices replaced by 1.

    Ansor's feature extraction does the same when it inlines them (see `lower.hpp`).
    """
    graph: dict[str, Any] = json.loads(dag_json)
    nodes: list[dict[str, Any]] = graph["nodes"]
    for node in list(nodes):
        if node["type_key"] != "ComputeOp":
            continue
        attrs = nodes[int(node["attrs"]["attrs"])]
        if "const_matrix" not in attrs.get("keys", []):
            continue
        body = nodes[nodes[int(node["attrs"]["body"])]["data"][0]]
        one = {"dtype": str(body["attrs"]["dtype"]), "span": "0", "value": "1"}
        nodes.append({"type_key": "FloatImm", "attrs": one})
        nodes.append({"type_key": "Array", "data": [len(nodes) - 1]})
        node["attrs"]["body"] = str(len(nodes) - 1)
    return json.dumps(graph)
