"""The additional leaf columns of real programs: native and Python alike, names mean nothing."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdmpp.datasets.tenset.folder import default_dataset_dir, load_tasks
from cdmpp.datasets.tenset.record_line import parse_record
from cdmpp.datasets.tenset.task_index import TaskIndex
from cdmpp.programs.added_columns import EXTRA_BLOCKS, LEAF_EXTRA_NAMES
from cdmpp.programs.ansor.dag import parse_dag
from cdmpp.programs.compact_ast import LEAF_EXTRA_COUNT
from cdmpp.programs.featurise import native_batch
from cdmpp.programs.loops.expr import Buffer, Expr, int_const, int_var, load
from cdmpp.programs.loops.loop_tree import (
    Allocation,
    Attribute,
    Condition,
    Loop,
    LoopTree,
    Node,
    Store,
)
from cdmpp.programs.native import NativeTask, Status, featurise_trees, native_library
from tests.paths import shared
from tests.programs.ansor.fixture_records import fixture_records
from tests.programs.gpu_programs import flat_block, tiled_copy, two_kernels
from tests.programs.native.native_fuzz import difference, golden_records
from tests.programs.native.test_native import dataset_lines
from tests.programs.programs import binary, gather, matmul, nest
from tests.programs.reference.lower import lower_record
from tests.programs.reference.tree import compact_ast


@pytest.fixture(scope="module")
def library() -> Any:
    return native_library()


def test_trees_written_by_hand_are_the_same_natively(library: Any) -> None:
    trees = [matmul(), gather(), tiled_copy(pad=0), tiled_copy(pad=1), two_kernels(), flat_block()]
    batch = featurise_trees(trees, [None] * len(trees), library)
    assert not (batch.status == Status.DECLINED).any(), batch.reasons
    for number, tree in enumerate(trees):
        assert difference(batch, number, compact_ast(tree)) is None


_DIVISORS = st.integers(1, 40).map(int_const)
_INDICES = st.recursive(
    st.sampled_from(["x", "y", "k"]).map(int_var) | st.integers(-9, 40).map(int_const),
    lambda children: (
        st.builds(binary, st.sampled_from(["add", "sub", "mul", "min", "max"]), children, children)
        | st.builds(
            binary, st.sampled_from(["floordiv", "floormod", "div", "mod"]), children, _DIVISORS
        )
    ),
    max_leaves=7,
)


@settings(deadline=None)
@given(
    st.lists(_INDICES, min_size=4, max_size=6),
    st.tuples(st.integers(1, 40), st.integers(1, 6), st.integers(1, 20)),
    st.sampled_from(["global", "shared"]),
    st.booleans(),
)
def test_any_indices_are_the_same_natively(
    library: Any, indices: list[Expr], extents: tuple[int, int, int], scope: str, is_gpu: bool
) -> None:
    source = Buffer("in", "int8" if len(indices) % 2 else "float32", (90, 70), scope)
    target = Buffer("out", "float32", (90, 70))
    reads = [load(source, (a, b)) for a, b in pairwise(indices[2:])]
    value = reads[0]
    for read in reads[1:]:
        value = binary("add", value, read)
    store = Store(target, (indices[0], indices[1]), value)
    kinds = ("threadIdx.x", "threadIdx.y", "serial") if is_gpu else ("serial",) * 3
    loops = list(zip("xyk", extents, kinds, strict=True))
    tree = LoopTree((source, target), nest(loops, [store]), is_gpu)  # type: ignore[arg-type]
    batch = featurise_trees([tree], [None], library)
    assert batch.status[0] != Status.DECLINED, batch.reasons
    assert difference(batch, 0, compact_ast(tree)) is None


class _Renamer:
    """Gives every buffer and loop variable of a program another name."""

    def __init__(self) -> None:
        self._buffers: dict[Buffer, Buffer] = {}
        self._memo: dict[int, tuple[Expr, Expr]] = {}

    def tree(self, tree: LoopTree) -> LoopTree:
        parameters = tuple(self._buffer(buffer) for buffer in tree.parameters)
        return LoopTree(parameters, self._nodes(tree.body), tree.is_gpu)

    def _buffer(self, buffer: Buffer) -> Buffer:
        if buffer not in self._buffers:
            name = f"z{len(self._buffers)}"
            self._buffers[buffer] = Buffer(name, buffer.dtype, buffer.shape, buffer.scope)
        return self._buffers[buffer]

    def _expr(self, expr: Expr) -> Expr:
        known = self._memo.get(id(expr))
        if known is None:
            value = expr.value
            if expr.op == "load":
                value = self._buffer(value)
            elif expr.op == "var":
                value = f"a.{value}.b"
            args = tuple(self._expr(argument) for argument in expr.args)
            known = self._memo[id(expr)] = (expr, Expr(expr.op, expr.dtype, args, value))
        return known[1]

    def _extent(self, extent: int | Expr) -> int | Expr:
        return self._expr(extent) if isinstance(extent, Expr) else extent

    def _nodes(self, nodes: list[Node]) -> list[Node]:
        return [self._node(node) for node in nodes]

    def _node(self, node: Node) -> Node:
        if isinstance(node, Store):
            indices = tuple(self._expr(index) for index in node.indices)
            return Store(self._buffer(node.buffer), indices, self._expr(node.value))
        body = self._nodes(node.body)
        if isinstance(node, Loop):
            minimum, extent = self._extent(node.minimum), self._extent(node.extent)
            return Loop(f"a.{node.var}.b", minimum, extent, node.kind, body)
        if isinstance(node, Allocation):
            extents = tuple(self._extent(extent) for extent in node.extents)
            return Allocation(self._buffer(node.buffer), extents, body)
        if isinstance(node, Attribute):
            return Attribute(node.key, node.value, body)
        return Condition(self._expr(node.condition), body, self._nodes(node.else_body))


def test_names_mean_nothing() -> None:
    trees = [lower_record(r.dag, r.steps, is_gpu=False) for r in fixture_records()]
    for tree in (*trees, tiled_copy(pad=1), two_kernels()):
        plain, renamed = compact_ast(tree), compact_ast(_Renamer().tree(tree))
        assert np.array_equal(renamed.leaf_extra, plain.leaf_extra)
        assert np.array_equal(renamed.leaf_features, plain.leaf_features)


def assert_finite_and_in_use(library: Any, index: TaskIndex, lines: list[str]) -> None:
    """Asserts that all columns are finite, flags are flags and no block is always the same."""
    by_task = defaultdict(list)
    for line in lines:
        record = parse_record(line)
        by_task[record.workload_key, record.target_kind].append(record)
    parts = []
    for key, records in by_task.items():
        task = index.find(*key)
        assert task is not None
        batch = native_batch(NativeTask(parse_dag(task.dag_json), library), records)
        assert set(batch.status.tolist()) <= {Status.VALID, Status.REJECTED}
        parts.append(batch.leaf_extra)
    extra = np.concatenate(parts)
    assert extra.shape[1] == LEAF_EXTRA_COUNT
    assert np.isfinite(extra).all()
    for number, name in enumerate(LEAF_EXTRA_NAMES):
        last = name.rpartition(".")[2]
        if last.startswith("is_") or name.startswith("scope."):
            assert set(np.unique(extra[:, number]).tolist()) <= {0.0, 1.0}, name
    flags = [
        number for number, name in enumerate(LEAF_EXTRA_NAMES) if name.startswith("scope.store.")
    ]
    assert (extra[:, flags].sum(axis=1) <= 1).all()
    for block, columns in EXTRA_BLOCKS.items():
        if block == "integer":  # Ansor was measured on floats
            continue
        assert bool(np.ptp(extra[:, columns], axis=0).any()), block


@pytest.mark.exhaustive
def test_shipped_programs_have_finite_columns(library: Any) -> None:
    index = load_tasks(default_dataset_dir() / "network_info")
    assert_finite_and_in_use(library, index, dataset_lines(4))


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "folder"), [("llvm", "tenset-cpu"), ("cuda", "tenset-cuda"), ("gpu", "ansor-gpu")]
)
def test_golden_programs_have_finite_columns(library: Any, name: str, folder: str) -> None:
    lines = list(golden_records(shared(f"golden/golden_{name}.jsonl.gz")))
    assert_finite_and_in_use(library, load_tasks(shared(f"{folder}/network_info")), lines)
