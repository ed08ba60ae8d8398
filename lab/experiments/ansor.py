"""How good Ansor's searches become under different cost models: the page of what
`lab.experiments.ansor_search` measures in the side environment.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cdmpp.metrics import mean_and_interval
from lab.paths import ROOT

#: Where searches are kept, and what the page is written from there.
WORK, RESULT = Path("cache/ansor-search"), "result.json"
XGB = ("XGBModel, no warm-up", "XGBModel")


def experiment(
    device: str = "xeon-avx2-1c", model: str = "pretrained", seeds: int = 3, trials: int = 64
) -> None:
    """Runs the searches that are missing in the old TVM's environment, and writes the page.

    Args:
        device: label of this machine's CPU.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TVM_NUM_THREADS": "1"}
    ansor = [sys.executable, "-m", "tvm_helper.cost_model.ansor"]
    for command in (
        [f"{ansor[-1]}.setup"],
        [f"{ansor[-1]}.run", "-m", "lab.experiments.ansor_search",
         json.dumps({"device": device, "model": model, "seeds": seeds, "trials": trials})],
    ):  # fmt: skip
        subprocess.run([*ansor[:2], *command], check=True, cwd=ROOT, env=environment)
    result = json.loads((WORK / RESULT).read_text(encoding="utf-8"))
    write_report(result)


def write_report(result: dict[str, Any]) -> None:
    """Writes the page and its numbers."""
    from lab.pages import write_page
    from lab.stamp import PROGRAMS, stamp  # not for the side environment

    found = stamp(result["command"], schemas=PROGRAMS, models=[result["model"]])
    write_page("ansor", page(result), result, found)


def page(result: dict[str, Any]) -> str:
    """Returns the Markdown page of a result."""
    settings, machine = result["settings"], result["machine"]
    loads = ", ".join(f"{load:.1f}" for load in machine["load"])
    lines = [
        "# Searches of Ansor under different cost models",
        "",
        f"`{result['command']}`, in the side environment (TVM {machine['tvm']}).",
        "",
        f"{machine['processor']}, {machine['cores']} cores, one thread, load {loads} at the end. "
        f"Target `{result['target']}`, model `{result['model']}` for device `{result['device']}`. "
        f"Each search measures {settings['trials']} programs, {settings['per_round']} a round; a "
        f"program's time is the median of {settings['repeat']} repeats of at least "
        f"{settings['min_repeat_ms']} ms. Ansor's own settings but for a population of "
        f"{settings['population']} states instead of 2048. The same for every cost model.",
        "",
        "`XGBModel` is TVM's own: as it comes it answers at random until it has seen more than 100 "
        "programs; without warm-up it is asked after its first batch.",
        "",
        *_summary(result),
    ]
    for task in result["winners"]:
        lines += ["", f"## {task}", "", *_table(result, task), "", *_ranking(result, task)]
    lines += [
        "",
        "Best latency: the best program of every search, timed again after all searches, in turns "
        f"with the others of its task, {settings['winner_rounds']} times; its median, then the "
        "geometric mean over the seeds. Best reading: during the search, geometric mean. "
        "Correlation: Spearman's, of the scores of a batch, asked before the model was told, with "
        "the measured rates; mean over the batches that the model could tell. "
        "Ansor tells no model its last batch.",
        "",
    ]
    return "\n".join(lines)


def _summary(result: dict[str, Any]) -> list[str]:
    """Returns what our models' best programs take, over those of the better XGBModel of a task."""
    tasks = list(result["winners"])
    lines = [
        "Best latency after all trials over that of the better of both XGBModels (geometric mean "
        "over seeds, each task once), and its mean over the tasks with a 95 % interval:",
        "",
        f"| cost model | {' | '.join(tasks)} | mean |",
        f"|---|{'---|' * len(tasks)}---|",
    ]
    methods = dict.fromkeys(run["method"] for run in result["runs"])
    for method in (name for name in methods if name not in XGB):
        ratios = [
            math.log(
                _latency(result, task, method)
                / min(_latency(result, task, name) for name in XGB if name in methods)
            )
            for task in tasks
        ]
        mean, half = mean_and_interval(ratios)
        cells = [f"{math.exp(ratio):.2f}" for ratio in ratios]
        cells.append(f"{math.exp(mean):.2f}")
        if half is not None:
            cells[-1] += f" [{math.exp(mean - half):.2f}, {math.exp(mean + half):.2f}]"
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return lines


def _latency(result: dict[str, Any], task: str, method: str) -> float:
    return _mean([won["median_s"] for won in result["winners"][task] if won["method"] == method])


def _table(result: dict[str, Any], task: str) -> list[str]:
    runs = [run for run in result["runs"] if run["task"] == task]
    counts = sorted({int(count) for run in runs for count in run["best_s"]})
    trials = " | ".join(f"best reading after {count}, µs" for count in counts)
    lines = [
        f"| cost model | seeds | best latency, µs | by seed | {trials} | correlation | failed | "
        "search, s | in the model |",
        f"|---|---|---|---|{'---|' * len(counts)}---|---|---|---|",
    ]
    for method in dict.fromkeys(run["method"] for run in runs):
        mine = [run for run in runs if run["method"] == method]
        won = [w["median_s"] for w in result["winners"][task] if w["method"] == method]
        known = [rank for run in mine for rank in run["correlations"] if rank is not None]
        wall_s = sum(run["wall_s"] for run in mine)
        share = sum(run["model_s"] for run in mine) / wall_s
        readings = [f"{1e6 * _mean([_at(run, count) for run in mine]):.1f}" for count in counts]
        cells = [
            method, str(len(mine)), f"**{1e6 * _mean(won):.1f}**",
            ", ".join(f"{1e6 * seconds:.1f}" for seconds in won), *readings,
            f"{sum(known) / len(known):.2f} ({len(known)} batches)" if known else "none",
            str(sum(run["failed"] for run in mine)), f"{wall_s / len(mine):.0f}", f"{share:.0%}",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _at(run: dict[str, Any], count: int) -> float:
    return float({int(key): value for key, value in run["best_s"].items()}[count])


def _ranking(result: dict[str, Any], task: str) -> list[str]:
    found = result["ranking"][task]
    return [
        f"The untuned model on all {found['programs']} programs that these searches measured: "
        f"Spearman's correlation with the measured rates {found['spearman']:.2f}; top-1 score "
        f"{found['top1_score']:.0%} (speed of the program that it puts first over the fastest's)."
    ]


def _mean(seconds: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, seconds)) / len(seconds))
