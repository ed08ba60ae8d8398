"""Direct lowering: an Ansor schedule state becomes a loop tree, with the original's loops, order
and indices.

This is the path on which records are featurised. It needs no TVM: bounds are inferred, loop nests
made and indices simplified here, at the one canonical level (regions of allocations known, indices
simplified, before flattening, vectorising and unrolling). `tvm_helper.tir.schedule_of_record`
makes the same program as a schedule of today's TVM, to run it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cdmpp.errors import ReplayError
from cdmpp.programs.ansor.dag import Dag, Reduction
from cdmpp.programs.ansor.state import (
    THREAD_KINDS,
    FuseRelation,
    Iterator,
    RebaseRelation,
    ScheduleState,
    SplitRelation,
    Stage,
)
from cdmpp.programs.loops.expr import Buffer, Expr, int_const, int_var, load, substitute, with_args
from cdmpp.programs.loops.loop_tree import (
    Allocation,
    Attribute,
    Condition,
    Loop,
    LoopTree,
    Node,
    Store,
)
from cdmpp.programs.loops.simplify import ONE, ZERO, Linear, Simplifier
from tests.programs.reference.bounds import BoundInference, Range, derived_iterators, thread_rank

_SCOPE = "loop_scope"
#: Nodes of an expression after inlining; those of real networks have some hundreds.
MOST_NODES = 1 << 12


def lower_record(dag: Dag, steps: Sequence[list[Any]], *, is_gpu: bool) -> LoopTree:
    """Replays a record's steps and returns the lowered program.

    Raises:
        ReplayError: the steps cannot be applied or the schedule cannot be lowered.
    """
    state = ScheduleState(dag)
    state.apply(steps)
    return lower_state(state, is_gpu=is_gpu)


def lower_state(state: ScheduleState, *, is_gpu: bool) -> LoopTree:
    """Returns the loop tree of a schedule state. The state is used up.

    Raises:
        ReplayError: the schedule cannot be lowered.
    """
    _inline(state)
    stages = [s for s in state.lowering_order if s.attach != "inline"]
    for stage in stages:
        _rebase(state, stage)
    _remap_attachments(stages)
    simplifier = Simplifier()
    ranges = BoundInference(stages, simplifier).run()
    body = _Emitter(ranges, simplifier).emit(stages)
    return LoopTree(state.parameters, _finish(body, simplifier), is_gpu)


def _inline(state: ScheduleState) -> None:
    """Puts the bodies of inlined stages into their readers, last stage first."""
    order = state.lowering_order
    for position in range(len(order) - 1, -1, -1):
        stage = order[position]
        if stage.attach != "inline":
            continue
        if stage.is_output:
            raise ReplayError("output stage cannot be inlined", stage.op.name)
        names = [axis.name for axis in stage.op.axes]
        body, buffer = stage.op.body[0], stage.op.outputs[0]
        if stage.op.attrs.get("const_matrix"):
            body = Expr("const", body.dtype, (), 1.0)

        def value_at(
            indices: tuple[Expr, ...], names: list[str] = names, body: Expr = body
        ) -> Expr:
            return substitute(body, dict(zip(names, indices, strict=True)))

        for reader in order[position + 1 :]:
            if buffer in reader.op.inputs:
                new = tuple(_replace_loads(e, buffer, value_at) for e in reader.op.body)
                if any(_is_too_large(expr) for expr in new):
                    raise ReplayError("expression too large after inlining", reader.op.name)
                inputs = [b for b in reader.op.inputs if b is not buffer]
                inputs += [b for b in stage.op.inputs if b not in inputs]
                reader.op = replace(reader.op, body=new, inputs=tuple(inputs))


def _replace_loads(
    expr: Expr, buffer: Buffer, value_at: Callable[[tuple[Expr, ...]], Expr]
) -> Expr:
    args = tuple(_replace_loads(argument, buffer, value_at) for argument in expr.args)
    if expr.op == "load" and expr.value is buffer:
        return value_at(args)
    return with_args(expr, args)


def _is_too_large(expr: Expr) -> bool:
    """Whether an expression has more nodes than may be walked, shared ones counted each time.

    Stages that read their predecessor twice double it with every stage that is inlined.
    """
    sizes: dict[int, int] = {}

    def size(node: Expr) -> int:
        if not node.args:
            return 1
        if id(node) not in sizes:
            sizes[id(node)] = 1 + sum(size(argument) for argument in node.args)
        return sizes[id(node)]

    return size(expr) > MOST_NODES


def _rebase(state: ScheduleState, stage: Stage) -> None:
    """Lets every loop over a root iterator start at 0."""
    for root in stage.root:
        if root in stage.leaf and root.kind not in THREAD_KINDS:
            rebased = state.new_iterator(root.name + ".0", root.is_reduction)
            rebased.kind, rebased.pragmas = root.kind, dict(root.pragmas)
            stage.relations.append(RebaseRelation(root, rebased))
            stage.leaf[stage.leaf.index(root)] = rebased


def _remap_attachments(stages: list[Stage]) -> None:
    """Moves attachments to loops that later steps fused or split onto what these loops became."""
    for stage in stages:
        if stage.attach != "at":
            continue
        assert stage.attach_stage is not None
        for relation in stage.attach_stage.relations:
            current = stage.attach_iterator
            if current in stage.attach_stage.leaf:
                break
            if isinstance(relation, FuseRelation) and current is relation.inner:
                stage.attach_iterator = relation.fused
            elif isinstance(relation, SplitRelation) and current is relation.parent:
                stage.attach_iterator = relation.inner
            elif isinstance(relation, RebaseRelation) and current is relation.parent:
                stage.attach_iterator = relation.rebased


@dataclass
class _Nest:
    """A chain of nodes, outermost first, and the value of every iterator inside it."""

    levels: list[list[Node]]
    values: dict[Iterator, Expr]


class _Emitter:
    def __init__(self, ranges: dict[Iterator, Range], simplifier: Simplifier) -> None:
        self._ranges = ranges
        self._simplifier = simplifier
        self._scopes: dict[Iterator, Attribute] = {}

    def emit(self, stages: list[Stage]) -> list[Node]:
        body: list[Node] = []
        for stage in reversed(stages):
            if stage.op.kind == "placeholder":
                continue
            if stage.attach == "at":
                assert stage.attach_iterator is not None
                scope = self._scopes.get(stage.attach_iterator)
                if scope is None:
                    raise ReplayError("attach loop does not exist", stage.op.name)
                scope.body = self._pipeline(stage, scope.body)
            else:
                body = self._pipeline(stage, body)
        return body

    def _pipeline(self, stage: Stage, consumer: list[Node]) -> list[Node]:
        inside = [*self._provide(stage), *consumer]
        spatial = stage.root[: len(stage.op.axes)]
        extents = tuple(self._number(self._ranges[i][1]) for i in spatial)
        for buffer in reversed(stage.op.outputs):
            placed = buffer
            if stage.scope and buffer.scope != stage.scope:
                placed = replace(buffer, scope=stage.scope)
            inside = [Allocation(placed, extents, inside)]
        return inside

    def _number(self, form: Linear) -> int | Expr:
        return form.constant if form.is_constant else self._simplifier.to_expr(form)

    def _provide(self, stage: Stage) -> list[Node]:
        main = self._loop_nest(stage, 0, frozenset(), is_init=False, values={})
        predicates = self._bound_checks(stage, main.values, frozenset(), is_init=False)
        values = {i.name: main.values[i] for i in stage.root}
        indices = tuple(values[axis.name] for axis in stage.op.axes)
        reduction = stage.op.reduce
        if reduction is None:
            stores: list[Node] = [
                Store(buffer, indices, substitute(body, values))
                for buffer, body in zip(stage.op.outputs, stage.op.body, strict=True)
            ]
            return _wrap(main.levels, _guard(predicates, stores))
        if any(i.is_reduction and i.kind in THREAD_KINDS for i in stage.leaf):
            return self._cross_thread(stage, main, indices)
        update = self._update(stage, reduction, indices, values)
        flags = _reduction_flags(stage)
        first = next((n for n, i in enumerate(stage.leaf) if flags[i] & 2), len(stage.leaf))
        init = self._init(stage, reduction, main, first, flags)
        inner = _wrap(main.levels[first:], _guard(predicates, update))
        return _wrap(main.levels[:first], [*init, *inner])

    def _cross_thread(self, stage: Stage, main: _Nest, indices: tuple[Expr, ...]) -> list[Node]:
        """Returns a reduction across threads as the original's features see it.

        Each thread accumulates in a register, the registers are combined by an intrinsic, and only
        the store of the combined value is a store to a buffer.
        """
        common = [
            level
            for iterator, level in zip(stage.leaf, main.levels, strict=True)
            if not iterator.is_reduction or iterator.kind in THREAD_KINDS
        ]
        stores: list[Node] = [
            Store(buffer, indices, Expr("var", buffer.dtype, (), f"{buffer.name}.reduce_temp"))
            for buffer in stage.op.outputs
        ]
        return _wrap(common, stores)

    def _update(
        self,
        stage: Stage,
        reduction: Reduction,
        indices: tuple[Expr, ...],
        values: dict[str, Expr],
    ) -> list[Node]:
        names: dict[str, Expr] = {}
        for number, buffer in enumerate(stage.op.outputs):
            names[reduction.left[number]] = load(buffer, indices)
            names[reduction.right[number]] = substitute(stage.op.body[number], values)
        stores: list[Node] = [
            Store(buffer, indices, substitute(result, names))
            for buffer, result in zip(stage.op.outputs, reduction.results, strict=True)
        ]
        if reduction.condition is not None:
            return [Condition(substitute(reduction.condition, values), stores)]
        return stores

    def _init(
        self,
        stage: Stage,
        reduction: Reduction,
        main: _Nest,
        first: int,
        flags: dict[Iterator, int],
    ) -> list[Node]:
        """Returns the loops that set the accumulators to their start values."""
        only_reduction = frozenset(i for i, flag in flags.items() if flag == 2)
        common = {i: main.values[i] for i in stage.leaf[:first]}
        nest = self._loop_nest(stage, first, only_reduction, is_init=True, values=common)
        predicates = self._bound_checks(stage, nest.values, only_reduction, is_init=True)
        indices = tuple(nest.values[i] for i in stage.root[: len(stage.op.axes)])
        starts = reduction.init or reduction.identities
        values = {i.name: nest.values[i] for i in stage.root if i in nest.values}
        stores: list[Node] = [
            Store(buffer, indices, substitute(start, values))
            for buffer, start in zip(stage.op.outputs, starts, strict=True)
        ]
        return _wrap(nest.levels[first:], _guard(predicates, stores))

    def _loop_nest(
        self,
        stage: Stage,
        begin: int,
        skip: frozenset[Iterator],
        *,
        is_init: bool,
        values: dict[Iterator, Expr],
    ) -> _Nest:
        levels: list[list[Node]] = [[] for _ in stage.leaf]
        for position, iterator in enumerate(stage.leaf[begin:], start=begin):
            if iterator in skip:
                values[iterator] = int_var(iterator.name)
                continue
            level = levels[position]
            extent = self._ranges[iterator][1]
            rank = thread_rank(iterator.kind)
            if rank is None:
                level.extend(Attribute(key, value) for key, value in iterator.pragmas.items())
            name = iterator.name + ".init" if is_init and rank is None else iterator.name
            if rank is None and extent == ONE:
                values[iterator] = int_const(0)
            else:
                level.append(Loop(name, 0, self._number(extent), iterator.kind))
                values[iterator] = int_var(name)
                low, high = self._simplifier.expr_bounds(int_var(iterator.name))
                self._simplifier.bind(name, low, high)
                if extent == ONE:
                    values[iterator] = int_const(0)
            if not is_init:
                scope = Attribute(_SCOPE, iterator.name)
                level.append(scope)
                self._scopes[iterator] = scope
        self._pass_up_index(stage, values)
        return _Nest(levels, values)

    def _pass_up_index(self, stage: Stage, values: dict[Iterator, Expr]) -> None:
        for relation in reversed(stage.relations):
            if isinstance(relation, SplitRelation):
                factor = self._simplifier.to_expr(self._ranges[relation.inner][1])
                outer = Expr("mul", "int32", (values[relation.outer], factor))
                value = Expr("add", "int32", (values[relation.inner], outer))
                values[relation.parent] = self._with_minimum(relation.parent, value)
            elif isinstance(relation, FuseRelation):
                factor = self._simplifier.to_expr(self._ranges[relation.inner][1])
                args = (values[relation.fused], factor)
                outer, inner = (Expr(op, "int32", args) for op in ("floordiv", "floormod"))
                values[relation.outer] = self._with_minimum(relation.outer, outer)
                values[relation.inner] = self._with_minimum(relation.inner, inner)
            elif isinstance(relation, RebaseRelation):
                values[relation.parent] = self._with_minimum(
                    relation.parent, values[relation.rebased]
                )

    def _with_minimum(self, iterator: Iterator, value: Expr) -> Expr:
        minimum = self._ranges[iterator][0]
        if minimum == ZERO:
            return value
        return Expr("add", "int32", (value, self._simplifier.to_expr(minimum)))

    def _bound_checks(
        self,
        stage: Stage,
        values: dict[Iterator, Expr],
        skip: frozenset[Iterator],
        *,
        is_init: bool,
    ) -> list[Expr]:
        """Returns the conditions that keep iterators inside their ranges where splits overshoot."""
        needed = self._overshooting(stage)
        checks: list[Expr] = []
        simplifier = self._simplifier
        for iterator in derived_iterators(stage):
            if iterator in skip or not needed.get(iterator, False):
                continue
            minimum, extent = self._ranges[iterator]
            value = simplifier.add(simplifier.linear(values[iterator]), minimum, -1)
            if simplifier.bounds_of(simplifier.add(value, extent, -1))[1] >= 0:
                checks.append(_less(simplifier.to_expr(value), simplifier.to_expr(extent)))
        for iterator in stage.root:
            if iterator in skip or iterator.domain is None:
                continue
            low, size = iterator.domain
            minimum, extent = self._ranges[iterator]
            if minimum.is_constant and extent.is_constant:
                same = (minimum.constant, extent.constant) == (low, size)
                if same:
                    continue
            value = simplifier.add(simplifier.linear(values[iterator]), Linear({}, low), -1)
            below, above = simplifier.bounds_of(value)
            if below < 0:
                checks.append(Expr("ge", "bool", (simplifier.to_expr(value), int_const(0))))
            if above >= size:
                checks.append(_less(simplifier.to_expr(value), int_const(size)))
        return [Expr("call", "bool", (check,), "tir.likely") for check in checks]

    def _overshooting(self, stage: Stage) -> dict[Iterator, bool]:
        state = dict.fromkeys(stage.leaf, False)
        for relation in reversed(stage.relations):
            if isinstance(relation, SplitRelation):
                outer, inner = self._ranges[relation.outer][1], self._ranges[relation.inner][1]
                exact = False
                if inner.is_constant:
                    product = self._simplifier.scale(outer, inner.constant)
                    exact = product == self._ranges[relation.parent][1]
                elif outer.is_constant:
                    product = self._simplifier.scale(inner, outer.constant)
                    exact = product == self._ranges[relation.parent][1]
                state[relation.parent] = state[relation.outer] or state[relation.inner] or not exact
            elif isinstance(relation, FuseRelation):
                state[relation.outer] = state[relation.inner] = state[relation.fused]
            elif isinstance(relation, RebaseRelation):
                state[relation.parent] = state[relation.rebased]
        return state


def _less(left: Expr, right: Expr) -> Expr:
    return Expr("lt", "bool", (left, right))


def _guard(predicates: list[Expr], body: list[Node]) -> list[Node]:
    for predicate in reversed(predicates):
        body = [Condition(predicate, body)]
    return body


def _wrap(levels: list[list[Node]], body: list[Node]) -> list[Node]:
    """Returns `body` inside all nodes of `levels` (outermost first)."""
    for level in reversed(levels):
        for node in reversed(level):
            assert isinstance(node, Loop | Attribute)
            node.body = body
            body = [node]
    return body


def _reduction_flags(stage: Stage) -> dict[Iterator, int]:
    """Returns for every iterator 1 = made of spatial axes, 2 = of reduction axes, 3 = of both."""
    flags = {i: 2 if i.is_reduction else 1 for i in stage.root}
    for relation in stage.relations:
        if isinstance(relation, SplitRelation):
            for part in (relation.outer, relation.inner):
                flags[part] = flags.get(part, 0) | flags[relation.parent]
        elif isinstance(relation, FuseRelation):
            flags[relation.fused] = flags[relation.outer] | flags[relation.inner]
        elif isinstance(relation, RebaseRelation):
            flags[relation.rebased] = flags[relation.parent]
        else:
            flags[relation.iterator] = 0
    return flags


def _finish(nodes: list[Node], simplifier: Simplifier) -> list[Node]:
    """Returns the nodes with simplified expressions, without scope marks and decided conditions."""
    result: list[Node] = []
    for node in nodes:
        if isinstance(node, Store):
            indices = tuple(simplifier.simplify(i) for i in node.indices)
            result.append(Store(node.buffer, indices, simplifier.simplify(node.value)))
            continue
        if isinstance(node, Condition):
            condition = simplifier.simplify(node.condition)
            if condition.op == "const":
                if condition.value:
                    result.extend(_finish(node.body, simplifier))
                continue
            with simplifier.assume(condition):
                body = _finish(node.body, simplifier)
            if body:
                result.append(Condition(condition, body))
            continue
        body = _finish(node.body, simplifier)
        if isinstance(node, Attribute) and node.key == _SCOPE:
            result.extend(body)
        elif body:
            result.append(replace(node, body=body))
    return result
