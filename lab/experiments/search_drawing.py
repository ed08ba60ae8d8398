"""Cost of drawing a search's programs, and quality of the result, against TVM's own search.

All times are CPU time of one thread; both searches run in turn. A program's latency is the shipped
model's prediction, so that the comparison runs on any machine with equal latencies for both.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from cdmpp.predict.estimates import TrainedModel
from cdmpp.pretrained import PRETRAINED, model_folder
from cdmpp.report.page import Page, Section
from cdmpp.report.tables import plain_table
from lab.experiments.search import PER_ROUND, searched_function
from lab.journal import Journal
from lab.pages import write_page
from lab.paths import ROOT
from lab.stamp import PROGRAMS, stamp

COMMAND = "python -m lab run search-drawing"
DEVICE = "epyc-avx2-1c"
WAYS = ("tvm", "cdmpp")


def experiment(
    tasks: tuple[str, ...] = ("conv2d", "dense", "softmax"),
    seeds: tuple[int, ...] = (0, 1, 2),
    population: int = 64,
    rounds: int = 4,
) -> None:
    """Times both searches on every task and writes the page.

    Args:
        tasks: names of `lab run search`.
        seeds: of the searches.
        population: evolved programs per round.
        rounds: number of rounds of 16 trials.
    """
    torch.set_num_threads(1)
    journal = Journal(ROOT / "runs" / "search-drawing" / f"{population}-{rounds}.jsonl")
    for seed in seeds:
        for task in tasks:
            cell = partial(_searched, task, seed, population, rounds)
            print(journal.cell(f"{task}--{seed}", cell), flush=True)
    found = journal.cells()
    values = {
        "searches": {task: [found[f"{task}--{seed}"] for seed in seeds] for task in tasks},
        "population": population, "rounds": rounds,
    }  # fmt: skip
    write_page("search-drawing", _page(values), values, stamp(COMMAND, schemas=PROGRAMS))


def _context(task: str, seed: int, population: int) -> tuple[Any, Any, Any]:
    """Returns TVM's context of a task, its own search, and the design spaces."""
    from cdmpp.devices.registry import get_device
    from tvm_helper.compat import import_tensor_intrinsics, meta_schedule
    from tvm_helper.tasks.target import device_target

    import_tensor_intrinsics("llvm")
    search = meta_schedule.search_strategy.EvolutionarySearch(population_size=population)
    context = meta_schedule.TuneContext(
        mod=searched_function(task), target=device_target(get_device(DEVICE)), task_name=task,
        space_generator="post-order-apply", search_strategy=search, num_threads=1,
        rand_state=seed + 1,
    )  # fmt: skip
    return context, search, context.generate_design_space()


def _searched(task: str, seed: int, population: int, rounds: int) -> dict[str, Any]:
    """Returns CPU seconds and best latency by round of both searches."""
    from tvm_helper.cost_model.state_file import load_for_search

    trained = load_for_search(model_folder(PRETRAINED))
    return {
        "task": task, "seed": seed,
        **{way: _search(way, trained, task, seed, population, rounds) for way in WAYS},
    }  # fmt: skip


def _search(
    way: str, trained: TrainedModel, task: str, seed: int, population: int, rounds: int
) -> dict[str, Any]:
    from tvm_helper.compat import meta_schedule
    from tvm_helper.cost_model.metaschedule import CdmppCostModel
    from tvm_helper.search.evolution import Evolution

    model = CdmppCostModel(trained, DEVICE, safety_net=False, seed=seed)
    context, search, spaces = _context(task, seed, population)
    if way == "cdmpp":
        search = Evolution(population, seed)
        search._initialize_with_tune_context(context)
    database = meta_schedule.database.MemoryDatabase()
    workload = database.commit_workload(context.mod)
    began, stub_s = time.process_time(), 0.0
    search.pre_tuning(1 << 30, PER_ROUND, spaces, database, model)
    latency_s: list[float] = []
    best: list[float] = []
    for _ in range(rounds):
        candidates = search.generate_measure_candidates()
        if not candidates:
            break
        asked = time.process_time()
        _, found = model._latencies(context, list(candidates), "")
        stub_s += time.process_time() - asked
        results = []
        for candidate, value in zip(candidates, np.nan_to_num(found, nan=1.0), strict=True):
            latency_s.append(float(value))
            results.append(meta_schedule.runner.RunnerResult([float(value)], None))
            database.commit_tuning_record(
                meta_schedule.database.TuningRecord(
                    candidate.sch.trace, workload, [float(value)], context.target,
                    candidate.args_info,
                )
            )  # fmt: skip
        model.update(context, list(candidates), results)
        search.notify_runner_results(candidates, results)
        best.append(min(latency_s))
    return {
        "cpu_s": time.process_time() - began - stub_s, "trials": len(latency_s), "best_s": best,
    }  # fmt: skip


def _page(values: Mapping[str, Any]) -> Page:
    rows = [_row(task, found) for task, found in values["searches"].items()]
    titles = ("task", "seeds", "TVM, CPU s", "`cdmpp search`, CPU s", "ratio",
              "best latency, by seed")  # fmt: skip
    note = (
        f"{values['rounds']} rounds of {PER_ROUND} trials, a population of "
        f"{values['population']}; medians over the seeds. A trial's latency is what the "
        "shipped model predicts, so nothing is built or run."
    )
    return Page(
        title="Drawing a search's programs",
        lead="CPU time of one thread. Below 1: less time, or a shorter latency, than TVM's search.",
        sections=[Section("A search", note, tables=[plain_table(titles, rows)])],
    )


def _row(task: str, found: Sequence[Mapping[str, Any]]) -> list[str]:
    def median(way: str, key: str) -> float:
        return float(statistics.median(one[way][key] for one in found))

    ratio = statistics.median(one["cdmpp"]["cpu_s"] / one["tvm"]["cpu_s"] for one in found)
    best = [one["cdmpp"]["best_s"][-1] / one["tvm"]["best_s"][-1] for one in found]
    return [
        task, str(len(found)), f"{median('tvm', 'cpu_s'):.1f}", f"{median('cdmpp', 'cpu_s'):.1f}",
        f"{ratio:.2f}", ", ".join(f"{value:.2f}" for value in best),
    ]  # fmt: skip
