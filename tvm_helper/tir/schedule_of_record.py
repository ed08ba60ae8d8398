"""Replay of Ansor's steps on schedules of the current TVM, to build and run Tenset records.

Ansor's steps only describe the locations of stages, while TVM's `Schedule` moves them at once.
Therefore the steps are first applied to a `ScheduleState` (plain bookkeeping), the computation is
rebuilt with the stages that the steps added, and the stages are realised from the outputs to the
inputs: attach, split, fuse, reorder, annotate. A stage's loops exist before others are attached to
them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cdmpp.errors import ReplayError
from cdmpp.programs.ansor.dag import Dag, DagOp
from cdmpp.programs.ansor.state import (
    THREAD_KINDS,
    FuseRelation,
    Iterator,
    RebaseRelation,
    Relation,
    ScheduleState,
    SplitRelation,
    Stage,
)
from cdmpp.programs.loops.expr import Buffer
from tvm_helper.compat import Schedule, te
from tvm_helper.tir.prim_func import TensorGraph, narrow_blocks
from tvm_helper.tir.regions import Interval, needed_regions

#: First insertion point under a loop: stages that are realised later precede the others.
_FIRST = -2
_THREAD_TAGS = {"vthread": "vthread.x"}


def replay(dag: Dag, steps: Sequence[Any]) -> Schedule:
    """Returns the scheduled program of a measure record.

    Args:
        dag: the task's computation.
        steps: the record's transform steps, as in the file.

    Returns:
        A schedule whose module has one function `main`; parameters are `dag.parameters` in order.

    Raises:
        ReplayError: the steps do not apply to the computation, or TVM rejects one of them.
    """
    state = ScheduleState(dag)
    state.apply(list(steps))
    return _Replay(state).run()


class _Replay:
    def __init__(self, state: ScheduleState) -> None:
        self._state = state
        self._stages = [
            stage
            for stage in state.lowering_order
            if stage.op.kind == "compute" and stage.attach != "inline"
        ]
        placed = {stage.op.outputs[0] for stage in state.lowering_order}
        unread = [s.op for s in state.stages if s.op.outputs[0] not in placed]
        ops = [op for op in unread if op.kind == "placeholder"]
        ops += [stage.op for stage in state.lowering_order]
        inlined = [stage.op for stage in state.stages if stage.attach == "inline"]
        graph = TensorGraph(ops, inlined)
        self._blocks = graph.block_names
        for op in inlined:
            if op.outputs[0] in state.parameters:
                raise ReplayError("output stage cannot be inlined", op.name)
        arguments = [graph.tensors[buffer] for buffer in state.parameters]
        function = _call("create_prim_func", te.create_prim_func, arguments)
        regions = self._narrow_regions(ops, {op.outputs[0]: op for op in inlined})
        if regions:
            function = narrow_blocks(function, regions)
        self._schedule = Schedule(function, debug_mask="none", error_render_level="none")
        self._loops: dict[Iterator, Any] = {}

    def run(self) -> Schedule:
        for stage in reversed(self._stages):
            self._realise(stage)
        for stage in self._stages:
            self._place_init(stage)
        return self._schedule

    def _narrow_regions(
        self, ops: list[DagOp], inlined: dict[Buffer, DagOp]
    ) -> dict[str, tuple[Interval, ...]]:
        """Returns the needed regions of stages at the root that are only needed in part."""
        found = {}
        needed = needed_regions(ops, inlined)
        for stage in self._stages:
            buffer = stage.op.outputs[0]
            if stage.attach != "root" or stage.is_output or len(stage.op.outputs) > 1:
                continue
            region = needed.get(buffer)
            if region and region != tuple((0, extent - 1) for extent in buffer.shape):
                found[self._blocks[stage.op]] = region
        return found

    def _do(self, primitive: str, *args: Any, **options: Any) -> Any:
        return _call(primitive, getattr(self._schedule, primitive), *args, **options)

    def _block(self, stage: Stage) -> Any:
        return self._schedule.get_sblock(self._blocks[stage.op])

    def _realise(self, stage: Stage) -> None:
        block = self._block(stage)
        if stage.scope:
            self._do("set_scope", block, 0, stage.scope)
        if stage.attach == "at":
            target = self._loops.get(_present(stage.attach_stage, stage.attach_iterator))
            if target is None:
                raise ReplayError("attach loop does not exist", stage.op.name)
            self._do("compute_at", block, target, preserve_unit_loops=True, index=_FIRST)
        loops = list(self._schedule.get_loops(block))
        own = loops[len(loops) - len(stage.root) :]
        self._loops.update(zip(stage.root, own, strict=True))
        self._shape_loops(stage, block)
        self._annotate(stage)
        for iterator, (factor, offset) in stage.storage_align.items():
            if iterator not in stage.root[: len(stage.op.axes)]:
                raise ReplayError("storage align of a loop that is not an axis", stage.op.name)
            axis = stage.root.index(iterator)
            self._do("storage_align", block, 0, axis, factor, offset)

    def _shape_loops(self, stage: Stage, block: Any) -> None:
        made_by = _made_by(stage)
        to_threads = _becomes_thread(stage)
        live = list(stage.root)
        for relation in stage.relations:
            if isinstance(relation, SplitRelation):
                parts = self._split(relation, to_threads)
                at = live.index(relation.parent)
                live[at : at + 1] = [relation.outer, relation.inner]
                self._loops[relation.outer], self._loops[relation.inner] = parts
            elif isinstance(relation, FuseRelation):
                live = self._reorder(live, _present_order(stage.leaf, live, made_by))
                at = live.index(relation.outer)
                if live[at : at + 2] != [relation.outer, relation.inner]:
                    raise ReplayError("fused loops are not neighbours", stage.op.name)
                pair = (self._loops[relation.outer], self._loops[relation.inner])
                self._loops[relation.fused] = self._do("fuse", *pair)
                live[at : at + 2] = [relation.fused]
            elif isinstance(relation, RebaseRelation):
                self._loops[relation.rebased] = self._loops[relation.parent]
                live[live.index(relation.parent)] = relation.rebased
            else:
                self._loops[relation.iterator] = self._do("add_unit_loop", block)
                live.insert(0, relation.iterator)
        self._reorder(live, stage.leaf)

    def _split(self, relation: SplitRelation, to_threads: set[Iterator]) -> list[Any]:
        """Splits a loop; the given length is at most the loop's extent, except for threads."""
        loop = self._loops[relation.parent]
        extent = getattr(self._schedule.get(loop).extent, "value", None)
        given = relation.inner if relation.factor is not None else relation.outer
        length = relation.factor if relation.factor is not None else relation.nparts
        assert length is not None
        if extent is not None and given not in to_threads:
            length = min(length, int(extent))
        rest = None if extent is None else -(-int(extent) // length)
        factors = [rest, length] if given is relation.inner else [length, rest]
        return list(self._do("split", loop, factors))

    def _reorder(self, live: list[Iterator], wanted: list[Iterator]) -> list[Iterator]:
        if live != wanted:
            self._do("reorder", *(self._loops[iterator] for iterator in wanted))
        return list(wanted)

    def _annotate(self, stage: Stage) -> None:
        for iterator in stage.leaf:
            loop = self._loops[iterator]
            if iterator.kind == "parallel":
                self._do("parallel", loop)
            elif iterator.kind == "vectorized":
                self._do("vectorize", loop)
            elif iterator.kind == "unrolled":
                self._do("unroll", loop)
            elif iterator.kind != "serial":
                self._do("bind", loop, _THREAD_TAGS.get(iterator.kind, iterator.kind))
            if iterator.kind in THREAD_KINDS:
                continue  # Ansor sets no pragma on a loop that is bound to threads
            for name, value in iterator.pragmas.items():
                self._do("annotate", loop, name, value)

    def _place_init(self, stage: Stage) -> None:
        """Moves the initialisation of a reduction before its first reduction loop, as in Ansor."""
        if stage.op.reduce is None:
            return
        made_by = _made_by(stage)
        reducing = [i for i in stage.leaf if _is_over_reduction(i, made_by)]
        if any("threadIdx" in iterator.kind for iterator in reducing):
            return
        self._do("decompose_reduction", self._block(stage), self._loops[reducing[0]])


def _call(primitive: str, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    try:
        return function(*args, **options)
    except (RuntimeError, ValueError, TypeError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        detail = next((line for line in lines if "rror" in line), lines[-1] if lines else "")
        raise ReplayError(f"TVM refuses {primitive}", detail[:200]) from error


def _made_by(
    stage: Stage,
) -> dict[Iterator, Relation]:
    """Returns derived iterator of a stage -> relation that made it."""
    made: dict[Iterator, Relation] = {}
    for relation in stage.relations:
        if isinstance(relation, SplitRelation):
            made[relation.outer] = made[relation.inner] = relation
        elif isinstance(relation, FuseRelation):
            made[relation.fused] = relation
        elif isinstance(relation, RebaseRelation):
            made[relation.rebased] = relation
        else:
            made[relation.iterator] = relation
    return made


def _becomes_thread(stage: Stage) -> set[Iterator]:
    """Returns the iterators that are bound to threads, and those from which they were derived."""
    found = {iterator for iterator in stage.leaf if iterator.kind in THREAD_KINDS}
    for relation in reversed(stage.relations):
        if isinstance(relation, SplitRelation):
            if relation.outer in found or relation.inner in found:
                found.add(relation.parent)
        elif isinstance(relation, FuseRelation) and relation.fused in found:
            found.update((relation.outer, relation.inner))
        elif isinstance(relation, RebaseRelation) and relation.rebased in found:
            found.add(relation.parent)
    return found


def _parents(
    relation: Relation | None,
) -> list[Iterator]:
    if isinstance(relation, FuseRelation):
        return [relation.outer, relation.inner]
    if isinstance(relation, SplitRelation | RebaseRelation):
        return [relation.parent]
    return []


def _present_order(
    leaf: list[Iterator], live: list[Iterator], made_by: dict[Iterator, Any]
) -> list[Iterator]:
    """Returns the live iterators in the order of the final iterators derived from them."""
    order: dict[Iterator, None] = {}

    def visit(iterator: Iterator) -> None:
        if iterator in live:
            order.setdefault(iterator)
            return
        for parent in _parents(made_by.get(iterator)):
            visit(parent)

    for iterator in leaf:
        visit(iterator)
    return list(order)


def _is_over_reduction(iterator: Iterator, made_by: dict[Iterator, Any]) -> bool:
    parents = _parents(made_by.get(iterator))
    if not parents:
        return iterator.is_reduction
    return any(_is_over_reduction(parent, made_by) for parent in parents)


def _present(stage: Stage | None, iterator: Iterator | None) -> Iterator:
    """Returns the final iterator made from one that was split or fused after attaching."""
    assert stage is not None
    assert iterator is not None
    while iterator not in stage.leaf:
        for relation in stage.relations:
            if isinstance(relation, FuseRelation) and iterator in (relation.outer, relation.inner):
                iterator = relation.fused
                break
            if isinstance(relation, SplitRelation | RebaseRelation) and iterator is relation.parent:
                iterator = (
                    relation.inner if isinstance(relation, SplitRelation) else relation.rebased
                )
                break
        else:
            raise ReplayError("stage attached to a removed loop", stage.op.name)
    return iterator
