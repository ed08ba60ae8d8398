"""Replays a record's transform steps on a Dag without TVM: stages, iterators, relations.

Every stage has root iterators (the axes of its operation), relations that derive its current leaf
iterators from them, and a place of attachment. Steps number stages and iterators as Ansor does, in
the order of `ScheduleState.stages` and of `Stage.leaf`. `ScheduleState.lowering_order` is the stage
order of the lowered schedule; it orders stages that are attached at the same place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from cdmpp.errors import ReplayError
from cdmpp.programs.ansor.dag import Axis, Dag, DagOp, depth_first_order, loads_of
from cdmpp.programs.loops.expr import (
    Buffer,
    Expr,
    int_const,
    int_var,
    load,
    replace_buffers,
    substitute,
)
from cdmpp.programs.loops.loop_tree import LoopKind

#: Annotation number in an AN step -> kind of loop.
ANNOTATIONS: dict[int, LoopKind] = {
    1: "unrolled", 2: "vectorized", 3: "parallel", 4: "vthread", 5: "blockIdx.x", 6: "threadIdx.x",
    7: "blockIdx.y", 8: "threadIdx.y", 9: "blockIdx.z", 10: "threadIdx.z",
}  # fmt: skip
#: Maximum number of steps; real records have up to about 100.
MOST_STEPS = 4096
#: Maximum number of iterators, of stages, and of bytes of a name, which short records can double
#: with every step. Real records have up to about 250, 20 and 300.
MOST_ITERATORS, MOST_STAGES, MOST_NAME_BYTES = 4096, 256, 4096
#: Maximum product of split lengths.
_MOST_LENGTH = 2**63 - 1
THREAD_KINDS = frozenset(
    kind for kind in ANNOTATIONS.values() if "Idx" in kind or kind == "vthread"
)


@dataclass(eq=False)
class Iterator:
    """An iterator of a stage. Compared by identity.

    Attributes:
        name: unique in the schedule.
        is_reduction: whether it runs only over reduction axes.
        domain: (minimum, extent) of a root iterator; None for a derived one.
        kind: annotation; `serial` without one.
        pragmas: pragma name -> value, emitted around the body of the loop.
    """

    name: str
    is_reduction: bool
    domain: tuple[int, int] | None = None
    kind: LoopKind = "serial"
    pragmas: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class SplitRelation:
    """parent = outer * extent(inner) + inner; exactly one of factor (inner length) and nparts is
    set.
    """

    parent: Iterator
    outer: Iterator
    inner: Iterator
    factor: int | None
    nparts: int | None


@dataclass(frozen=True, eq=False)
class FuseRelation:
    """outer = fused // extent(inner), inner = fused % extent(inner)."""

    outer: Iterator
    inner: Iterator
    fused: Iterator


@dataclass(frozen=True, eq=False)
class RebaseRelation:
    """parent = rebased + minimum(parent)."""

    parent: Iterator
    rebased: Iterator


@dataclass(frozen=True, eq=False)
class SingletonRelation:
    """An iterator of extent 1 without a parent (a fusion of no iterators)."""

    iterator: Iterator


Relation = SplitRelation | FuseRelation | RebaseRelation | SingletonRelation


@dataclass(eq=False)
class Stage:
    """One operation with its loops.

    Attributes:
        root: iterators of the operation's axes, spatial ones first.
        relations: derive `leaf` from `root`, oldest first.
        leaf: current loops, outermost first.
        attach: `root`, `inline`, or `at` (which sets `attach_stage` and `attach_iterator`).
        scope: memory scope set by a cache step, or "".
        storage_align: iterator -> (factor, offset).
    """

    op: DagOp
    root: list[Iterator]
    is_output: bool
    scope: str = ""
    relations: list[Relation] = field(default_factory=list)
    leaf: list[Iterator] = field(default_factory=list)
    attach: Literal["root", "inline", "at"] = "root"
    attach_stage: Stage | None = None
    attach_iterator: Iterator | None = None
    storage_align: dict[Iterator, tuple[int, int]] = field(default_factory=dict)


class ScheduleState:
    """The schedule that a record's steps describe.

    Args:
        dag: the computation; it is not changed.

    Attributes:
        stages: in Ansor's order; steps index this list.
        lowering_order: the same stages in the order of the lowered schedule (last first).
        parameters: tensors of the program's signature.
    """

    def __init__(self, dag: Dag) -> None:
        self.parameters = dag.parameters
        self._names: dict[str, int] = {}
        self._split_lengths: dict[int, list[int]] = {}
        self._iterators = self._stages = 0
        self.stages = [self._new_stage(op, i in dag.outputs) for i, op in enumerate(dag.ops)]
        self.lowering_order = [self.stages[i] for i in depth_first_order(dag)]

    def apply(self, steps: Sequence[list[Any]]) -> None:
        """Applies the steps of a record in order.

        Raises:
            ReplayError: a step is unknown, malformed or references a missing stage or iterator.
        """
        for number, step in enumerate(steps):
            if number == MOST_STEPS:
                raise ReplayError("too many steps", f"{len(steps)}, at most {MOST_STEPS}")
            code = step[0] if isinstance(step, list) and step else None
            handler = _HANDLERS.get(code) if isinstance(code, str) else None
            if handler is None:
                raise ReplayError("unknown step code", f"step {number} is {str(step)[:80]}")
            try:
                handler(self, number, step)
            except (IndexError, KeyError, TypeError, ValueError) as error:
                raise ReplayError(
                    f"malformed {code} step", f"step {number} is {str(step)[:120]} ({error})"
                ) from error

    # Lookups. Python's negative indices would hide errors, hence the explicit range checks.

    def _stage(self, index: Any) -> Stage:
        if not isinstance(index, int) or not 0 <= index < len(self.stages):
            raise ReplayError("stage index out of range", f"{index} of {len(self.stages)} stages")
        return self.stages[index]

    @staticmethod
    def _iterator(stage: Stage, index: Any) -> Iterator:
        if not isinstance(index, int) or not 0 <= index < len(stage.leaf):
            raise ReplayError(
                "iterator index out of range",
                f"{index} of {len(stage.leaf)} iterators of {stage.op.name}",
            )
        return stage.leaf[index]

    def new_iterator(
        self, name: str, is_reduction: bool, domain: tuple[int, int] | None = None
    ) -> Iterator:
        """Returns a new iterator of this schedule.

        Raises:
            ReplayError: the schedule has too many iterators.
        """
        self._iterators += 1
        if self._iterators > MOST_ITERATORS:
            raise ReplayError("too many iterators", f"at most {MOST_ITERATORS}")
        return Iterator(name, is_reduction, domain)

    def _unique(self, name: str) -> str:
        _check_name(name)
        count = self._names.get(name, 0)
        self._names[name] = count + 1
        return name if count == 0 else f"{name}_{count}"

    def _new_stage(self, op: DagOp, is_output: bool, scope: str = "") -> Stage:
        self._stages += 1
        if self._stages > MOST_STAGES:
            raise ReplayError("too many stages", f"at most {MOST_STAGES}")
        # A root iterator has the name of its axis, which the bodies of operations use.
        root = [self.new_iterator(a.name, False, (a.minimum, a.extent)) for a in op.axes]
        root += [self.new_iterator(a.name, True, (a.minimum, a.extent)) for a in op.reduce_axes]
        return Stage(op, root, is_output, scope, leaf=list(root))

    def _fresh_axes(self, axes: tuple[Axis, ...], suffix: str) -> tuple[Axis, ...]:
        return tuple(Axis(self._unique(a.name + suffix), a.extent, a.minimum) for a in axes)

    def _replace_buffers(self, mapping: dict[Buffer, Buffer], readers: list[Stage]) -> None:
        for stage in readers:
            if stage.op.kind == "compute" and any(b in mapping for b in stage.op.inputs):
                body = tuple(replace_buffers(e, mapping) for e in stage.op.body)
                stage.op = replace(stage.op, body=body, inputs=_inputs(body))

    # Steps that change loops.

    def _annotate(self, _: int, step: list[Any]) -> None:
        iterator = self._iterator(self._stage(step[1]), step[2])
        if step[3] == 0:
            return
        if step[3] not in ANNOTATIONS:
            raise ReplayError("unsupported annotation", f"{step[3]} in {step}")
        iterator.kind = ANNOTATIONS[step[3]]

    def _fuse(self, _: int, step: list[Any]) -> None:
        stage = self._stage(step[1])
        indices = step[2]
        if not indices:
            single = self.new_iterator(self._unique("singleton"), False)
            stage.relations.append(SingletonRelation(single))
            stage.leaf.insert(0, single)
            return
        fused = self._iterator(stage, indices[0])
        for offset, index in enumerate(indices[1:], start=1):
            inner = self._iterator(stage, index)
            if index != indices[0] + offset:
                raise ReplayError("fused iterators are not neighbours", str(step))
            name = self._unique(f"{fused.name}.{inner.name}.fused")
            result = self.new_iterator(name, fused.is_reduction and inner.is_reduction)
            stage.relations.append(FuseRelation(fused, inner, result))
            fused = result
        stage.leaf[indices[0] : indices[-1] + 1] = [fused]

    def _pragma(self, _: int, step: list[Any]) -> None:
        iterator = self._iterator(self._stage(step[1]), step[2])
        name, _separator, value = str(step[3]).partition("$")
        if name != "auto_unroll_max_step":
            raise ReplayError("unsupported pragma", str(step[3]))
        iterator.pragmas["pragma_auto_unroll_max_step"] = int(value)
        iterator.pragmas["pragma_unroll_explicit"] = 1

    def _reorder(self, _: int, step: list[Any]) -> None:
        stage = self._stage(step[1])
        if sorted(step[2]) != list(range(len(stage.leaf))):
            raise ReplayError("reorder is not a permutation", str(step)[:120])
        stage.leaf = [stage.leaf[i] for i in step[2]]

    def _split_by(self, stage: Stage, index: Any, lengths: list[int], inner_to_outer: bool) -> None:
        current = self._iterator(stage, index)
        if any(not isinstance(n, int) or n < 1 for n in lengths):
            raise ReplayError("split length is not a positive number", str(lengths))
        parts: list[Iterator] = []
        for length in reversed(lengths) if inner_to_outer else lengths:
            is_reduction = current.is_reduction
            outer = self.new_iterator(self._unique(current.name + ".outer"), is_reduction)
            inner = self.new_iterator(self._unique(current.name + ".inner"), is_reduction)
            if inner_to_outer:
                stage.relations.append(SplitRelation(current, outer, inner, length, None))
                parts.insert(0, inner)
                current = outer
            else:
                stage.relations.append(SplitRelation(current, outer, inner, None, length))
                parts.append(outer)
                current = inner
        parts = [current, *parts] if inner_to_outer else [*parts, current]
        stage.leaf[index : index + 1] = parts

    def _split(self, number: int, step: list[Any]) -> None:
        lengths = list(step[4])
        self._split_lengths[number] = lengths
        self._split_by(self._stage(step[1]), step[2], lengths, bool(step[5]))

    def _source_lengths(self, source: Any) -> list[int]:
        if source not in self._split_lengths:
            raise ReplayError("followed step is not a split", f"step {source}")
        return self._split_lengths[source]

    def _follow_split(self, _: int, step: list[Any]) -> None:
        source, count = self._source_lengths(step[3]), step[4]
        if not 1 <= count <= len(source):
            raise ReplayError("follow split has too many parts", str(step))
        last = 1
        for length in source[count - 1 :]:
            last = _product(last, length)
        self._split_by(self._stage(step[1]), step[2], [*source[: count - 1], last], True)

    def _follow_fused_split(self, _: int, step: list[Any]) -> None:
        length = 1
        for source in step[3]:
            lengths, level = self._source_lengths(source), step[4]
            if not 0 <= level < len(lengths):
                raise ReplayError("follow split level out of range", str(step))
            length = _product(length, lengths[level])
        self._split_by(self._stage(step[1]), step[2], [length], bool(step[5]))

    def _storage_align(self, _: int, step: list[Any]) -> None:
        stage = self._stage(step[1])
        stage.storage_align[self._iterator(stage, step[2])] = (int(step[3]), int(step[4]))

    # Steps that move stages.

    def _compute_at(self, _: int, step: list[Any]) -> None:
        stage, target = self._stage(step[1]), self._stage(step[2])
        if target is stage:
            raise ReplayError("stage attached to itself", str(step))
        stage.attach_iterator = self._iterator(target, step[3])
        stage.attach, stage.attach_stage = "at", target

    def _compute_inline(self, _: int, step: list[Any]) -> None:
        stage = self._stage(step[1])
        if stage.op.kind != "compute" or stage.op.reduce or len(stage.op.body) != 1:
            raise ReplayError("stage cannot be inlined", stage.op.name)
        stage.attach, stage.attach_stage, stage.attach_iterator = "inline", None, None

    def _compute_root(self, _: int, step: list[Any]) -> None:
        stage = self._stage(step[1])
        stage.attach, stage.attach_stage, stage.attach_iterator = "root", None, None

    # Steps that add stages.

    def _insert(self, index: int, new: Stage, after: Stage | None, before: Stage | None) -> None:
        self.stages.insert(index, new)
        if after is not None:
            position = self.lowering_order.index(after) + 1
        else:
            assert before is not None
            position = self.lowering_order.index(before)
        self.lowering_order.insert(position, new)

    def _cache_read(self, _: int, step: list[Any]) -> None:
        stage, scope = self._stage(step[1]), str(step[2])
        readers = [self._stage(i) for i in step[3]]
        source = stage.op.outputs[0]
        base = stage.op.name
        while any(other.op.name == f"{base}.{scope}" for other in self.stages):
            base += ".d"
        name = _check_name(f"{base}.{scope}")
        cache = Buffer(name, source.dtype, source.shape, scope)
        axes = tuple(Axis(self._unique(f"{name}.ax{i}"), n) for i, n in enumerate(source.shape))
        body = (load(source, tuple(int_var(a.name) for a in axes)),)
        op = DagOp(name, "compute", (cache,), axes, (), body, None, (source,))
        self._replace_buffers({source: cache}, readers)
        self._insert(step[1] + 1, self._new_stage(op, False, scope), stage, None)

    def _cache_write(self, _: int, step: list[Any]) -> None:
        stage, scope = self._stage(step[1]), str(step[2])
        op = stage.op
        if op.kind != "compute" or stage.relations:
            raise ReplayError("cache write of a placeholder or a transformed stage", op.name)
        name = _check_name(f"{op.name}.{scope}")
        outputs = tuple(Buffer(f"{b.name}.{scope}", b.dtype, b.shape, scope) for b in op.outputs)
        axes = self._fresh_axes(op.axes, ".c")
        names: dict[str, Expr] = {
            old.name: int_var(new.name) for old, new in zip(op.axes, axes, strict=True)
        }
        body = tuple(substitute(e, names) for e in op.body)
        cached = replace(op, name=name, outputs=outputs, axes=axes, body=body)
        indices = tuple(int_var(a.name) for a in op.axes)
        copies = tuple(load(b, indices) for b in outputs)
        stage.op = replace(op, reduce_axes=(), reduce=None, body=copies, inputs=outputs)
        stage.root = [i for i in stage.root if not i.is_reduction]
        stage.leaf = list(stage.root)
        self._insert(step[1], self._new_stage(cached, False, scope), None, stage)

    def _rfactor(self, _: int, step: list[Any]) -> None:
        stage = self._stage(step[1])
        factored = self._iterator(stage, step[2])
        if not factored.is_reduction or stage.op.reduce is None:
            raise ReplayError("rfactor of an iterator that is no reduction", str(step))
        if not 0 <= step[3] <= len(stage.op.axes):
            raise ReplayError("rfactor axis out of range", str(step))
        rf_op, final_op = _factor_reduction(self._unique, stage, factored, step[3])
        final = self._new_stage(final_op, stage.is_output)
        stage.op, stage.root, stage.leaf = final.op, final.root, final.leaf
        stage.relations = []
        self._insert(step[1], self._new_stage(rf_op, False), None, stage)


_HANDLERS = {
    "AN": ScheduleState._annotate,
    "FU": ScheduleState._fuse,
    "PR": ScheduleState._pragma,
    "RE": ScheduleState._reorder,
    "SP": ScheduleState._split,
    "FSP": ScheduleState._follow_split,
    "FFSP": ScheduleState._follow_fused_split,
    "SA": ScheduleState._storage_align,
    "CA": ScheduleState._compute_at,
    "CI": ScheduleState._compute_inline,
    "CR": ScheduleState._compute_root,
    "CHR": ScheduleState._cache_read,
    "CHW": ScheduleState._cache_write,
    "RF": ScheduleState._rfactor,
}


def _check_name(name: str) -> str:
    if len(name.encode("utf-8", "surrogatepass")) > MOST_NAME_BYTES:
        raise ReplayError("name is too long", f"at most {MOST_NAME_BYTES} bytes")
    return name


def _product(length: int, factor: int) -> int:
    if (product := length * factor) > _MOST_LENGTH:
        raise ReplayError("split length is beyond 64 bits")
    return product


def _inputs(body: tuple[Expr, ...]) -> tuple[Buffer, ...]:
    return tuple(dict.fromkeys(b for e in body for b in loads_of(e)))


def _related(stage: Stage, iterator: Iterator) -> set[Iterator]:
    """Returns all root and derived iterators that share a root with `iterator`."""
    related = {iterator}
    for relation in reversed(stage.relations):
        if isinstance(relation, SplitRelation) and related & {relation.outer, relation.inner}:
            related.add(relation.parent)
        elif isinstance(relation, FuseRelation) and relation.fused in related:
            related |= {relation.outer, relation.inner}
    for relation in stage.relations:
        if isinstance(relation, SplitRelation) and relation.parent in related:
            related |= {relation.outer, relation.inner}
        elif isinstance(relation, FuseRelation) and related & {relation.outer, relation.inner}:
            related.add(relation.fused)
    return related


def _factor_reduction(
    unique: Callable[[str], str], stage: Stage, factored: Iterator, position: int
) -> tuple[DagOp, DagOp]:
    """Returns the partial reduction, with `factored` as a spatial axis, and the final reduction."""
    op = stage.op
    assert op.reduce is not None
    extent: dict[Iterator, int] = {i: i.domain[1] for i in stage.root if i.domain is not None}
    touched = _related(stage, factored)
    for relation in stage.relations:
        if isinstance(relation, SplitRelation):
            whole = extent[relation.parent]
            length = relation.factor or -(-whole // (relation.nparts or 1))
            if whole % length and relation.parent in touched:
                raise ReplayError("rfactor of a split with a remainder", op.name)
            extent[relation.inner], extent[relation.outer] = length, -(-whole // length)
        elif isinstance(relation, FuseRelation):
            extent[relation.fused] = extent[relation.outer] * extent[relation.inner]
        else:
            raise ReplayError("rfactor after an empty fusion", op.name)
    value: dict[Iterator, Expr] = {i: int_var(i.name) for i in stage.leaf}
    for relation in reversed(stage.relations):
        if isinstance(relation, SplitRelation):
            factor = int_const(extent[relation.inner])
            scaled = Expr("mul", "int32", (value[relation.outer], factor))
            value[relation.parent] = Expr("add", "int32", (value[relation.inner], scaled))
        elif isinstance(relation, FuseRelation):
            args = (value[relation.fused], int_const(extent[relation.inner]))
            value[relation.outer] = Expr("floordiv", "int32", args)
            value[relation.inner] = Expr("floormod", "int32", args)
    root = {i.name: i for i in stage.root}
    if any(root[a.name] in touched for a in op.axes):
        raise ReplayError("rfactor touches a spatial axis", op.name)
    # The new axes have the names of the stage's loops, so only the touched axis is replaced in the
    # body.
    reduce_axes = [a for a in op.reduce_axes if root[a.name] not in touched]
    reduce_axes += [
        Axis(i.name, extent[i]) for i in stage.leaf if i in touched and i is not factored
    ]
    rf_axis = Axis(factored.name, extent[factored])
    axes = [*op.axes[:position], rf_axis, *op.axes[position:]]
    replaced = {a.name: value[root[a.name]] for a in op.reduce_axes if root[a.name] in touched}
    body = tuple(substitute(e, replaced) for e in op.body)
    outputs = tuple(
        Buffer(f"{b.name}.rf", b.dtype, tuple(a.extent for a in axes)) for b in op.outputs
    )
    rename = {a.name: int_var(unique(a.name + ".rf")) for a in axes}
    rf_axes = tuple(Axis(rename[a.name].value, a.extent, a.minimum) for a in axes)
    body = tuple(substitute(e, rename) for e in body)
    rf_op = replace(
        op, name=op.name + ".rf", outputs=outputs, axes=rf_axes, reduce_axes=tuple(reduce_axes),
        body=body, inputs=_inputs(body),
    )  # fmt: skip
    final_axis = Axis(unique(factored.name + ".v"), extent[factored])
    indices = [int_var(a.name) for a in op.axes]
    indices.insert(position, int_var(final_axis.name))
    partial = tuple(load(b, tuple(indices)) for b in outputs)
    final_reduce = replace(op.reduce, condition=None)
    final_op = replace(
        op, name=op.name + ".repl", reduce_axes=(final_axis,), body=partial, reduce=final_reduce,
        inputs=outputs,
    )  # fmt: skip
    return rf_op, final_op
