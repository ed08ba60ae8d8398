"""How good MetaSchedule's searches become under different cost models: a resumable grid.

    python -m lab.experiments.search_campaign run --model RUN
    python -m lab.experiments.search_campaign remeasure
    python -m lab.experiments.search_campaign report

`run` does one search (task x method x seed) after the other, each in a process of its own, and
keeps every measured program; finished searches are not repeated. `remeasure` times the best
programs of all searches of a task in turns, because readings taken during a search do not count.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.files.atomic import write_json
from cdmpp.report.stamp import PROGRAMS, stamp
from lab.experiments.search_page import PAGES, write_results
from tests.paths import ROOT

#: Tasks that no model has seen: kinds of the trained data at other shapes.
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
#: Method -> (cost model's name, its options); `search`: `cdmpp search` with these settings, because
#: TVM's own loop cannot build more than it runs.
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "random": ("random", {}),
    "xgb": ("xgb", {}),
    "xgb-warm0": ("xgb", {"num_warmup_samples": 0}),
    "cdmpp": ("cdmpp", {"finetune_every": 0}),
    "cdmpp-finetune": ("cdmpp", {"finetune_every": 16}),
    "cdmpp-alone": ("cdmpp", {"finetune_every": 16, "safety_net": False}),
    "cdmpp-verify": ("search", {"finetune_every": 16, "safety_net": False, "verify": 4}),
}
CHECKPOINTS = (16, 64, 256)
#: Tasks that go on to 256 trials; decided before any search ran.
LONG_TASKS = ("conv2d", "depthwise", "batch_matmul")
TRIALS, LONG_TRIALS = 64, 256
PER_ROUND = 16
#: Candidates that the evolution keeps; TVM's own 512 take half a minute a round on one core.
POPULATION = 128
#: Methods whose 256 trials the goal asks for: they run first.
_PEERS = ("xgb", "xgb-warm0")
#: Kinds of methods that ask our model.
_OURS = ("cdmpp", "search")
_REPEATS = 15


@dataclass(frozen=True)
class Cell:
    """One search."""

    task: str
    method: str
    seed: int
    trials: int

    @property
    def name(self) -> str:
        """Name of its folder."""
        return f"{self.task}--{self.method}--{self.seed}--{self.trials}"


def all_cells(seeds: Sequence[int], *, are_short: bool = False) -> list[Cell]:
    """Returns the searches in the order in which they run: what the goal asks for first, seed by
    seed, so that a campaign that is cut off is complete for its first seeds. A search of 256 trials
    is also the one of 64: its first 64 are the same.

    Args:
        are_short: whether none has 256 trials.
    """
    first, later = [], []
    for seed in seeds:
        for task in TASKS:
            for method in METHODS:
                is_long = task in LONG_TASKS and not are_short
                trials = LONG_TRIALS if is_long and method in _PEERS else TRIALS
                first.append(Cell(task, method, seed, trials))
                if is_long and method not in _PEERS:
                    later.append(Cell(task, method, seed, LONG_TRIALS))
    return first + later


def run(args: argparse.Namespace) -> int:
    """Runs the searches that are not there yet."""
    args.out.mkdir(parents=True, exist_ok=True)
    cells = [
        cell
        for cell in all_cells(args.seeds, are_short=args.short)
        if not args.cells or any(fnmatch(cell.name, pattern) for pattern in args.cells)
    ]
    missing = [cell for cell in cells if not (args.out / cell.name / "result.json").exists()]
    started, done = time.time(), 0
    for cell in missing:
        model = args.model if METHODS[cell.method][0] in _OURS else "pretrained"
        command = [
            sys.executable, "-m", "lab.experiments.search_campaign", "cell",
            "--out", str(args.out), "--task", cell.task, "--method", cell.method,
            "--seed", str(cell.seed), "--trials", str(cell.trials), "--model", model,
            "--device", args.device,
        ]  # fmt: skip
        with (args.out / "log.txt").open("a") as log:
            code = subprocess.run(command, stdout=log, stderr=log, check=False, cwd=ROOT).returncode
        done += cell.trials
        left = sum(other.trials for other in missing) - done
        eta = (time.time() - started) / done * left / 60
        print(f"{cell.name}: exit {code}, about {eta:.0f} min left", flush=True)
    return 0


def cell(args: argparse.Namespace) -> int:
    """One search. A part of one that was cut off is thrown away, because the cost model that led
    it is gone.
    """
    searched = Cell(args.task, args.method, args.seed, args.trials)
    folder = args.out / searched.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    search = _product_search if METHODS[args.method][0] == "search" else _tvm_search
    facts = search(searched, args, folder / "work")
    is_ours = METHODS[args.method][0] in _OURS
    origin = stamp("", schemas=PROGRAMS, models=[args.model] if is_ours else [])
    result = {
        **asdict(searched), **facts, "device": args.device, "stamp": origin,
        "model": args.model if is_ours else None,
    }  # fmt: skip
    write_json(folder / "result.json", result)
    return 0


def _product_search(searched: Cell, args: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Runs `cdmpp search`, which can build more programs than it runs."""
    from lab.experiments.search_timing import journal_entries

    options = {**METHODS[searched.method][1], "population": POPULATION, "search_threads": 1,
               "final_repeats": 1}  # fmt: skip
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "cdmpp.cli.main", "search", "--out", str(work), "--device",
         args.device, "--model", args.model, "--task", TASKS[searched.task],
         "--trials", str(searched.trials), "--trials-per-round", str(PER_ROUND),
         "--seed", str(searched.seed), "--json",
         *(word for key, value in options.items() for word in ("--set", f"{key}={value}".lower()))],
        check=True, cwd=ROOT, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    entries = journal_entries(work)
    summary = json.loads((work / "summary.json").read_text())
    return {
        "wall_s": time.perf_counter() - started, "cost_model_s": summary["seconds"]["cost_model"],
        "batch_end_s": [],
        "latency_s": [float(np.median(e["costs_s"])) if e["costs_s"] else None for e in entries],
        "errors": {}, "usage": None, "built": summary["built"], "seconds": summary["seconds"],
    }  # fmt: skip


def _tvm_search(searched: Cell, args: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Runs TVM's loop around one of the cost models."""
    from tvm.s_tir import meta_schedule as ms

    from cdmpp.devices.registry import get_device
    from lab.experiments.search_timing import TimedCostModel, TrialLog
    from tvm_helper.cost_model.tune import resolve_cost_model, tune_tir
    from tvm_helper.tasks.target import device_target

    np.random.seed(args.seed)  # TVM's own models draw from it
    device = get_device(args.device)
    kind, options = METHODS[args.method]
    if kind == "xgb":
        model = ms.cost_model.XGBModel(num_tuning_cores=1, **options)
    elif kind == "random":
        model = ms.cost_model.RandomModel(seed=args.seed)
    else:
        model = resolve_cost_model(
            "cdmpp", model=args.model, device=device, seed=args.seed, **options
        )
    timed, log = TimedCostModel(model), TrialLog()
    function = searched_function(args.task)
    started = time.perf_counter()
    tune_tir(
        function, device_target(device), work, args.trials, cost_model=timed,
        num_trials_per_iter=PER_ROUND, seed=args.seed, num_tuning_cores=1, post_optimization=False,
        strategy=ms.search_strategy.EvolutionarySearch(population_size=POPULATION),
        runner=ms.runner.LocalRunner(
            timeout_sec=20,
            evaluator_config=ms.runner.EvaluatorConfig(number=1, repeat=3, min_repeat_ms=20),
        ),
        measure_callbacks=[*ms.MeasureCallback.create("default"), log],
    )  # fmt: skip
    return {
        "wall_s": time.perf_counter() - started, "cost_model_s": timed.seconds,
        "batch_end_s": log.ends_s, "latency_s": log.latency_s, "errors": log.errors,
        "usage": _usage(model) if kind == "cdmpp" else None,
    }  # fmt: skip


def searched_function(task: str) -> Any:
    """Returns the unscheduled function of a task. No search may change the layout of its arguments,
    as `cdmpp search` must not: packing weights is not timed, so that a search that may do it finds
    faster programs than one that may not.
    """
    from tvm_helper.measure.tasks import named_function
    from tvm_helper.tir.packing import LAYOUT_FREE

    _, function = named_function(TASKS[task])
    return function.without_attr(LAYOUT_FREE)


def _usage(model: Any) -> dict[str, Any]:
    usage = model.usage
    return {
        "predicted": usage.predicted, "unsupported": dict(usage.unsupported),
        "tunings": usage.tunings, "kept_tunings": usage.kept_tunings,
        "feature_s": usage.feature_s, "predict_s": usage.predict_s, "update_s": usage.update_s,
        "batches": model.net.to_json()["batches"],
    }  # fmt: skip


def finished(out: Path) -> dict[tuple[str, str, int], dict[str, Any]]:
    """Returns (task, method, seed) -> result of its longest search."""
    found: dict[tuple[str, str, int], dict[str, Any]] = {}
    for path in sorted(out.glob("*/result.json")):
        result = json.loads(path.read_text())
        key = (result["task"], result["method"], result["seed"])
        if key not in found or found[key]["trials"] < result["trials"]:
            found[key] = {**result, "folder": path.parent}
    return found


def winner(latency_s: Sequence[float | None], trials: int) -> int | None:
    """Returns the place of the shortest of the first trials; None where all failed."""
    known = [(value, place) for place, value in enumerate(latency_s[:trials]) if value is not None]
    return min(known)[1] if known else None


def checkpoints(result: dict[str, Any]) -> list[int]:
    """Returns after how many trials a search is judged. One that ended early (its space had no
    other programs) is judged by what it had.
    """
    return [trials for trials in CHECKPOINTS if trials <= result["trials"]]


def remeasure(args: argparse.Namespace) -> int:
    """Times the winners of every task in turns, and the untuned program (first valid sample)."""
    from cdmpp.devices.registry import get_device
    from tvm_helper.tasks.target import device_target

    spec = get_device(args.device)
    target = device_target(spec)
    found = finished(args.out)
    for task in TASKS:
        function = searched_function(task)
        results = {key[1:]: result for key, result in found.items() if key[0] == task}
        if results:
            times = _remeasured(function, results, target)
            times["architecture"] = spec.architecture
            write_json(args.out / f"winners-{task}.json", times)
            print(f"{task}: {len(times['winners'])} winners timed", flush=True)
    return 0


def _remeasured(function: Any, results: Mapping[Any, Any], target: Any) -> dict[str, Any]:
    from lab.experiments.search_timing import recorded_traces
    from tvm_helper.tasks.build import built
    from tvm_helper.tasks.sampling import first_valid_schedule

    programs: dict[str, Any] = {"untuned": first_valid_schedule(function, target)}
    winners = []
    for (method, seed), result in results.items():
        traces = recorded_traces(result["folder"] / "work")
        for trials in checkpoints(result):
            place = winner(result["latency_s"], trials)
            if place is None:
                continue
            text = json.dumps(traces[place], sort_keys=True)
            key = hashlib.sha256(text.encode()).hexdigest()[:16]
            programs[key] = traces[place]
            winners.append({"method": method, "seed": seed, "trials": trials, "program": key})
    with tempfile.TemporaryDirectory() as scratch:
        modules = {
            key: built(function, trace, target, Path(scratch), key)
            for key, trace in programs.items()
        }
        times = _timed_in_turns(modules)
    return {"winners": winners, "seconds": times}


def _timed_in_turns(modules: Mapping[str, tuple[Any, list[Any]]]) -> dict[str, list[float]]:
    """Returns the seconds of every module, one reading of each in every turn."""
    import tvm

    times: dict[str, list[float]] = {key: [] for key in modules}
    for _ in range(_REPEATS):
        for key, (module, arguments) in modules.items():
            timer = module.time_evaluator("main", tvm.cpu(0), number=1, repeat=1, min_repeat_ms=30)
            times[key].append(float(timer(*arguments).mean))
    return times


def report(args: argparse.Namespace) -> int:
    """Writes the results page from what was searched and timed again."""
    found = finished(args.out)
    timed = {
        task: json.loads(path.read_text())
        for task in TASKS
        if (path := args.out / f"winners-{task}.json").exists()
    }
    if not timed:
        raise SystemExit(f"{args.out} has no timed winners; run the step remeasure first")
    write_results(found, timed, args.results, name=args.page, tasks=TASKS, methods=tuple(METHODS))
    return 0


def main() -> int:
    """Runs one of the steps; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    steps = parser.add_subparsers(dest="step", required=True)
    search = steps.add_parser("run", help="the searches that are not there yet")
    search.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    search.add_argument("--short", action="store_true", help="no searches of 256 trials")
    search.add_argument("--cells", nargs="*", default=[], help="only cells with these names (* ?)")
    one = steps.add_parser("cell", help="one search")
    one.add_argument("--task", choices=TASKS, required=True)
    one.add_argument("--method", choices=METHODS, required=True)
    one.add_argument("--seed", type=int, required=True)
    one.add_argument("--trials", type=int, required=True)
    again = steps.add_parser("remeasure", help="time the winners in turns")
    for step in (search, one):
        step.add_argument("--model", default="pretrained")
    for step in (search, one, again):
        step.add_argument("--device", default="epyc-avx512-1c")
    page = steps.add_parser("report", help="write NAME.md, .csv, .json and .png")
    page.add_argument("--page", choices=PAGES, default="search", help="NAME")
    page.add_argument("--results", type=Path, default=ROOT / "docs" / "results")
    for step in (search, one, again, page):
        step.add_argument("--out", type=Path, default=ROOT / "runs" / "search-campaign")
    args = parser.parse_args()
    return {"run": run, "cell": cell, "remeasure": remeasure, "report": report}[args.step](args)


if __name__ == "__main__":
    sys.exit(main())
