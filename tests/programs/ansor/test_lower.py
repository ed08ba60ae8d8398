"""Steps on a small computation: the loop tree that comes out, and clear refusals of bad steps."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from cdmpp.errors import ReplayError
from cdmpp.programs.loops.expr import expr_text
from cdmpp.programs.loops.loop_tree import Allocation, Condition, Loop, LoopTree, stores_with_path
from tests.programs.ansor.small_dags import matmul_relu
from tests.programs.reference.lower import lower_record

TILED = [
    ["SP", 2, 0, 64, [4, 2], 1], ["SP", 2, 3, 32, [8], 1], ["SP", 2, 5, 48, [16], 1],
    ["RE", 2, [0, 3, 1, 5, 2, 6, 4]], ["FSP", 3, 0, 0, 1], ["FSP", 3, 2, 1, 1],
    ["RE", 3, [0, 2, 1, 3]], ["CA", 2, 3, 1], ["FU", 3, [0, 1]], ["AN", 3, 0, 3],
    ["PR", 2, 0, "auto_unroll_max_step$64"], ["AN", 2, 6, 2],
]  # fmt: skip


def loops(tree: LoopTree) -> list[list[tuple[int, str]]]:
    return [
        [(n.extent, n.kind) for n in path if isinstance(n, Loop)]  # type: ignore[misc]
        for _, path in stores_with_path(tree)
    ]


def lower(steps: list[Any]) -> LoopTree:
    return lower_record(matmul_relu(), steps, is_gpu=False)


def test_no_steps_gives_plain_loops() -> None:
    tree = lower([])
    assert loops(tree) == [
        [(64, "serial"), (32, "serial")],
        [(64, "serial"), (32, "serial"), (48, "serial")],
        [(64, "serial"), (32, "serial")],
    ]
    assert [store.buffer.name for store, _ in stores_with_path(tree)] == ["C", "C", "D"]


def test_tiled_and_attached_stage() -> None:
    tree = lower(TILED)
    outer = [(32, "parallel")]
    tile = [(4, "serial"), (2, "serial")]
    assert loops(tree) == [
        [*outer, *tile, (8, "vectorized")],
        [*outer, (4, "serial"), (3, "serial"), (2, "serial"), (16, "serial"), (8, "vectorized")],
        [*outer, (8, "serial"), (8, "serial")],
    ]
    allocation = next(
        n for _, path in stores_with_path(tree) for n in path
        if isinstance(n, Allocation) and n.buffer.name == "C"
    )  # fmt: skip
    assert allocation.extents == (8, 8)


def test_split_with_a_remainder_is_guarded() -> None:
    tree = lower([["SP", 3, 0, 64, [10], 1]])
    store, path = list(stores_with_path(tree))[-1]
    conditions = [expr_text(n.condition) for n in path if isinstance(n, Condition)]
    assert [n.extent for n in path if isinstance(n, Loop)] == [7, 10, 32]
    assert len(conditions) == 1
    assert conditions[0].endswith("< 64))")
    assert store.buffer.name == "D"


def test_inlined_stage_disappears() -> None:
    dag = matmul_relu()
    with pytest.raises(ReplayError, match="cannot be inlined"):
        lower_record(dag, [["CI", 2]], is_gpu=False)
    with pytest.raises(ReplayError, match="output stage"):
        lower_record(dag, [["CI", 3]], is_gpu=False)


def test_cache_write_moves_the_reduction() -> None:
    tree = lower([["CHW", 2, "local"]])
    assert [store.buffer.name for store, _ in stores_with_path(tree)] == [
        "C.local", "C.local", "C", "D",
    ]  # fmt: skip


def test_cache_read_adds_a_copy() -> None:
    tree = lower([["CHR", 0, "shared", [2]]])
    assert [store.buffer.name for store, _ in stores_with_path(tree)] == ["A.shared", "C", "C", "D"]


def test_rfactor_splits_the_reduction() -> None:
    tree = lower([["SP", 2, 2, 48, [16], 1], ["RF", 2, 3, 2]])
    stores = list(stores_with_path(tree))
    assert [store.buffer.name for store, _ in stores] == ["C.rf", "C.rf", "C", "C", "D"]
    assert loops(tree)[1] == [(64, "serial"), (32, "serial"), (16, "serial"), (3, "serial")]
    assert loops(tree)[3] == [(64, "serial"), (32, "serial"), (16, "serial")]


def test_rfactor_of_a_fused_reduction() -> None:
    tree = lower([["FU", 2, [2]], ["SP", 2, 2, 48, [4], 1], ["RF", 2, 2, 2]])
    assert loops(tree)[1] == [(64, "serial"), (32, "serial"), (12, "serial"), (4, "serial")]


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ([["XX", 0]], "unknown step code"),
        ([[17, 0]], "unknown step code"),
        (["SP"], "unknown step code"),
        ([["SP", 9, 0, 64, [4], 1]], "stage index out of range"),
        ([["SP", -1, 0, 64, [4], 1]], "stage index out of range"),
        ([["SP", 3, 7, 64, [4], 1]], "iterator index out of range"),
        ([["SP", 3, 0, 64, [0], 1]], "split length is not a positive number"),
        ([["SP", 3, 0]], "malformed SP step"),
        ([["AN", 3, 0, 42]], "unsupported annotation"),
        ([["AN", 3, 0, "fast"]], "unsupported annotation"),
        ([["RE", 3, [0, 0]]], "reorder is not a permutation"),
        ([["FU", 3, [1, 0]]], "fused iterators are not neighbours"),
        ([["PR", 3, 0, "tensor_core$1"]], "unsupported pragma"),
        ([["PR", 3, 0, "auto_unroll_max_step$many"]], "malformed PR step"),
        ([["FSP", 3, 0, 5, 1]], "followed step is not a split"),
        ([["SP", 2, 0, 64, [4], 1], ["FSP", 3, 0, 0, 9]], "follow split has too many parts"),
        ([["CA", 2, 2, 0]], "stage attached to itself"),
        ([["CA", 2, 3, 0], ["CA", 3, 2, 0]], "stages are attached in a circle"),
        ([["CA", 3, 2, 0]], "output stage is not at the root"),
        ([["RF", 2, 0, 0]], "rfactor of an iterator that is no reduction"),
        ([["CHW", 0, "local"]], "cache write of a placeholder"),
    ],
)  # fmt: skip
def test_bad_steps_are_refused(steps: list[Any], reason: str) -> None:
    with pytest.raises(ReplayError, match=reason):
        lower(steps)


def test_lowering_changes_neither_dag_nor_steps() -> None:
    dag, steps = matmul_relu(), copy.deepcopy(TILED)
    first = lower_record(dag, steps, is_gpu=False)
    second = lower_record(dag, steps, is_gpu=False)
    assert steps == TILED
    assert loops(first) == loops(second)
