"""Ansor's searches under different cost models, in the side environment; `ansor` starts it with its
options as JSON and writes the page.

A finished search is not repeated: everything is kept in `WORK`. The best programs of all searches
of a task are timed again in turns, because readings taken during a search do not count.
"""

from __future__ import annotations

import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import auto_scheduler

from cdmpp.files.atomic import write_text
from cdmpp.metrics import spearman
from lab.experiments.ansor import RESULT, WORK
from tests.ansor.ansor_tasks import (
    DEVICE,
    TARGET,
    batch_matmul_task,
    conv2d_task,
    depthwise_task,
    matmul_task,
    search,
)
from tvm_helper.cost_model.ansor.model import CdmppPythonModel

#: Shapes that no training task has.
TASKS: dict[str, Callable[[], Any]] = {
    "matmul 176x416x304 + bias": lambda: matmul_task(176, 416, 304),
    "conv2d 30x30x72 -> 88, 3x3 + bias + relu": lambda: conv2d_task(30, 72, 88, 3),
    "batch_matmul 12 of 144x144x72": lambda: batch_matmul_task(12, 144, 144, 72),
    "depthwise 52x52x136, 5x5 + bias + relu": lambda: depthwise_task(52, 136, 5),
}
OURS, TUNED = "cdmpp", "cdmpp, tuned every 16"
METHODS = (OURS, "XGBModel, no warm-up", TUNED, "XGBModel")
TRIALS, PER_ROUND = 64, 16
REPEAT, LEAST_MS = 5, 10
ROUNDS = 15
#: States in a generation of the evolution; Ansor's own 2048 takes four times as long.
POPULATION = 512


@dataclass(frozen=True)
class Options:
    """Options of `lab.experiments.ansor.experiment`."""

    device: str = DEVICE
    model: str = "pretrained"
    seeds: int = 3
    trials: int = TRIALS


def main(args: Options) -> None:
    """Does what is missing and writes what came of it."""
    WORK.mkdir(parents=True, exist_ok=True)
    runs = [
        _run(args, task, method, seed)
        for seed in range(args.seeds)
        for task in TASKS
        for method in METHODS
    ]
    result = {
        "command": "python -m lab run ansor" + _changed(args),
        "machine": _machine(),
        "target": TARGET, "device": args.device, "model": args.model,
        "settings": {
            "trials": args.trials, "per_round": PER_ROUND, "repeat": REPEAT,
            "min_repeat_ms": LEAST_MS, "population": POPULATION,
            "winner_rounds": ROUNDS, "seeds": args.seeds,
        },
        "runs": runs,
        "ranking": {task: _ranking(args, task, runs) for task in TASKS},
        "winners": {task: _winners(args, task, runs) for task in TASKS},
    }  # fmt: skip
    write_text(WORK / RESULT, json.dumps(result))


def _changed(args: Options) -> str:
    return "".join(
        f" {name}={value}"
        for name, value in asdict(args).items()
        if value != getattr(Options(), name)
    )


def _machine() -> dict[str, Any]:
    cpu = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in cpu if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.processor(), "cores": os.cpu_count(),
        "threads": 1, "load": list(os.getloadavg()), "tvm": str(tvm.__version__),
    }  # fmt: skip


def _run(args: Options, task: str, method: str, seed: int) -> dict[str, Any]:
    name = "".join(
        c if c.isalnum() else "-"
        for c in f"{args.model} {args.device} {task} {method} {seed} {args.trials}"
    )
    done, log = WORK / f"{name}.json", WORK / f"{name}.log"
    if done.is_file():
        return dict(json.loads(done.read_text(encoding="utf-8")))
    log.unlink(missing_ok=True)
    np.random.seed(seed)  # the old XGBModel answers from it before it is trained
    model = _model(args, method, seed)
    watch = _Watch(model)
    started = time.perf_counter()
    search(
        TASKS[task](), model, trials=args.trials, each_round=PER_ROUND, seed=seed + 1,
        log=str(log), repeat=REPEAT, least_ms=LEAST_MS, population=POPULATION,
    )  # fmt: skip
    seconds = time.perf_counter() - started
    lines = log.read_text(encoding="utf-8").splitlines()
    costs = [_cost_s(json.loads(line)) for line in lines]
    result = {
        "task": task, "method": method, "seed": seed, "log": log.name, "wall_s": seconds,
        "model_s": watch.seconds, "correlations": watch.correlations,
        "best_s": {count: min(costs[:count]) for count in (16, 32, 64) if count <= len(costs)},
        "measured": len(costs), "failed": sum(not math.isfinite(cost) for cost in costs),
        "costs_s": [cost if math.isfinite(cost) else None for cost in costs],
    }  # fmt: skip
    if isinstance(model, CdmppPythonModel):
        result["usage"] = model.usage.to_json()
        model.close()
    write_text(done, json.dumps(result))
    best = f"best {1e6 * min(costs):.1f} us"
    print(f"{task} | {method} | seed {seed}: {best} in {seconds:.0f} s", flush=True)
    return result


def _model(args: Options, method: str, seed: int) -> Any:
    if method == OURS:
        return CdmppPythonModel(args.model, args.device)
    if method == TUNED:
        return CdmppPythonModel(args.model, args.device, finetune_every=PER_ROUND, seed=seed)
    warm_up = 0 if "no warm-up" in method else 100
    return auto_scheduler.XGBModel(verbose_eval=0, num_warmup_sample=warm_up, seed=seed + 1)


def _cost_s(record: dict[str, Any]) -> float:
    costs, error = record["r"][:2]
    return float(np.median(costs)) if error == 0 else math.inf


class _Watch:
    """Times a model inside a search, and ranks every measured batch before the model is told.

    Attributes:
        seconds: spent in the model.
        correlations: Spearman's, one a batch; None where the model could not tell.
    """

    def __init__(self, model: Any) -> None:
        self.seconds = 0.0
        self.correlations: list[float | None] = []
        predict, update = model.predict, model.update

        def timed_predict(task: Any, states: Any) -> Any:
            started = time.perf_counter()
            scores = predict(task, states)
            self.seconds += time.perf_counter() - started
            return scores

        def timed_update(inputs: Any, results: Any) -> None:
            self.correlations.append(_batch_correlation(model, predict, inputs, results))
            started = time.perf_counter()
            update(inputs, results)
            self.seconds += time.perf_counter() - started

        model.predict, model.update = timed_predict, timed_update


def _batch_correlation(model: Any, predict: Any, inputs: Any, results: Any) -> float | None:
    if isinstance(model, auto_scheduler.XGBModel) and (
        model.bst is None or len(model.inputs) <= model.num_warmup_sample
    ):
        return None
    scores = np.asarray(predict(inputs[0].task, [entry.state for entry in inputs]), np.float64)
    costs = np.array([np.median([float(cost.value) for cost in result.costs])
                      if result.error_no == 0 else np.inf for result in results])  # fmt: skip
    is_good = np.isfinite(costs) & np.isfinite(scores)
    return float(spearman(scores[is_good], -costs[is_good])) if is_good.sum() > 3 else None


def _states(task: Any, lines: list[str]) -> tuple[list[Any], list[float]]:
    """Returns states and seconds of measured programs, each program once."""
    found: dict[str, tuple[Any, float]] = {}
    for line in lines:
        record = json.loads(line)
        cost = _cost_s(record)
        if math.isfinite(cost):
            entry, _ = auto_scheduler.measure_record.load_record_from_string(line)
            key = json.dumps(record["i"][1])
            state = task.compute_dag.infer_bound_from_state(entry.state)
            found.setdefault(key, (state, cost))
    return [state for state, _ in found.values()], [cost for _, cost in found.values()]


def _ranking(args: Options, name: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns how the untuned model ranks everything that any search of a task measured."""
    task = TASKS[name]()
    lines = [
        line
        for run in runs
        if run["task"] == name
        for line in (WORK / run["log"]).read_text(encoding="utf-8").splitlines()
    ]
    states, costs = _states(task, lines)
    model = CdmppPythonModel(args.model, args.device)
    scores = model.predict(task, states)
    model.close()
    cost_s = np.array(costs)
    best, first = float(cost_s.min()), float(cost_s[int(np.argmax(scores))])
    return {"programs": len(costs), "spearman": float(spearman(scores, -cost_s)),
            "top1_score": best / first}  # fmt: skip


def _winners(args: Options, name: str, runs: list[dict[str, Any]]) -> list[Any]:
    """Times the best program of every search of a task in turns: one reading each a round."""
    task = TASKS[name]()
    mine = [run for run in runs if run["task"] == name]
    timers = [_timer(task, _best_line(WORK / run["log"])) for run in mine]
    readings = [[timer() for timer in timers] for _ in range(ROUNDS)]
    return [
        {
            "method": run["method"], "seed": run["seed"],
            "median_s": float(np.median(column)), "readings_s": list(column),
        }
        for run, column in zip(mine, zip(*readings, strict=True), strict=True)
    ]  # fmt: skip


def _best_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8").splitlines()
    return min(lines, key=lambda line: _cost_s(json.loads(line)))


def _timer(task: Any, line: str) -> Callable[[], float]:
    entry, _ = auto_scheduler.measure_record.load_record_from_string(line)
    schedule, tensors = task.compute_dag.apply_steps_from_state(
        entry.state, layout_rewrite=task.layout_rewrite_option
    )
    built, device = tvm.build(schedule, tensors, target=task.target), tvm.cpu()
    rng = np.random.default_rng(0)
    arguments = [
        tvm.nd.array(rng.random(tuple(map(int, tensor.shape)), np.float32), device)
        for tensor in tensors
    ]
    evaluate = built.time_evaluator(
        built.entry_name, device, number=1, repeat=1, min_repeat_ms=2 * LEAST_MS
    )
    return lambda: float(evaluate(*arguments).mean)


if __name__ == "__main__":
    main(Options(**json.loads(sys.argv[1])))
