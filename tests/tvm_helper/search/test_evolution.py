"""Programs made from their decisions are those of TVM's replay; what is proposed depends on the
seed alone.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm", reason="apache-tvm is not installed")

from tests.tvm_helper.sampled import sample_target
from tests.tvm_helper.search.fixtures import matmul
from tvm_helper.compat import Schedule, derived_object, meta_schedule, s_tir, shash2hex, te, topi
from tvm_helper.search import evolution
from tvm_helper.search.design_space import DesignSpace, Genome, UnknownSpaceError, drawn_tiles
from tvm_helper.search.evolution import Evolution
from tvm_helper.tasks.sampling import _design_spaces, _without_intrinsics
from tvm_helper.tir.features import native_modules

pytestmark = pytest.mark.tvm


def convolution(stride: int = 1) -> Any:
    """A convolution with padding, whose padding is inlined or put somewhere."""
    x = te.placeholder((1, 4, 9, 9), name="X")
    w = te.placeholder((8, 4, 3, 3), name="W")
    return te.create_prim_func([x, w, topi.nn.relu(topi.nn.conv2d_nchw(x, w, stride, 1, 1))])


def softmax() -> Any:
    a = te.placeholder((12, 24), name="A")
    return te.create_prim_func([a, topi.nn.softmax(a)])


def pooling() -> Any:
    x = te.placeholder((1, 6, 9, 9), name="X")
    return te.create_prim_func([x, topi.nn.pool2d(x, (3, 3), (2, 2), (1, 1), (1, 1, 1, 1), "max")])


def elementwise() -> Any:
    a = te.placeholder((16, 24), name="A")
    return te.create_prim_func([a, topi.exp(a)])


TASKS = {
    "matmul": lambda: matmul(24, 20, 12), "convolution": convolution, "softmax": softmax,
    "pooling": pooling, "elementwise": elementwise,
}  # fmt: skip


@cache
def spaces_of(task: str) -> tuple[Any, list[Any], list[DesignSpace]]:
    """Returns the context of a task, the traces of its design spaces, and the spaces."""
    context, schedules = _design_spaces(TASKS[task](), sample_target("llvm"), "llvm", 0)
    native = native_modules()
    assert native is not None
    traces = [one.trace.simplified(True) for one in schedules]
    postprocs = list(context.space_generator.postprocs)
    return context, traces, [DesignSpace(context.mod, one, postprocs, native) for one in traces]


def replayed(context: Any, trace: Any, seed: int) -> tuple[Schedule, bool]:
    """Returns TVM's replay of a trace and whether every postprocessor agrees."""
    schedule = Schedule(context.mod, seed=seed, debug_mask="none", error_render_level="none")
    trace.apply_to_schedule(schedule, remove_postproc=True)
    schedule.enter_postproc()
    return schedule, all(one.apply(schedule) for one in context.space_generator.postprocs)


@pytest.mark.parametrize("task", TASKS)
def test_programs_are_those_of_tvms_replay(task: str) -> None:
    context, traces, spaces = spaces_of(task)
    compared = 0
    for number, (trace, space) in enumerate(zip(traces, spaces, strict=True)):
        for seed in range(1, 4):
            theirs, is_good = replayed(context, s_tir.schedule.Trace(trace.insts, {}), seed)
            genome = space.genome_of(theirs.trace)
            made = space.replay(genome, random.Random(0))
            assert (made is not None) == is_good, (number, seed)
            if made is not None:
                assert made[0] == genome
                assert shash2hex(made[1].mod) == shash2hex(theirs.mod), (number, seed)
                compared += 1
    assert compared >= len(spaces)


@pytest.mark.parametrize("task", TASKS)
def test_drawn_and_mutated_programs_are_those_of_tvms_replay(task: str) -> None:
    context, _, spaces = spaces_of(task)
    chance = random.Random(1)
    compared = changed = 0
    for space in spaces:
        drawn = space.replay(None, chance)
        assert drawn is not None
        mutated = [
            space.with_other_tiles(drawn[0], chance), space.with_other_place(drawn[0], chance),
            space.with_other_unrolling(drawn[0], chance), Genome(drawn[0].decisions, parallel=3),
        ]  # fmt: skip
        for genome in [drawn[0], *filter(None, mutated)]:
            made = space.replay(genome, chance)
            theirs, is_good = replayed(context, space.trace_of(genome), 1)
            assert (made is not None) == is_good
            if made is not None:
                assert shash2hex(made[1].mod) == shash2hex(theirs.mod)
                assert made[0] == space.genome_of(theirs.trace)
                compared += 1
                changed += made[0] != drawn[0]
    assert compared > changed >= len(spaces)


def test_what_the_native_code_cannot_plan_is_left_to_tvm(monkeypatch: pytest.MonkeyPatch) -> None:
    context, _, spaces = spaces_of("matmul")
    monkeypatch.setattr(spaces[0]._native, "plan_nest", lambda *_, **__: None)
    made = spaces[0].replay(None, random.Random(5))
    assert made is not None
    theirs, _ = replayed(context, spaces[0].trace_of(made[0]), 1)
    assert shash2hex(made[1].mod) == shash2hex(theirs.mod)


def test_unknown_postprocessors_and_instructions_are_left_to_tvm() -> None:
    context, traces, _ = spaces_of("matmul")
    native = native_modules()
    assert native is not None
    verify = meta_schedule.postproc.VerifyGPUCode()
    with pytest.raises(UnknownSpaceError, match="VerifyGPUCode"):
        DesignSpace(context.mod, traces[0], [verify], native)
    schedule = Schedule(context.mod)
    schedule.unroll(schedule.get_loops(schedule.get_sblock("matmul"))[2])
    with pytest.raises(UnknownSpaceError, match="Unroll"):
        DesignSpace(context.mod, schedule.trace, [], native)


def test_tiles_are_drawn_alike() -> None:
    chance = random.Random(0)
    drawn = [drawn_tiles(12, 3, -1, chance) for _ in range(3600)]
    assert {math.prod(tiles) for tiles in drawn} == {12}
    counts = [drawn.count(tiles) for tiles in set(drawn)]
    assert len(counts) == 18, "every factorisation of 12 into three"
    assert min(counts) > 130
    assert max(counts) < 280
    assert {tiles[-1] for tiles in (drawn_tiles(64, 4, 4, chance) for _ in range(50))} <= {1, 2, 4}


@derived_object
class _ByHash(meta_schedule.cost_model.PyCostModel):  # type: ignore[misc]
    """Scores programs by their hashes, and counts what it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def predict(self, context: Any, candidates: Sequence[Any]) -> Any:
        hashes = [shash2hex(candidate.sch.mod) for candidate in candidates]
        self.asked += hashes
        return np.array([int(one[:8], 16) / 2**32 for one in hashes])


def proposed(
    *, threads: int, rounds: int = 2, seed: int = 3
) -> tuple[list[list[str]], _ByHash, list[Any]]:
    """Returns hashes of what every round proposes, the model, and the last candidates."""
    space = meta_schedule.space_generator.PostOrderApply(
        sch_rules="llvm", postprocs="llvm", mutator_probs="llvm"
    )
    search = Evolution(16, seed)
    with _without_intrinsics():
        context = meta_schedule.TuneContext(
            mod=matmul(24, 20, 12), target=sample_target("llvm"), space_generator=space,
            search_strategy=meta_schedule.search_strategy.EvolutionarySearch(), rand_state=1,
            num_threads=threads, task_name="matmul",
        )  # fmt: skip
        search._initialize_with_tune_context(context)
        spaces = context.generate_design_space()
    database, model = meta_schedule.database.MemoryDatabase(), _ByHash()
    search.pre_tuning(100, 4, spaces, database, model)
    found, candidates = [], []
    for _ in range(rounds):
        candidates = search.generate_measure_candidates() or []
        assert candidates
        found.append([shash2hex(candidate.sch.mod) for candidate in candidates])
        workload = database.commit_workload(context.mod)
        for place, candidate in enumerate(candidates):
            database.commit_tuning_record(
                meta_schedule.database.TuningRecord(
                    candidate.sch.trace, workload, [1.0 + place], context.target,
                    candidate.args_info,
                )
            )  # fmt: skip
    return found, model, candidates


def test_what_is_proposed_depends_on_the_seed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evolution, "GENERATIONS", 1)
    monkeypatch.setattr(evolution, "LATER_GENERATIONS", 1)
    found, model, candidates = proposed(threads=1)
    assert proposed(threads=2)[0] == found
    assert proposed(threads=1, seed=4)[0] != found
    flat = [one for several in found for one in several]
    assert len(set(flat)) == len(flat) == 8, "nothing is proposed twice"
    assert found[0] == sorted(found[0], reverse=True), "the best score first"
    assert len(set(model.asked)) > 16
    assert all(candidate.sch.trace is not None for candidate in candidates)


def test_a_program_that_tvm_replays_otherwise_ends_the_quick_way(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(evolution, "GENERATIONS", 0)
    monkeypatch.setattr(DesignSpace, "_fuse", lambda *_: True)
    with caplog.at_level(logging.WARNING, "cdmpp"):
        (first,), _, candidates = proposed(threads=1, rounds=1)
    assert "differs from TVM's replay" in caplog.text
    assert len(first) == len(candidates) == 4
    assert any("T.parallel" in str(one.sch.mod) or "vectorized" in str(one.sch.mod)
               for one in candidates), "what is measured is TVM's replay"  # fmt: skip


def test_tvms_own_search_draws_where_only_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evolution, "_KNOWN_MUTATORS", ())
    monkeypatch.setattr(Evolution, "_evolved", None)
    (first,), model, _ = proposed(threads=1, rounds=1)
    assert len(first) == 4
    assert set(first) <= set(model.asked)
