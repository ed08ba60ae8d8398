"""Bound inference: the range of every iterator of a schedule, as the original's schedule lowering
finds it.

Ranges are propagated from the outputs to the inputs: the region of a tensor that its consumers read
inside the loop where it is attached becomes the domain of its own loops. No TVM needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from cdmpp.errors import ReplayError
from cdmpp.programs.ansor.state import (
    THREAD_KINDS,
    FuseRelation,
    Iterator,
    RebaseRelation,
    SplitRelation,
    Stage,
)
from cdmpp.programs.loops.expr import Buffer, Expr
from cdmpp.programs.loops.simplify import ONE, ZERO, Linear, Simplifier, constant

#: (minimum, extent).
Range: TypeAlias = tuple[Linear, Linear]
#: (lowest, highest value), both included; None = unbounded.
Interval: TypeAlias = tuple[Linear, Linear] | None

_SCOPE_RANK = {"global": 0, "shared": 1, "warp": 2, "local": 3}


def thread_rank(kind: str) -> int | None:
    """Returns 0 for a block index, 1 for a (virtual) thread, None for a plain loop."""
    if kind not in THREAD_KINDS:
        return None
    return 0 if kind.startswith("blockIdx") else 1


def derived_iterators(stage: Stage) -> list[Iterator]:
    """Returns all iterators of a stage: root ones, then derived ones, oldest first."""
    found = dict.fromkeys(stage.root)
    for relation in stage.relations:
        if isinstance(relation, SplitRelation):
            found.update(dict.fromkeys((relation.outer, relation.inner)))
        elif isinstance(relation, FuseRelation):
            found.setdefault(relation.fused)
        elif isinstance(relation, RebaseRelation):
            found.setdefault(relation.rebased)
        else:
            found.setdefault(relation.iterator)
    return list(found)


@dataclass
class BoundInference:
    """Finds the range of every iterator.

    Args:
        stages: stages that are not inlined, in lowering order (producers first).
        simplifier: gets the bounds of all iterators with constant ranges.
    """

    stages: list[Stage]
    simplifier: Simplifier

    def run(self) -> dict[Iterator, Range]:
        """Returns the range of every iterator of every stage.

        Raises:
            ReplayError: a producer is attached where its consumer cannot see it.
        """
        self.ranges: dict[Iterator, Range] = {}
        self._attach_path = {stage: _attach_path(stage) for stage in self.stages}
        self._consumers: dict[Buffer, list[Stage]] = {}
        for stage in self.stages:
            for buffer in stage.op.inputs:
                self._consumers.setdefault(buffer, []).append(stage)
        for stage in reversed(self.stages):
            if stage.op.kind == "placeholder":
                continue
            self._infer_root(stage)
            for iterator in stage.root:
                self._bind(iterator)
            self._pass_down(stage)
        return self.ranges

    def _bind(self, iterator: Iterator) -> None:
        minimum, extent = self.ranges[iterator]
        low, _ = self.simplifier.bounds_of(minimum)
        last = self.simplifier.add(self.simplifier.add(minimum, extent), ONE, -1)
        _, high = self.simplifier.bounds_of(last)
        self.simplifier.bind(iterator.name, low, high)

    def _infer_root(self, stage: Stage) -> None:
        if stage.is_output:
            if stage.attach != "root":
                raise ReplayError("output stage is not at the root", stage.op.name)
            for iterator in stage.root:
                assert iterator.domain is not None
                minimum, extent = iterator.domain
                self.ranges[iterator] = (constant(minimum), constant(extent))
            return
        found: list[list[Interval]] = [[] for _ in stage.op.axes]
        for consumer in dict.fromkeys(
            c for buffer in stage.op.outputs for c in self._consumers.get(buffer, [])
        ):
            self._regions_read(stage, consumer, found)
        for iterator, intervals in zip(stage.root, found, strict=False):
            self.ranges[iterator] = self._cover(intervals, iterator)
        for iterator in stage.root[len(stage.op.axes) :]:
            assert iterator.domain is not None
            minimum, extent = iterator.domain
            self.ranges[iterator] = (constant(minimum), constant(extent))

    def _cover(self, intervals: list[Interval], iterator: Iterator) -> Range:
        """Returns the range that covers all intervals; the whole axis when one is unbounded."""
        assert iterator.domain is not None
        whole = (constant(iterator.domain[0]), constant(iterator.domain[1]))
        if not intervals or any(interval is None for interval in intervals):
            return whole
        simplifier = self.simplifier
        result = intervals[0]
        assert result is not None
        for interval in intervals[1:]:
            assert interval is not None
            result = (
                self._extreme("min", result[0], interval[0]),
                self._extreme("max", result[1], interval[1]),
            )
        low, high = result
        return low, simplifier.add(simplifier.add(high, ONE), low, -1)

    def _extreme(self, op: str, left: Linear, right: Linear) -> Linear:
        if left == right:
            return left
        args = (self.simplifier.to_expr(left), self.simplifier.to_expr(right))
        return self.simplifier.linear(Expr(op, "int32", args))

    def _regions_read(self, stage: Stage, consumer: Stage, found: list[list[Interval]]) -> None:
        """Adds to `found` (a list a dimension) what `consumer` reads of the tensors of `stage`."""
        path = self._attach_path[stage]
        scope_rank = self._scope_rank(stage)
        attached = False
        up: dict[Iterator, Interval] = {}
        for iterator in reversed(consumer.leaf):
            attached = attached or (bool(path) and iterator is path[0])
            minimum, extent = self.ranges[iterator]
            if extent == ONE:
                up[iterator] = (minimum, minimum)
            elif not _need_relax(iterator, attached, scope_rank):
                point = self.simplifier.linear(Expr("var", "int32", (), iterator.name))
                up[iterator] = (point, point)
            else:
                up[iterator] = self._interval(iterator)
        relaxed: dict[str, Interval] = {}
        for iterator in self._attach_path[consumer]:
            attached = attached or (bool(path) and iterator is path[0])
            if _need_relax(iterator, attached, scope_rank):
                relaxed[iterator.name] = self._interval(iterator)
        if path and not attached:
            raise ReplayError(
                "stage is attached where its consumer cannot see it",
                f"{stage.op.name} read by {consumer.op.name}",
            )
        self._pass_up_domain(consumer, up)
        domains: dict[str, Interval] = {}
        for iterator in consumer.root:
            low, extent = self._cover([up[iterator]], iterator)
            high = self.simplifier.add(self.simplifier.add(low, extent), ONE, -1)
            if relaxed:
                below, above = self._evaluate(low, relaxed), self._evaluate(high, relaxed)
                domains[iterator.name] = (
                    None if below is None or above is None else (below[0], above[1])
                )
            else:
                domains[iterator.name] = (low, high)
        self._visit_reads(stage, consumer, domains, found)

    def _visit_reads(
        self,
        stage: Stage,
        consumer: Stage,
        domains: dict[str, Interval],
        found: list[list[Interval]],
    ) -> None:
        outputs = set(stage.op.outputs)
        seen: set[Expr] = set()
        condition = consumer.op.reduce.condition if consumer.op.reduce else None
        stack = [*consumer.op.body, *([condition] if condition is not None else [])]
        while stack:
            expr = stack.pop()
            if expr in seen:
                continue
            seen.add(expr)
            stack.extend(expr.args)
            if expr.op == "load" and expr.value in outputs:
                for dimension, index in enumerate(expr.args):
                    interval = self._evaluate_expr(index, domains)
                    found[dimension].append(self._clip(interval, expr.value.shape[dimension]))

    def _clip(self, interval: Interval, extent: int) -> Interval:
        """Returns the whole dimension where it is provably inside the interval (both ends
        together).
        """
        if interval is None:
            return (ZERO, constant(extent - 1))
        low, high = interval
        if (
            self.simplifier.bounds_of(low)[1] <= 0
            and self.simplifier.bounds_of(high)[0] >= extent - 1
        ):
            return (ZERO, constant(extent - 1))
        return interval

    def _interval(self, iterator: Iterator) -> Interval:
        minimum, extent = self.ranges[iterator]
        last = self.simplifier.add(self.simplifier.add(minimum, extent), ONE, -1)
        return (minimum, last)

    def _scope_rank(self, stage: Stage) -> int:
        if stage.scope:
            return _SCOPE_RANK.get(stage.scope.split(".")[0], 0)
        ranks = [r for i in self._attach_path[stage] if (r := thread_rank(i.kind)) is not None]
        return {None: 0, 0: 1, 1: 3}[max(ranks, default=None)]

    # Messages between iterators of one stage.

    def _pass_down(self, stage: Stage) -> None:
        bound = _derives_thread(stage)
        for relation in stage.relations:
            if isinstance(relation, SplitRelation):
                parent = self.ranges[relation.parent][1]
                length = relation.factor if relation.factor is not None else relation.nparts
                assert length is not None
                given, other = (
                    (relation.inner, relation.outer)
                    if relation.factor is not None
                    else (relation.outer, relation.inner)
                )
                self.ranges[given] = (ZERO, self._split_extent(parent, length, bound[given]))
                self.ranges[other] = (ZERO, self._ceil_div(parent, length))
                changed = [relation.outer, relation.inner]
            elif isinstance(relation, FuseRelation):
                extent = self._product(
                    self.ranges[relation.outer][1], self.ranges[relation.inner][1]
                )
                self.ranges[relation.fused] = (ZERO, extent)
                changed = [relation.fused]
            elif isinstance(relation, RebaseRelation):
                self.ranges[relation.rebased] = (ZERO, self.ranges[relation.parent][1])
                changed = [relation.rebased]
            else:
                self.ranges[relation.iterator] = (ZERO, ONE)
                changed = [relation.iterator]
            for iterator in changed:
                self._bind(iterator)

    def _split_extent(self, parent: Linear, length: int, bound_to_thread: bool) -> Linear:
        """Returns the given length, or the parent's extent where that is provably smaller."""
        below = self.simplifier.bounds_of(parent)[1] < length
        return parent if below and not bound_to_thread else constant(length)

    def _ceil_div(self, extent: Linear, length: int) -> Linear:
        simplifier = self.simplifier
        if simplifier.floormod(extent, length) == ZERO:
            return simplifier.floordiv(extent, length)
        return simplifier.floordiv(simplifier.add(extent, constant(length - 1)), length)

    def _product(self, left: Linear, right: Linear) -> Linear:
        if left.is_constant:
            return self.simplifier.scale(right, left.constant)
        if right.is_constant:
            return self.simplifier.scale(left, right.constant)
        args = (self.simplifier.to_expr(left), self.simplifier.to_expr(right))
        return self.simplifier.linear(Expr("mul", "int32", args))

    def _pass_up_domain(self, stage: Stage, state: dict[Iterator, Interval]) -> None:
        for relation in reversed(stage.relations):
            if isinstance(relation, SplitRelation):
                state[relation.parent] = self._split_domain(relation, state)
            elif isinstance(relation, FuseRelation):
                self._fuse_domain(relation, state)
            elif isinstance(relation, RebaseRelation):
                state[relation.parent] = self._shift(
                    state[relation.rebased], self.ranges[relation.parent][0]
                )

    def _shift(self, interval: Interval, offset: Linear) -> Interval:
        if interval is None:
            return None
        return self.simplifier.add(interval[0], offset), self.simplifier.add(interval[1], offset)

    def _matches(self, interval: Interval, iterator: Iterator) -> bool:
        return interval == self._interval(iterator)

    def _split_domain(self, split: SplitRelation, state: dict[Iterator, Interval]) -> Interval:
        outer, inner = state[split.outer], state[split.inner]
        if self._matches(outer, split.outer) and self._matches(inner, split.inner):
            return self._interval(split.parent)
        if outer is None or inner is None:
            return None
        factor = self.ranges[split.inner][1]
        offset = self.ranges[split.parent][0]
        ends = []
        for outer_end, inner_end in zip(outer, inner, strict=True):
            total = self.simplifier.add(self._product(outer_end, factor), inner_end)
            ends.append(self.simplifier.add(total, offset))
        return ends[0], ends[1]

    def _fuse_domain(self, fuse: FuseRelation, state: dict[Iterator, Interval]) -> None:
        fused = state[fuse.fused]
        if self._matches(fused, fuse.fused):
            state[fuse.outer] = self._interval(fuse.outer)
            state[fuse.inner] = self._interval(fuse.inner)
            return
        outer_min, inner_min = self.ranges[fuse.outer][0], self.ranges[fuse.inner][0]
        extent = self.ranges[fuse.inner][1]
        if fused is None or not extent.is_constant:
            state[fuse.outer] = state[fuse.inner] = None
            return
        simplifier, width = self.simplifier, extent.constant
        low, high = fused
        first, last = simplifier.floordiv(low, width), simplifier.floordiv(high, width)
        state[fuse.outer] = self._shift((first, last), outer_min)
        if low == high:
            inside = simplifier.floormod(low, width)
            state[fuse.inner] = self._shift((inside, inside), inner_min)
            return
        count = simplifier.add(simplifier.add(high, low, -1), ONE)
        if (
            count.is_constant
            and width % count.constant == 0
            and simplifier.floormod(low, count.constant) == ZERO
        ):
            inner = (simplifier.floormod(low, width), simplifier.floormod(high, width))
            state[fuse.inner] = self._shift(inner, inner_min)
        else:
            state[fuse.inner] = self._interval(fuse.inner)

    # Intervals of expressions.

    def _evaluate(self, form: Linear, domains: dict[str, Interval]) -> Interval:
        return self._evaluate_expr(self.simplifier.to_expr(form), domains)

    def _evaluate_expr(self, expr: Expr, domains: dict[str, Interval]) -> Interval:
        """Returns the interval of values of an index while the variables in `domains` vary."""
        simplifier = self.simplifier
        if expr.op == "var" and expr.value in domains:
            return domains[expr.value]
        if expr.op in ("var", "const"):
            point = simplifier.linear(expr)
            return point, point
        if expr.op == "cast" and expr.args[0].dtype.startswith("int"):
            return self._evaluate_expr(expr.args[0], domains)
        if expr.op == "select":
            a = self._evaluate_expr(expr.args[1], domains)
            b = self._evaluate_expr(expr.args[2], domains)
            if a is None or b is None:
                return None
            return self._extreme("min", a[0], b[0]), self._extreme("max", a[1], b[1])
        if expr.op not in ("add", "sub", "mul", "floordiv", "floormod", "div", "mod", "min", "max"):
            return None
        a = self._evaluate_expr(expr.args[0], domains)
        b = self._evaluate_expr(expr.args[1], domains)
        if a is None or b is None:
            return None
        return self._combine(expr.op, a, b)

    def _combine(self, op: str, a: tuple[Linear, Linear], b: tuple[Linear, Linear]) -> Interval:
        simplifier = self.simplifier
        if op == "add":
            return simplifier.add(a[0], b[0]), simplifier.add(a[1], b[1])
        if op == "sub":
            return simplifier.add(a[0], b[1], -1), simplifier.add(a[1], b[0], -1)
        if op in ("min", "max"):
            return self._extreme(op, a[0], b[0]), self._extreme(op, a[1], b[1])
        if op == "mul" and a[0] == a[1] and a[0].is_constant:
            a, b = b, a
        if b[0] != b[1] or not b[0].is_constant:
            if a[0] == a[1] and b[0] == b[1] and op == "mul":
                product = self._product(a[0], b[0])
                return product, product
            return None
        value = b[0].constant
        if op == "mul":
            ends = simplifier.scale(a[0], value), simplifier.scale(a[1], value)
            return ends if value >= 0 else (ends[1], ends[0])
        if value <= 0:
            return None
        if op in ("floordiv", "div"):
            return simplifier.floordiv(a[0], value), simplifier.floordiv(a[1], value)
        if a[0] == a[1]:
            point = simplifier.floormod(a[0], value)
            return point, point
        first, last = simplifier.floordiv(a[0], value), simplifier.floordiv(a[1], value)
        if first == last:
            base = simplifier.scale(first, value)
            return simplifier.add(a[0], base, -1), simplifier.add(a[1], base, -1)
        return ZERO, constant(value - 1)


def _attach_path(stage: Stage) -> list[Iterator]:
    """Returns the loops around the place where a stage is attached, innermost first."""
    path: list[Iterator] = []
    visited = {stage}
    current = stage
    while current.attach == "at":
        assert current.attach_stage is not None
        target, wanted = current.attach_stage, current.attach_iterator
        if target in visited or target.attach == "inline":
            raise ReplayError(
                "stages are attached in a circle or to an inlined stage", stage.op.name
            )
        visited.add(target)
        if wanted not in target.leaf:
            raise ReplayError("attach iterator was transformed away", stage.op.name)
        position = target.leaf.index(wanted)
        path.extend(reversed(target.leaf[: position + 1]))
        current = target
    return path


def _need_relax(iterator: Iterator, attached: bool, scope_rank: int) -> bool:
    rank = thread_rank(iterator.kind)
    return not attached if rank is None else scope_rank <= rank


def _derives_thread(stage: Stage) -> dict[Iterator, bool]:
    """Returns for every iterator whether a thread binding was made out of it."""
    state = {iterator: iterator.kind in THREAD_KINDS for iterator in stage.leaf}
    for relation in reversed(stage.relations):
        if isinstance(relation, SplitRelation):
            state[relation.parent] = state[relation.inner] or state[relation.outer]
        elif isinstance(relation, FuseRelation):
            state[relation.inner] = state[relation.outer] = state[relation.fused]
        elif isinstance(relation, RebaseRelation):
            state[relation.parent] = state[relation.rebased]
    return state
