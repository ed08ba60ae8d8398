"""Replayed records: the original's loops, the plain program's numbers, clear refusals."""

from __future__ import annotations

import copy
import gzip
import itertools
import json
from typing import Any

import numpy as np
import pytest

from cdmpp.errors import ReplayError
from cdmpp.programs.ansor.dag import Dag, parse_dag
from cdmpp.programs.loops.loop_tree import Loop, stores_with_path
from tests.paths import ROOT
from tests.programs.ansor.fixture_records import (
    NAMES,
    allocations,
    fixture_records,
    record_of,
    structure,
)
from tests.programs.ansor.small_dags import matmul_relu

pytestmark = pytest.mark.tvm

GOLDEN = ROOT.parent / "shared" / "data" / "golden" / "golden_llvm.jsonl.gz"
SHIPPED = ROOT / "data" / "tenset-cpu" / "network_info"

TILED: list[Any] = [
    ["SP", 2, 0, 64, [4, 2], 1], ["SP", 2, 3, 32, [8], 1], ["SP", 2, 5, 48, [16], 1],
    ["RE", 2, [0, 3, 1, 5, 2, 6, 4]], ["FSP", 3, 0, 0, 1], ["FSP", 3, 2, 1, 1],
    ["RE", 3, [0, 2, 1, 3]], ["CA", 2, 3, 1], ["FU", 3, [0, 1]], ["AN", 3, 0, 3],
    ["PR", 2, 0, "auto_unroll_max_step$64"], ["AN", 2, 6, 2],
]  # fmt: skip
GPU: list[Any] = [
    ["SP", 2, 0, 64, [1, 8, 2, 1], 1], ["SP", 2, 5, 32, [1, 8, 1, 1], 1],
    ["SP", 2, 10, 48, [4, 2], 1], ["RE", 2, [0, 5, 1, 6, 2, 7, 10, 11, 3, 8, 12, 4, 9]],
    ["FSP", 3, 0, 0, 3], ["FSP", 3, 4, 1, 3], ["RE", 3, [0, 4, 1, 5, 2, 6, 3, 7]],
    ["CA", 2, 3, 5], ["CHR", 1, "shared", [2]], ["CA", 2, 3, 6], ["CHR", 0, "shared", [3]],
    ["CA", 1, 4, 6], ["FU", 5, [0, 1]], ["AN", 5, 0, 5], ["FU", 5, [1, 2]], ["AN", 5, 1, 4],
    ["FU", 5, [2, 3]], ["AN", 5, 2, 6],
    ["FU", 3, [0, 1]], ["SP", 3, 0, 64, [1], 1], ["AN", 3, 1, 2],
    ["FFSP", 3, 0, [0, 1], 1, 1], ["AN", 3, 1, 6],
    ["FU", 1, [0, 1]], ["SP", 1, 0, 128, [2], 1], ["AN", 1, 1, 2],
    ["FFSP", 1, 0, [0, 1], 1, 1], ["AN", 1, 1, 6], ["PR", 4, 0, "auto_unroll_max_step$16"],
]  # fmt: skip


def numbers_agree(dag: Dag, steps: list[Any]) -> bool:
    """Returns whether the scheduled and the plain program give the same outputs."""
    from tvm_helper.compat import llvm_target, te, tvm
    from tvm_helper.tir.prim_func import build_te
    from tvm_helper.tir.schedule_of_record import replay

    target = llvm_target()
    plain = tvm.compile(te.create_prim_func(build_te(dag)), target=target)
    scheduled = tvm.compile(replay(dag, steps).mod, target=target)
    random = np.random.default_rng(0)
    arrays = [random.uniform(-1, 1, b.shape).astype(b.dtype) for b in dag.parameters]
    first = [tvm.runtime.tensor(array) for array in arrays]
    second = [tvm.runtime.tensor(array) for array in arrays]
    plain(*first)
    scheduled(*second)
    count = len(dag.outputs)
    pairs = zip(first[-count:], second[-count:], strict=True)
    assert all(np.abs(a.numpy()).max() > 0 for a in first[-count:])
    return all(
        np.allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=1e-5 * np.abs(a.numpy()).max())
        for a, b in pairs
    )


#: Convolutions that take seconds; their steps occur in the other records too.
COSTLY = {"12b88b", "12ce79", "484c95", "ecec63"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.exhaustive] * (name in COSTLY)) for name in NAMES],
)
def test_replay_computes_the_same_numbers(name: str) -> None:
    record = record_of(name)
    assert numbers_agree(record.dag, record.steps)


@pytest.mark.parametrize("name", NAMES)
def test_replay_and_direct_lowering_agree(name: str) -> None:
    from tests.programs.reference.lower import lower_record
    from tvm_helper.tir.loop_tree import loop_tree_from_tir
    from tvm_helper.tir.schedule_of_record import replay

    record = record_of(name)
    replayed = loop_tree_from_tir(replay(record.dag, record.steps).mod)
    lowered = lower_record(record.dag, record.steps, is_gpu=False)
    assert structure(replayed) == structure(lowered)
    assert allocations(replayed) == allocations(lowered)


def test_every_step_code_of_the_cpu_occurs_in_the_records() -> None:
    records = [record_of(name) for name in NAMES if name not in COSTLY]
    codes = {step[0] for record in records for step in record.steps}
    assert codes == {"AN", "FU", "PR", "RE", "SP", "FSP", "CA", "CI", "CR", "CHW", "RF"}


@pytest.mark.parametrize("sizes", [(64, 32, 48), (50, 30, 20)], ids=["even", "with remainders"])
def test_tiled_matmul_computes_the_same_numbers(sizes: tuple[int, int, int]) -> None:
    assert numbers_agree(matmul_relu(*sizes), TILED)


def test_reductions_and_outputs_cannot_be_inlined() -> None:
    from tvm_helper.tir.schedule_of_record import replay

    for stage in (2, 3):
        with pytest.raises(ReplayError, match="cannot be inlined"):
            replay(matmul_relu(), [["CI", stage]])


def test_strided_convolution_pads_only_what_is_read() -> None:
    """The original drops padded elements that no window reaches; so must the replay."""
    from tvm_helper.tir.loop_tree import loop_tree_from_tir
    from tvm_helper.tir.schedule_of_record import replay

    record = next(r for r in fixture_records() if r.workload_key.startswith('["12b88bed'))
    tree = loop_tree_from_tir(replay(record.dag, record.steps).mod)
    store, path = next(stores_with_path(tree))
    assert store.buffer.shape[1] == 58
    assert next(n.extent for n in path if isinstance(n, Loop)) == 57 * 57


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ([["XX", 1]], "unknown step code"),
        ([["SP", 9, 0, 64, [4], 1]], "stage index out of range"),
        ([["SP", 2, 7, 64, [4], 1]], "iterator index out of range"),
        ([["CA", 3, 2, 0]], "attach loop does not exist"),
        ([["AN", 2, 2, 3]], "TVM refuses parallel"),
    ],
)
def test_bad_steps_are_refused_with_a_reason(steps: list[Any], reason: str) -> None:
    from tvm_helper.tir.schedule_of_record import replay

    with pytest.raises(ReplayError) as error:
        replay(matmul_relu(), copy.deepcopy(steps))
    assert error.value.reason == reason


def test_gpu_steps_bind_threads_and_fetch_together() -> None:
    from tests.programs.reference.lower import lower_record
    from tvm_helper.tir.loop_tree import loop_tree_from_tir
    from tvm_helper.tir.schedule_of_record import replay

    tree = loop_tree_from_tir(replay(matmul_relu(), GPU).mod)
    assert tree.is_gpu
    outer = [[16, "blockIdx.x"], [64, "threadIdx.x"]]
    fetched = [*outer, [6, "serial"]]
    tile = [*outer, [2, "serial"]]
    assert structure(tree) == [
        [[64, 32], tile],
        [[64, 48], [*fetched, [64, "threadIdx.x"], [2, "vectorized"]]],
        [[48, 32], [*fetched, [64, "threadIdx.x"]]],
        [[64, 32], [*fetched, [4, "serial"], [2, "serial"], [2, "serial"]]],
        [[64, 32], tile],
    ]
    assert structure(tree) == structure(lower_record(matmul_relu(), GPU, is_gpu=True))


def test_storage_align_reaches_the_block() -> None:
    from tvm_helper.tir.schedule_of_record import replay

    schedule = replay(matmul_relu(), [["SA", 2, 0, 32, 8], ["CA", 2, 3, 0]])
    assert "buffer_dim_align" in str(schedule.get(schedule.get_sblock("C_update")).annotations)


def test_thread_extent_stays_as_given_when_the_tile_is_smaller() -> None:
    """A cooperative fetch of fewer elements than threads keeps all threads and adds a guard."""
    from tvm_helper.tir.loop_tree import loop_tree_from_tir
    from tvm_helper.tir.schedule_of_record import replay

    tree = loop_tree_from_tir(replay(matmul_relu(64, 32, 4), GPU).mod)
    threads = [
        node.extent
        for _, path in stores_with_path(tree)
        for node in path
        if isinstance(node, Loop) and node.kind == "threadIdx.x"
    ]
    assert set(threads) == {64}


@pytest.mark.exhaustive
@pytest.mark.skipif(not GOLDEN.exists(), reason="needs the golden files in ../shared/data")
def test_sample_of_golden_records_has_the_originals_loops() -> None:
    from cdmpp.datasets.tenset.folder import load_tasks
    from tvm_helper.tir.loop_tree import loop_tree_from_tir
    from tvm_helper.tir.schedule_of_record import replay

    tasks = load_tasks(SHIPPED)
    checked = 0
    with gzip.open(GOLDEN, "rt") as file:
        next(file)
        for line in itertools.islice(file, 0, None, 30):
            data = json.loads(line)
            if data.get("feature_error"):
                continue
            task = tasks.find(data["workload_key"], "llvm")
            assert task is not None
            shapes = {buffer["id"]: buffer["shape"] for buffer in data["bufs"]}
            want = [
                [shapes[s["buf_id"]], [loop[:2] for loop in s["loops"] if loop[0] != 1]]
                for s in data["stores"]
            ]
            record = data["record"]
            steps = (json.loads(record) if isinstance(record, str) else record)["i"][1][1]
            assert (
                structure(loop_tree_from_tir(replay(parse_dag(task.dag_json), steps).mod)) == want
            )
            checked += 1
    assert checked > 25
