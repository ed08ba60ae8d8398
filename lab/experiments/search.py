"""Quality of searches with TVM's XGB and with `cdmpp search`: a resumable grid.

Searches (task x method x seed) run one after the other, each in its own process, and keep every
measured program. The best programs of a task's searches are then timed again in turn; readings
taken during a search do not count.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.pretrained import PRETRAINED
from lab.experiments.search_page import write_results
from lab.journal import Journal
from lab.paths import ROOT
from lab.shell import cdmpp, in_process
from lab.stamp import PROGRAMS, stamp

#: Tasks outside every training set: known operators at other shapes.
TASKS = {
    "conv2d": "conv2d:ci=56,co=112,h=28,w=28,k=3,s=1,p=1,relu=1",
    "depthwise": "depthwise_conv2d:c=144,h=28,w=28,k=3,s=1,p=1,relu=1",
    "dense": "dense:m=64,n=384,k=448",
    "batch_matmul": "batch_matmul:b=8,m=72,n=72,k=96",
    "softmax": "softmax:m=384,n=416",
    "layer_norm": "layer_norm:m=144,n=640",
    "max_pool2d": "max_pool2d:c=72,h=56,w=56,k=3,s=2,p=1",
    "conv2d_transpose": "conv2d_transpose:ci=56,co=28,h=14,w=14,k=4,s=2,p=1",
}
#: `cdmpp-verify` is `cdmpp search`, because TVM's own loop cannot build more than it runs.
METHODS = ("xgb-warm0", "cdmpp-verify")
_OURS = METHODS[1]
CHECKPOINTS = (16, 64)
TRIALS, PER_ROUND = 64, 16
#: Population of the evolution; TVM's default 512 takes half a minute per round on one core.
POPULATION = 128


@dataclass(frozen=True)
class Cell:
    """One search."""

    task: str
    method: str
    seed: int

    @property
    def name(self) -> str:
        """Name of the search's folder."""
        return f"{self.task}--{self.method}--{self.seed}--{TRIALS}"


def experiment(
    page: str = "search",
    device: str = "this-cpu",
    model: str = PRETRAINED,
    seeds: tuple[int, ...] = (0, 1, 2),
) -> None:
    """Runs missing searches, times their winners and writes the page.

    Args:
        page: `search`, or `search-elsewhere` on an unseen CPU.
        device: label of this machine's CPU.
    """
    work = ROOT / "runs" / page
    journal = Journal(work / "searches.jsonl")
    found = {}
    for cell in (Cell(*one) for one in itertools.product(TASKS, METHODS, seeds)):
        result = journal.cell(cell.name, partial(_searched, cell, model, device, work))
        found[cell.task, cell.method, cell.seed] = {**result, "folder": work / cell.name}
        print(cell.name, flush=True)
    write_results(found, winners_timed(found, device), name=page, tasks=TASKS, methods=METHODS)


def _searched(cell: Cell, model: str, device: str, work: Path) -> dict[str, Any]:
    place = f"{__name__}:search"
    found: dict[str, Any] = in_process(place, asdict(cell), model, device, work / cell.name)
    return found


def search(values: dict[str, Any], model: str, device: str, place: str) -> dict[str, Any]:
    """Runs one search and returns its result. Deletes an interrupted search: its cost model is
    lost.
    """
    cell, folder = Cell(**values), Path(place)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    is_ours = cell.method == _OURS
    if is_ours:
        facts = _product_search(cell, model, device, folder / "work")
    else:
        facts = _tvm_search(cell, device, folder / "work")
    origin = stamp("", schemas=PROGRAMS, models=[model] if is_ours else [])
    return {
        **asdict(cell), **facts, "device": device, "stamp": origin,
        "model": model if is_ours else None,
    }  # fmt: skip


def _product_search(cell: Cell, model: str, device: str, work: Path) -> dict[str, Any]:
    from lab.experiments.search_timing import journal_entries

    options = {
        "finetune_every": 16, "safety_net": False, "verify": 4, "population": POPULATION,
        "search_threads": 1, "final_repeats": 1,
    }  # fmt: skip
    started = time.perf_counter()
    cdmpp(
        "search", out=work, device=device, model=model, task=TASKS[cell.task], trials=TRIALS,
        trials_per_round=PER_ROUND, seed=cell.seed, json=True, quiet=True,
        set=[f"{key}={value}".lower() for key, value in options.items()],
    )  # fmt: skip
    entries = journal_entries(work)
    summary = json.loads((work / "summary.json").read_text())
    return {
        "wall_s": time.perf_counter() - started,
        "cost_model_s": summary["seconds"]["cost_model"],
        "latency_s": [float(np.median(e["costs_s"])) if e["costs_s"] else None for e in entries],
    }


def _tvm_search(cell: Cell, label: str, work: Path) -> dict[str, Any]:
    from tvm.s_tir import meta_schedule as ms

    from cdmpp.devices.registry import get_device
    from lab.experiments.search_timing import TimedCostModel, TrialLog
    from tvm_helper.cost_model.tune import tune_tir
    from tvm_helper.tasks.target import device_target

    np.random.seed(cell.seed)  # TVM's own models use this generator
    xgb = ms.cost_model.XGBModel(num_tuning_cores=1, num_warmup_samples=0)
    timed, log = TimedCostModel(xgb), TrialLog()
    function = searched_function(cell.task)
    started = time.perf_counter()
    tune_tir(
        function, device_target(get_device(label)), work, TRIALS, cost_model=timed,
        num_trials_per_iter=PER_ROUND, seed=cell.seed, num_tuning_cores=1, post_optimization=False,
        strategy=ms.search_strategy.EvolutionarySearch(population_size=POPULATION),
        runner=ms.runner.LocalRunner(
            timeout_sec=20,
            evaluator_config=ms.runner.EvaluatorConfig(number=1, repeat=3, min_repeat_ms=20),
        ),
        measure_callbacks=[*ms.MeasureCallback.create("default"), log],
    )  # fmt: skip
    return {
        "wall_s": time.perf_counter() - started,
        "cost_model_s": timed.seconds,
        "latency_s": log.latency_s,
    }


def searched_function(task: str) -> Any:
    """Returns the unscheduled function of a task, which may not change layouts of arguments.

    `cdmpp search` may not change them either: packing weights is not timed, so a search with the
    permission finds faster programs.
    """
    from tvm_helper.measure.tasks import named_function
    from tvm_helper.tir.packing import LAYOUT_FREE

    _, function = named_function(TASKS[task])
    return function.without_attr(LAYOUT_FREE)


def winner(latency_s: Sequence[float | None], trials: int) -> int | None:
    """Returns the index of the fastest of the first trials; None if all failed."""
    known = [(value, place) for place, value in enumerate(latency_s[:trials]) if value is not None]
    return min(known)[1] if known else None


def winners_timed(
    found: Mapping[tuple[str, str, int], dict[str, Any]], device: str
) -> dict[str, dict[str, Any]]:
    """Returns task -> its winners and the untuned program (first valid sample), timed in turn."""
    from cdmpp.devices.registry import get_device
    from tvm_helper.tasks.target import device_target

    target = device_target(get_device(device))
    timed = {}
    for task in TASKS:
        results = {key[1:]: result for key, result in found.items() if key[0] == task}
        if results:
            timed[task] = _remeasured(searched_function(task), results, target)
            print(f"{task}: {len(timed[task]['winners'])} winners timed", flush=True)
    return timed


def _remeasured(function: Any, results: Mapping[Any, Any], target: Any) -> dict[str, Any]:
    from lab.experiments.search_timing import recorded_traces, timed_in_turns
    from tvm_helper.tasks.sampling import first_valid_schedule

    programs: dict[str, Any] = {"untuned": first_valid_schedule(function, target)}
    winners = []
    for (method, seed), result in results.items():
        traces = recorded_traces(result["folder"] / "work")
        for trials in CHECKPOINTS:
            place = winner(result["latency_s"], trials)
            if place is None:
                continue
            text = json.dumps(traces[place], sort_keys=True)
            key = hashlib.sha256(text.encode()).hexdigest()[:16]
            programs[key] = traces[place]
            winners.append({"method": method, "seed": seed, "trials": trials, "program": key})
    return {"winners": winners, "seconds": timed_in_turns(function, programs, target)}
