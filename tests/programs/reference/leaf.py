"""Leaf vectors: the 164 values of every store of a program, and the additional columns beside them.

Source: the per-store features of Ansor (Zheng et al., OSDI 2020), as TVM 0.8 computes them.
Differs from it: one row a store (there: one a buffer, the last store's), each with the columns of
the written buffer's allocation; access slots have one defined order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from cdmpp.programs.compact_ast import LEAF_FEATURE_COUNT
from cdmpp.programs.loops.expr import Buffer
from cdmpp.programs.loops.loop_tree import (
    Allocation,
    Attribute,
    Condition,
    Loop,
    LoopTree,
    Node,
    Store,
)
from cdmpp.programs.schema import (
    ACCESS_SLOT_COUNT,
    INTENSITY_SAMPLE_COUNT,
    LEAF_FEATURE_NAMES,
    OPERATION_KEYS,
)
from tests.programs.reference.accesses import (
    AccessFeatures,
    EnclosingLoop,
    Traffic,
    access_features,
    store_accesses,
    touch,
)
from tests.programs.reference.added_values import ExtraWalk
from tests.programs.reference.coefficients import CoefficientFinder
from tests.programs.reference.intervals import IntervalAnalysis
from tests.programs.reference.operations import op_counts
from tests.programs.reference.signed_log import signed_log

_ANNOTATIONS = ("vectorized", "unrolled", "parallel")
_THREAD_INDICES = tuple(f"{index}.{axis}" for index in ("blockIdx", "threadIdx") for axis in "xyz")
_THREAD_KINDS = frozenset((*_THREAD_INDICES, "vthread"))
_UNROLL_KEY = "pragma_auto_unroll_max_step"
_POSITION_COUNT = 8
_SLOT_COLUMNS = sum(name.startswith("B0.") for name in LEAF_FEATURE_NAMES)
_CURVE_TOLERANCE = 1e-4


def leaf_vectors(tree: LoopTree) -> list[list[float]]:
    """Returns the 164 values of every store, in program order (columns as `LEAF_FEATURE_NAMES`)."""
    return leaf_rows(tree)[0]


def leaf_rows(tree: LoopTree) -> tuple[list[list[float]], list[list[float]]]:
    """Returns the 164 values and the additional columns of every store, in program order."""
    return _LeafWalk(tree.is_gpu).rows_of(tree.body)


class _LeafWalk:
    """One walk over a program; holds what earlier stores leave behind for later ones."""

    def __init__(self, is_gpu: bool) -> None:
        self._is_gpu = is_gpu
        self._analysis = IntervalAnalysis()
        self._finder = CoefficientFinder()
        self._extra = ExtraWalk(self._analysis, is_gpu=is_gpu)
        self._loops: list[EnclosingLoop] = []
        self._iterations = 1.0
        self._unroll_max_step = 0
        self._ended_bindings: list[Traffic] = []
        self._allocations: dict[Buffer, tuple[float, float]] = {}
        self._rows: list[list[float]] = []

    def rows_of(self, nodes: Sequence[Node]) -> tuple[list[list[float]], list[list[float]]]:
        self._visit_all(nodes)
        return self._rows, self._extra.rows()

    def _visit_all(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            self._visit(node)

    def _visit(self, node: Node) -> None:
        if isinstance(node, Store):
            self._rows.append(self._row(node))
        elif isinstance(node, Loop):
            self._visit_loop(node)
        elif isinstance(node, Allocation):
            elements = math.prod(
                extent if isinstance(extent, int) else 1 for extent in node.extents
            )
            self._allocations[node.buffer] = (elements, self._iterations)
            self._extra.allocate(node.buffer, node.extents)
            self._visit_all(node.body)
        elif isinstance(node, Attribute):
            outer = self._unroll_max_step
            if node.key == _UNROLL_KEY:
                self._unroll_max_step = int(node.value)
            self._visit_all(node.body)
            self._unroll_max_step = outer
        elif isinstance(node, Condition):
            with self._extra.condition(node.condition):
                self._visit_all(node.body)
                self._extra.otherwise()
                self._visit_all(node.else_body)

    def _visit_loop(self, node: Loop) -> None:
        bit = self._analysis.declare(node.var, node.minimum, node.extent)
        self._extra.declare(node.var, node.minimum, node.extent)
        extent = max(node.extent, 1) if isinstance(node.extent, int) else 1
        binds_threads = node.kind in _THREAD_KINDS
        if node.extent == 1 and not binds_threads:
            self._visit_all(node.body)
            return
        # The original files a thread binding's traffic under a memory address that the next binding
        # gets again: a binding goes on with the traffic of the one that ended last.
        resumes = binds_threads and self._ended_bindings
        traffic = self._ended_bindings.pop() if resumes else Traffic()
        outer = self._iterations
        self._loops.append(EnclosingLoop(bit, extent, node.kind, traffic))
        self._iterations = outer * extent
        with self._extra.loop(node.var, extent, node.kind, bit):
            self._visit_all(node.body)
        self._iterations = outer
        self._loops.pop()
        if binds_threads:
            self._ended_bindings.append(traffic)

    def _row(self, store: Store) -> list[float]:
        counts = op_counts(store.value)
        accesses = store_accesses(store, self._analysis)
        touched = touch(accesses, self._loops, self._analysis)
        slots = [
            access_features(
                access,
                self._loops,
                iterations=self._iterations,
                written_region=touched.written,
                finder=self._finder,
            )
            for access in accesses
        ]
        order = _slot_order(slots)
        row = [signed_log(self._iterations * counts.get(key, 0)) for key in OPERATION_KEYS]
        row += self._annotation_columns()
        row += self._thread_columns()
        row += _access_columns([slots[number] for number in order])
        float_ops = sum(count for key, count in counts.items() if key.startswith("float_"))
        extents = [loop.extent for loop in reversed(self._loops)]
        row += _intensity_curve(float_ops, extents, touched.bytes_by_loop)
        row += self._allocation_columns(store)
        row += map(signed_log, (self._iterations, len(self._loops), self._unroll_max_step))
        assert len(row) == LEAF_FEATURE_COUNT
        self._extra.add(
            store.value,
            accesses,
            [accesses[number] for number in order],
            touched=touched,
            iterations=self._iterations,
            float_ops=float_ops,
            selects=counts.get("select_op", 0),
            unroll_max_step=self._unroll_max_step,
            is_across_threads=store.is_across_threads,
        )
        return row

    def _annotation_columns(self) -> list[float]:
        columns: list[float] = []
        for annotation in _ANNOTATIONS:
            extents = [loop.extent for loop in self._loops if loop.kind == annotation]
            position = [0.0] * _POSITION_COUNT
            position[-1 if extents else 0] = 1.0
            if extents:
                columns += map(signed_log, (len(extents), math.prod(extents), extents[-1]))
            else:
                columns += (0.0, 0.0, 0.0)
            columns += position
        return columns

    def _thread_columns(self) -> list[float]:
        extents = {loop.kind: loop.extent for loop in self._loops}
        columns = [float(self._is_gpu)]
        columns += [signed_log(extents.get(kind, 1)) for kind in _THREAD_INDICES]
        vthreads = math.prod(loop.extent for loop in self._loops if loop.kind == "vthread")
        return [*columns, signed_log(vthreads)]

    def _allocation_columns(self, store: Store) -> list[float]:
        found = self._allocations.get(store.buffer)
        if found is None:
            return [0.0] * 4
        elements, outer = found
        return [
            signed_log(elements * store.buffer.element_bytes),
            signed_log(elements * outer),
            signed_log(outer),
            signed_log(self._iterations / outer),
        ]


def _slot_order(accesses: Sequence[AccessFeatures]) -> list[int]:
    """Returns the numbers of the largest accesses, in slot order."""
    order = sorted(
        range(len(accesses)), key=lambda number: (-accesses[number].lines, -accesses[number].bytes)
    )
    return sorted(order[:ACCESS_SLOT_COUNT], key=lambda number: accesses[number].order)


def _access_columns(slots: Sequence[AccessFeatures]) -> list[float]:
    """Returns the columns of access slots, padded with zeros."""
    columns: list[float] = []
    for slot in slots:
        shared = slot.reuse_count if slot.reuse_count > 0.5 else 0.5
        sizes = (slot.bytes, slot.unique_bytes, slot.lines, slot.unique_lines)
        columns += [float(kind == slot.kind) for kind in range(3)]
        columns += map(signed_log, sizes)
        columns += [float(kind == slot.reuse_kind) for kind in range(3)]
        columns += (
            signed_log(slot.reuse_distance_iterations),
            signed_log(slot.reuse_distance_bytes),
            signed_log(slot.reuse_count),
        )
        columns += [signed_log(size / shared) for size in sizes]
        columns.append(signed_log(slot.stride))
    return columns + [0.0] * (ACCESS_SLOT_COUNT * _SLOT_COLUMNS - len(columns))


def _intensity_curve(
    float_ops: int, extents: Sequence[int], bytes_by_loop: Sequence[int]
) -> list[float]:
    """Returns log2(operations) / log2(bytes) at ten points, interpolated between loops.

    Loops are given innermost first. Differs from the original: less than two bytes count as two, so
    that the ratio stays finite.
    """
    if float_ops == 0 or not extents:
        return [0.0] * INTENSITY_SAMPLE_COUNT
    operations = []
    total = float(float_ops)
    for extent in extents:
        total *= extent
        operations.append(math.log2(total))
    intensity = [
        ops / math.log2(max(size, 2)) for ops, size in zip(operations, bytes_by_loop, strict=True)
    ]
    curve = []
    point = 0
    for sample in range(1, INTENSITY_SAMPLE_COUNT + 1):
        wanted = operations[-1] * sample / INTENSITY_SAMPLE_COUNT
        while operations[point] < wanted - _CURVE_TOLERANCE:
            point += 1
        if point == 0:
            curve.append(intensity[0])
            continue
        step = operations[point] - operations[point - 1]
        slope = (intensity[point] - intensity[point - 1]) / step
        curve.append(intensity[point - 1] + slope * (wanted - operations[point - 1]))
    return curve
