"""Output of `cdmpp search`: the table of its tasks and the summary."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cdmpp.text import aligned, counted, interval_text, percent_text
from tvm_helper.search.progress import SearchProgress

if TYPE_CHECKING:  # it imports TVM
    from tvm_helper.search.run import SearchPlan

_WORDS = {"cost_model": "cost model", "draw": "drawing", "build": "building",
          "verify": "verifying", "run": "running", "other": "other"}  # fmt: skip


def summary_text(summary: dict[str, Any]) -> str:
    """Returns the summary as lines of text."""
    model = summary["cost_model"]
    if summary["model"]:
        scorer = f", scored by: {summary['scorer']}" if summary["scorer"] else ""
        model += f" ({summary['model']}{scorer})"
    tuning = summary["finetune_every"]
    lines = [
        f"{summary['trials']} of {counted(summary['trials_wanted'], 'trial')} on "
        f"{summary['device']}, cost model {model}"
        f"{f', tuned every {tuning}' if tuning else ''}, seed {summary['seed']}: "
        f"{summary['state']}; {summary['failed']} failed"
    ]
    lines += [
        f"  {kind['count']} {kind['name']}; the first: {kind['first_text']}"
        for kind in summary["failures"]
    ]
    lines += ["", _table(summary["tasks"], is_network=summary["network"] is not None), ""]
    whole = summary["end_to_end"]
    if whole is not None and whole["tuned_s"] is not None:
        lines.append(
            f"whole network: tuned {_cell(whole, 'tuned')}, untuned {_cell(whole, 'untuned')}"
            f"{_speedup(whole)}"
        )
    for task in (*summary["tasks"], *([whole] if whole else [])):
        for key, what in (("error", "the module"), ("untuned_error", "the untuned program")):
            if task.get(key):
                lines.append(f"{task.get('name', 'network')}: {what}: {task[key]}")
    if summary["verify"] > 1:
        lines.append(
            f"{counted(summary['drafted'], 'candidate', 'were')} drafted, {summary['built']} "
            f"built, {summary['trials']} taken as trials"
        )
    shares = summary["xgb_shares"]
    if any(shares):
        lines.append(
            "TVM's XGB model was mixed into the scores after "
            f"{sum(share > 0 for share in shares)} of {counted(len(shares), 'round')}, "
            f"current weight {shares[-1]:.2f}"
        )
    lines += _notes(summary)
    lines += [_times(summary["seconds"])]
    if summary["gain"] is not None:
        lines.append(f"expected gain of more trials: {100 * summary['gain']:.1f} %")
    if summary["advice"]:
        lines.append(summary["advice"])
    if summary["module"]:
        lines.append(f"module: {summary['module']}")
    else:
        lines.append("no module yet: run the same command again to continue")
    return "\n".join(lines)


def _notes(summary: dict[str, Any]) -> list[str]:
    lines = [f"not searched: {name}: {why}" for name, why in summary["left_out"].items()]
    lines += [
        f"no tensor program: {name} ({counted(calls, 'call')})"
        for name, calls in summary["unknown"].items()
    ]
    if summary["untuned_tasks"]:
        names = ", ".join(summary["untuned_tasks"])
        lines.append(f"without a measured schedule, in the module as the first sample: {names}")
    return lines


def _times(seconds: dict[str, float]) -> str:
    wall = seconds["wall"]
    if not wall:
        return "no round has ended yet"
    parts = ", ".join(
        f"{word} {100 * seconds[name] / wall:.0f} %"
        for name, word in _WORDS.items()
        if seconds[name] or name != "verify"
    )
    return f"wall time of the search {wall:.0f} s: {parts}"


def _table(tasks: Sequence[dict[str, Any]], *, is_network: bool) -> str:
    headings = ["calls", "task", "operator", "shapes", "trials", "best measured"]
    headings += [] if is_network else ["tuned", "untuned", "faster"]
    rows = [
        [
            str(task["weight"]), task["name"], task["operator"], " ".join(task["shapes"]),
            str(task["trials"]), interval_text(task["best_s"]),
            *([] if is_network else [
                _cell(task, "tuned"), _cell(task, "untuned"), _speedup(task).strip(" ,") or "?",
            ]),
        ]
        for task in tasks
    ]  # fmt: skip
    return aligned([headings, *rows], key=1)


def _cell(timing: dict[str, Any], which: str) -> str:
    mean, half = timing[f"{which}_s"], timing[f"{which}_half_s"]
    if mean is None or half is None:
        return interval_text(mean)
    factor = math.exp(half / mean)  # keeps the low end above zero
    return interval_text(mean, mean / factor, mean * factor)


def _speedup(timing: dict[str, Any]) -> str:
    return f", {timing['speedup']:.2f} x" if timing["speedup"] else ""


def plan_text(plan: SearchPlan) -> str:
    """Returns the plan of a search, with its tasks, as lines of text."""
    tasks = plan.tasks
    seconds = [None if t.predicted_s is None else t.weight * t.predicted_s for t in tasks]
    total = sum(value for value in seconds if value is not None)
    rows = [
        [
            str(task.weight), task.task.name, task.task.operator, " ".join(task.shapes),
            interval_text(task.predicted_s),
            percent_text(value / total if value is not None and total else None, 0, none="?"),
        ]
        for task, value in zip(tasks, seconds, strict=True)
    ]  # fmt: skip
    headings = ["calls", "task", "operator", "shapes", "predicted, first sample", "share"]
    lines = [aligned([headings, *rows], key=1)]
    lines += [f"not searched: {name}: {why}" for name, why in plan.left_out.items()]
    lines += [
        f"no tensor program: {name} ({counted(calls, 'call')})"
        for name, calls in plan.unknown.items()
    ]
    if plan.model_note:
        lines.append(f"no predictions: {plan.model_note}")
    size = plan.options.round_size(len(tasks))
    drafted = f", the best of {plan.options.verify * size} that are built" if plan.verifier else ""
    lines.append(f"{counted(plan.options.trials, 'trial')} in all, {size} a round{drafted}")
    if plan.verifier and plan.verifier.is_new_device:
        lines.append(
            f"the model was not trained on {plan.options.device}: built candidates are ranked by "
            "the times of the same instructions on other devices"
        )
    if plan.options.trials < len(tasks):
        without = len(tasks) - plan.options.trials
        lines.append(f"too few trials: at least {without} tasks keep their first valid sample")
    return "\n".join(lines)


def progress_note(progress: SearchProgress) -> str:
    """Returns the progress of a search, without the number of trials."""
    parts = []
    measured = [task for task in progress.tasks if task.best_s is not None]
    if len(progress.tasks) == 1 and measured:
        parts.append(f"best {interval_text(measured[0].best_s)}")
    elif measured:
        whole = sum(task.weight * (task.best_s or 0.0) for task in measured)
        parts.append(f"{len(measured)} of {counted(len(progress.tasks), 'task')}")
        parts.append(f"{interval_text(whole)} in all")
    failed = sum(task.failed for task in progress.tasks)
    if failed:
        parts.append(f"{failed} failed")
    if progress.gain is not None:
        parts.append(f"expected gain {percent_text(progress.gain)}")
    if progress.seconds_left is not None:
        parts.append(f"about {progress.seconds_left / 60:.1f} min left")
    return ", ".join(parts)
