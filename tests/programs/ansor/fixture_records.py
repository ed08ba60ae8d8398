"""Accepted records of the shipped dataset, one for each kind of computation and set of steps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from cdmpp.datasets.tenset.folder import (
    ReadReport,
    default_dataset_dir,
    find_device_files,
    load_tasks,
    read_records,
)
from cdmpp.programs.ansor.dag import Dag, parse_dag
from cdmpp.programs.loops.expr import Expr
from cdmpp.programs.loops.loop_tree import (
    Allocation,
    Loop,
    LoopTree,
    Node,
    children,
    stores_with_path,
)
from tests.programs.reference.lower import lower_record
from tests.programs.reference.tree import reject_reason

#: Start of a task's workload key -> step codes that its record shall have.
CHOSEN = {
    '["12b88bedece6984af589a28b43e0f3c4", 1, 56, 56, 256,': "AN CI CR FU PR RE SP",
    '["12ce7983e87fd05673462ec1bdbbc40b", 1, 7, 7, 128,': "AN CA CHW FSP FU PR RE SP",
    '["14342fd24968f3a3bd585ea887ddfe5e", 1, 28, 28, 256,': "AN CA CR FU PR",
    '["23b8a36aee55cd70eeb0706ebd25dcf3", 1, 112, 112, 64,': "AN CA FU PR RF SP",
    '["31511aaa92cea1cc68163d76eb69cf46", 1, 128, 512,': "AN CA CR FU PR RF SP",
    '["47af0d16939e11a8064a6de9accf0744", 1, 14, 14, 576,': "AN CA CI FU PR RE SP",
    '["484c951cc1c094bb81d01f064a696327", 1, 32, 32, 128,': "AN CA FSP FU PR RE SP",
    '["9bf60ca3be59b84edc685ea81314a7a7", 1, 14, 14, 1024,': "AN CA CI FSP FU PR RE SP",
    '["9e3bd222d4f8d250aeadf2fef0b15f2b", 1, 512, 512,': "AN CA CI FSP FU PR RE SP",
    '["cbd44ab40cd3043d1c2bce7ddb1f6392", 2, 16, 128, 128,': "AN CA CR FU PR RF SP",
    '["d2a28fdf41e83222456f5a6e5bf8a24a", 32, 128, 64,': "AN CA CHW FSP FU PR RE SP",
    '["ecec634b4882c5731f86cce3109db636", 1, 28, 28, 128,': "AN CA CI CR FU PR RE SP",
    '["ef319e663b1ce6b90382531c1808b4f0", 1, 128, 512,': "AN CI CR FU PR RF SP",
}
#: A task that nobody measured: global pooling with a window written as an expression.
UNMEASURED = '["69115f188984ae34ede37c3b8ca40b43", 1, 7, 7, 512,'
#: First digits of the workload keys, in the order of `fixture_records`.
NAMES = tuple(start[2:8] for start in (*CHOSEN, UNMEASURED))


@dataclass(frozen=True)
class FixtureRecord:
    """A record and its computation."""

    workload_key: str
    dag_json: str
    dag: Dag
    steps: list[Any]


@lru_cache
def fixture_records() -> tuple[FixtureRecord, ...]:
    folder = default_dataset_dir()
    tasks = load_tasks(folder / "network_info").tasks
    found: dict[str, FixtureRecord] = {}
    for path in find_device_files(folder, "xeon-avx2-2c"):
        for record in read_records(path, ReadReport()):
            start = next((c for c in CHOSEN if record.workload_key.startswith(c)), None)
            codes = " ".join(sorted({step[0] for step in record.steps}))
            if start is None or start in found or CHOSEN[start] != codes:
                continue
            text = tasks[record.workload_key, "llvm"].dag_json
            dag = parse_dag(text)
            if reject_reason(lower_record(dag, record.steps, is_gpu=False)) is None:
                found[start] = FixtureRecord(record.workload_key, text, dag, list(record.steps))
    key, task = next((k, t) for (k, _), t in tasks.items() if k.startswith(UNMEASURED))
    assert len(found) == len(CHOSEN)
    records = [found[start] for start in CHOSEN]
    return (*records, FixtureRecord(key, task.dag_json, parse_dag(task.dag_json), []))


def record_of(name: str) -> FixtureRecord:
    """Returns the record with one of `NAMES`."""
    return fixture_records()[NAMES.index(name)]


def record_with(code: str) -> FixtureRecord:
    """Returns the first record with a step of that code."""
    return next(r for r in fixture_records() if any(step[0] == code for step in r.steps))


def structure(tree: LoopTree) -> list[Any]:
    """Returns [shape, [extent, kind] of every loop of more than one round] of every store."""
    return [
        [
            list(store.buffer.shape),
            [[n.extent, n.kind] for n in path if isinstance(n, Loop) and n.extent != 1],
        ]
        for store, path in stores_with_path(tree)
    ]


def allocations(tree: LoopTree) -> list[Any]:
    """Returns [shape, extents] of every allocation, sorted."""
    found: list[Any] = []

    def visit(nodes: list[Node]) -> None:
        for node in nodes:
            if isinstance(node, Allocation):
                extents = [str(e) if isinstance(e, Expr) else e for e in node.extents]
                found.append([list(node.buffer.shape), extents])
            visit(children(node))

    visit(tree.body)
    return sorted(found, key=str)
