"""Tasks drawn at random, and programs of them that nobody's search has scheduled."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from cdmpp.config import load_config
from tests.paths import ROOT
from tvm_helper.drawn.task_names import drawn_names, is_held_out
from tvm_helper.measure.options import MeasureOptions, TimingOptions

CONFIGS = ROOT / "configs" / "measure"


def test_names_follow_from_the_seed_and_stay_when_there_are_more() -> None:
    names = drawn_names(120, 7)
    assert len(set(names)) == 120
    assert drawn_names(40, 7) == names[:40]
    assert not set(names) & set(drawn_names(40, 8))


def test_no_campaign_to_learn_from_draws_a_task_of_the_held_out_set() -> None:
    held_out, training = (
        load_config(MeasureOptions, CONFIGS / f"pasted-cpu-{name}.yaml")
        for name in ("sealed", "zen3")
    )
    assert (held_out.held_out, training.held_out) == (True, False)
    assert held_out.device == training.device
    assert held_out.seed != training.seed
    tested = drawn_names(30, held_out.seed, held_out=True)
    assert all(map(is_held_out, tested))
    assert not any(map(is_held_out, drawn_names(300, training.seed)))


def test_no_range_of_work_is_thin() -> None:
    """Products of 2^10 to 2^28 steps: a third of the decades has a third of the tasks, roughly."""
    works = []
    for name in drawn_names(1200, 3):
        kind, _, rest = name.partition(":")
        if kind in ("matmul", "dense"):
            sizes = dict(part.split("=") for part in rest.split(","))
            works.append(math.log2(math.prod(int(sizes[axis]) for axis in "mnk")))
    parts = np.histogram(works, bins=[0, 16, 22, 40])[0] / len(works)
    assert len(works) > 80
    assert parts.min() > 0.2


@pytest.mark.tvm
def test_every_kind_can_be_drawn_and_made() -> None:
    pytest.importorskip("tvm", reason="apache-tvm is not installed")
    from tvm_helper.measure.tasks import index_bounds, named_function, task_names

    first: dict[str, str] = {}
    for name in drawn_names(250, 0):
        first.setdefault(name.partition(":")[0], name)
    assert len(first) > 22
    assert set(first) <= set(task_names())
    for name in first.values():
        named_function(name)
    assert index_bounds(first["gather"])[1] > 0


@pytest.mark.tvm
def test_programs_as_they_stand_by_rules_and_by_hand(tmp_path: Path) -> None:
    pytest.importorskip("tvm", reason="apache-tvm is not installed")
    from cdmpp.datasets.cache import load_samples
    from tvm_helper.measure.campaign import run_campaign
    from tvm_helper.measure.journal import read_journal
    from tvm_helper.measure.tables import read_task

    options = MeasureOptions(
        device="epyc-avx2-1c", force=True, per_task=3, schedules=("default", "dlight", "hand"),
        sample=("matmul:m=8,n=16,k=8,dtype=int8", "softmax:m=8,n=16", "gather:rows=9,n=8,m=4",
                "cumsum:m=4,n=8"),
        timing=TimingOptions(min_repeats=1, max_repeats=1, min_repeat_s=0.001, budget_s=0.05),
    )  # fmt: skip
    report = run_campaign(options, tmp_path / "out")
    ways: dict[str, Counter[str]] = {}
    for entry in read_journal(tmp_path / "out"):
        if entry["kind"] == "drawn" and entry["programs"]:
            name = read_task(tmp_path / "out", entry["task"])["name"].partition(":")[0]
            ways.setdefault(name, Counter())[entry["way"]] += len(entry["programs"])
    assert ways == {
        "matmul": {"default": 1, "hand": 1}, "softmax": {"default": 1, "dlight": 1, "hand": 1},
        "gather": {"default": 1, "hand": 1}, "cumsum": {"default": 1},
    }  # fmt: skip
    assert (report.measured, report.failures) == (8, [])
    assert "and 2 more: no DLight rule for llvm applies" in report.summary()
    assert len(load_samples(tmp_path / "out", None)) == 8
    before = (tmp_path / "out" / "journal.jsonl").read_bytes()
    assert run_campaign(options, tmp_path / "out").before == 8
    assert (tmp_path / "out" / "journal.jsonl").read_bytes() == before


@pytest.mark.tvm
@pytest.mark.parametrize("name", ["matmul:m=16,n=32,k=24", "softmax:m=16,n=32", "whole_sum:m=8"])
def test_schedules_by_hand_replay_from_their_traces(name: str, tmp_path: Path) -> None:
    pytest.importorskip("tvm", reason="apache-tvm is not installed")
    from tvm_helper.compat import llvm_target, tvm
    from tvm_helper.drawn.hand_schedule import hand_schedules
    from tvm_helper.measure.tasks import named_function
    from tvm_helper.measure.worker import _database_traces
    from tvm_helper.tasks.schedule_of_trace import schedule_of

    module = tvm.IRModule({"main": named_function(name)[1]})

    def traces(threads: int) -> list[str]:
        made = []
        with _database_traces(module, llvm_target(), str(tmp_path)) as trace_of:
            for schedule in hand_schedules(module, seed=5, threads=threads, tries=10):
                made.append(trace_of(schedule))
                tvm.ir.assert_structural_equal(schedule_of(module, made[-1]).mod, schedule.mod)
        return [json.dumps(trace) for trace in made]

    one, again, four = traces(1), traces(1), traces(4)
    assert one == again
    assert len(set(one)) > 4
    if not name.startswith("whole_sum"):  # programs for many threads are asked about with one too
        parallel = [sum("Parallel" in trace for trace in made) for made in (one, four)]
        assert 0 < parallel[0] < parallel[1]


@pytest.mark.tvm
def test_sums_in_registers_are_vectors_with_their_first_values_apart() -> None:
    """No loop of a decomposed reduction can be vectorized: it is decomposed last."""
    pytest.importorskip("tvm", reason="apache-tvm is not installed")
    from tvm_helper.compat import tvm
    from tvm_helper.drawn.hand_schedule import hand_schedules
    from tvm_helper.measure.tasks import named_function

    module = tvm.IRModule({"main": named_function("matmul:m=32,n=64,k=48")[1]})
    texts = [one.mod.script() for one in hand_schedules(module, seed=0, threads=1, tries=60)]
    updates = [text.partition("_init")[2] for text in texts]
    assert sum("_update" in text and "T.vectorized" in text for text in updates) > 15
    assert any("T.unroll(8)" in text and "T.vectorized(16)" in text for text in updates)


@pytest.mark.tvm
def test_partial_sums_are_vectors() -> None:
    pytest.importorskip("tvm", reason="apache-tvm is not installed")
    from tvm_helper.compat import tvm
    from tvm_helper.drawn.hand_schedule import hand_schedules
    from tvm_helper.measure.tasks import named_function

    module = tvm.IRModule({"main": named_function("reduce_sum:m=16,n=64")[1]})
    made = hand_schedules(module, seed=0, threads=1, tries=60)
    texts = [text for one in made if "_rf" in (text := one.mod.script())]
    assert texts
    assert all("for k1_1 in T.vectorized" in text for text in texts)


@pytest.mark.tvm
def test_a_product_scheduled_by_hand_is_the_product(tmp_path: Path) -> None:
    pytest.importorskip("tvm", reason="apache-tvm is not installed")
    from tvm_helper.compat import llvm_target, tvm
    from tvm_helper.drawn.hand_schedule import hand_schedules
    from tvm_helper.measure.tasks import named_function
    from tvm_helper.tasks.build import built

    module = tvm.IRModule({"main": named_function("matmul:m=8,n=32,k=16")[1]})
    made = hand_schedules(module, seed=0, threads=1, tries=60)
    packed = next(one for one in made if "transform_layout" in str(one.trace))
    library, tensors = built(module, packed, llvm_target(), tmp_path, "packed")
    library["main"](*tensors)
    a, b, c = (tensor.numpy() for tensor in tensors)
    np.testing.assert_allclose(c, a @ b, rtol=1e-4)
