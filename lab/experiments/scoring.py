"""Scoring throughput, features and model together, against TVM's XGB model.

Both models score the same random schedules through TVM's own interface (`predict` of a cost model),
in turn, in one process on one core; each value is the best of several rounds. TVM's model is first
trained on random latencies, which do not affect the speed of its trees.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

import numpy as np
import torch
from tvm.s_tir import meta_schedule

from cdmpp.predict.estimates import TrainedModel, load_trained
from cdmpp.pretrained import PRETRAINED, model_folder
from cdmpp.report.page import Page, Section
from cdmpp.report.tables import plain_table
from cdmpp.text import percent_text
from lab.pages import write_page
from lab.stamp import PROGRAMS, stamp
from tests.tvm_helper.sampled import WORKLOADS, sample_schedules, sample_target
from tvm_helper.compat import stub_tensor_intrinsics
from tvm_helper.cost_model.metaschedule import CdmppCostModel
from tvm_helper.tasks.sampling import TargetKind

#: Workloads that are measured.
MEASURED = ("matmul", "conv2d_bias_relu", "softmax")
#: Target -> label of the device whose latency is predicted.
DEVICES: dict[TargetKind, str] = {"llvm": "epyc-avx2-2c", "cuda": "t4"}


@dataclass(frozen=True)
class ScoringSpeed:
    """Throughput on one workload and target.

    Attributes:
        target: of the schedules.
        workload: name of the computation.
        own_per_s: our candidates per second of wall time, features and model.
        own_per_cpu_s: our candidates per second of CPU time.
        peer_per_s, peer_per_cpu_s: the same for TVM's XGB model.
        model_share: fraction of our time outside lowering and feature extraction, in [0, 1].
        leaves: mean number of leaves.
    """

    target: TargetKind
    workload: str
    own_per_s: float
    own_per_cpu_s: float
    peer_per_s: float
    peer_per_cpu_s: float
    model_share: float
    leaves: float

    @property
    def ratio(self) -> float:
        """Our candidates per candidate of TVM's model, in CPU time."""
        return self.own_per_cpu_s / self.peer_per_cpu_s


def measure(
    trained: TrainedModel, target: TargetKind, workload: str, *, candidates: int, rounds: int
) -> ScoringSpeed:
    """Measures one workload.

    Args:
        trained: the model.
        candidates: number of different random schedules.
        rounds: number of timings of both models.
    """
    schedules = sample_schedules(WORKLOADS[workload](), target, candidates)
    entry = meta_schedule.arg_info.ArgInfo.from_entry_func(schedules[0].mod, remove_preproc=True)
    asked = [meta_schedule.MeasureCandidate(schedule, entry) for schedule in schedules]
    context = meta_schedule.TuneContext(
        mod=WORKLOADS[workload](), target=sample_target(target), num_threads=1
    )
    own = CdmppCostModel(trained, DEVICES[target], safety_net=False)
    peer = _trained_peer(context, asked)
    own.predict(context, asked)
    own.usage.predicted, own.usage.feature_s, own.usage.predict_s = 0, 0.0, 0.0
    best: dict[str, tuple[float, float]] = {}
    for _ in range(rounds):
        for name, model in (("own", own), ("peer", peer)):
            speed = _timed(partial(model.predict, context, asked), candidates)
            before = best.get(name, (0.0, 0.0))
            best[name] = (max(before[0], speed[0]), max(before[1], speed[1]))
    model_share = 1.0 - own.usage.feature_s / own.usage.predict_s
    found, _ = own._latencies(context, asked, "")
    return ScoringSpeed(
        target=target,
        workload=workload,
        own_per_s=best["own"][0],
        own_per_cpu_s=best["own"][1],
        peer_per_s=best["peer"][0],
        peer_per_cpu_s=best["peer"][1],
        model_share=model_share,
        leaves=len(found.samples.programs.leaf_position) / max(1, len(found.supported)),
    )


def _trained_peer(context: Any, asked: Sequence[Any]) -> Any:
    """Returns TVM's model after an update; before that it predicts at random."""
    peer = meta_schedule.cost_model.XGBModel(num_warmup_samples=0, num_tuning_cores=1)
    rng = np.random.default_rng(0)
    results = [
        meta_schedule.runner.RunnerResult([float(value)], None)
        for value in rng.uniform(1e-3, 1e-2, len(asked))
    ]
    peer.update(context, list(asked), results)
    return peer


def _timed(call: Callable[[], object], candidates: int) -> tuple[float, float]:
    """Returns candidates per second of wall and of CPU time, over at least half a second."""
    calls = 0
    start, cpu_start = time.perf_counter(), time.process_time()
    while calls == 0 or time.perf_counter() - start < 0.5:
        call()
        calls += 1
    seconds, cpu_s = time.perf_counter() - start, time.process_time() - cpu_start
    return calls * candidates / seconds, calls * candidates / cpu_s


def experiment(candidates: int = 128, rounds: int = 5) -> None:
    """Scores every workload on every target and writes the page.

    Args:
        candidates: schedules per workload.
        rounds: repetitions of every measurement.
    """
    torch.set_num_threads(1)
    stub_tensor_intrinsics()
    trained = load_trained(model_folder("pretrained"))
    results = [
        measure(trained, target, workload, candidates=candidates, rounds=rounds)
        for target in get_args(TargetKind)
        for workload in MEASURED
    ]
    command = f"python -m lab run scoring candidates={candidates} rounds={rounds}"
    origin = stamp(command, schemas=PROGRAMS, models=[PRETRAINED])
    values = {"model": _scorer(trained), "candidates": candidates}
    page = _page(results, trained, candidates)
    print(write_page("scoring", page, values, origin))


def _scorer(trained: TrainedModel) -> str:
    """Returns the kinds of the models that score on the two targets."""
    return ", ".join(sorted({trained.scorer(kind).kind for kind in ("cpu", "gpu")}))


def _page(results: Sequence[ScoringSpeed], trained: TrainedModel, candidates: int) -> Page:
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    titles = (
        "target", "workload", "leaves", "ours, candidates/s (clock)", "per CPU second",
        "XGBModel, candidates/s (clock)", "per CPU second", "ratio (CPU)",
        "of our time in the model",
    )  # fmt: skip
    rows = []
    for found in results:
        speeds = (found.own_per_s, found.own_per_cpu_s, found.peer_per_s, found.peer_per_cpu_s)
        target = "T4" if found.target == "cuda" else found.target
        rows.append(
            [target, found.workload, f"{found.leaves:.1f}", *(f"{speed:,.0f}" for speed in speeds),
             f"**{found.ratio:.1f}**", percent_text(found.model_share, 0)]
        )  # fmt: skip
    note = (
        "Candidates scored through TVM's own interface (`CostModel.predict`: lowering, features, "
        f"model), one process on one core, {candidates} random MetaSchedule schedules a row, the "
        f"best of some rounds, both sides in turn. Ours is a `{_scorer(trained)}`; TVM's "
        f"`XGBModel` is trained on {candidates} results first."
    )
    return Page(
        title="Scoring throughput",
        lead="Goal: 3 times on the matmul for llvm, 10 times on conv2d (llvm and T4).",
        sections=[Section("Candidates per second", note, tables=[plain_table(titles, rows)])],
        notes=[
            "A column per CPU second stands beside each on the clock because machines are shared. "
            "What is not in the model is lowering, walking and the leaf columns."
        ],
        facts=[("load average when the last figure was taken", load)],
    )
