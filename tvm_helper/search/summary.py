"""Summary of a search from the files of its folder, also while it runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cdmpp.metrics import mean_and_interval
from tvm_helper.measure.failures import BUILD_CODES
from tvm_helper.measure.journal import read_journal
from tvm_helper.measure.tables import failures_by_kind
from tvm_helper.search.expected_gain import Gain, advice, total_gain, trend
from tvm_helper.search.folder_files import MODULE_FILE, read_final, read_search

_TIMES = ("cost_model", "draw", "build", "verify", "run")


def search_summary(folder: Path) -> dict[str, Any]:
    """Returns the summary of a search as JSON values.

    Raises:
        DataError: there is no search, or a file is damaged.
    """
    search = read_search(folder)
    entries = read_journal(folder)
    trials = [entry for entry in entries if entry["kind"] == "measured"]
    final = read_final(folder)
    is_final = final is not None and final["trials"] == len(trials)
    timings = {one["symbol"]: one for one in final["timings"]} if final and is_final else {}
    tasks = [_task(task, entries, timings) for task in search["tasks"]]
    gains = [Gain(task.pop("trend"), task["predicted_gain"]) for task in tasks]
    seconds = [t["best_s"] and t["weight"] * t["best_s"] for t in tasks]
    fixed, options = search["fixed"], search["options"]
    is_network = options["network"] is not None
    return {
        "folder": str(folder),
        "device": fixed["device"], "target": fixed["target"], "threads": fixed["threads"],
        "cost_model": fixed["cost_model"], "model": fixed["model"],
        "scorer": search.get("scorer"),
        "finetune_every": fixed["finetune_every"], "seed": fixed["seed"],
        "network": options["network"],
        "state": final["reason"] if final is not None and is_final else "not finished",
        "trials": len(trials), "trials_wanted": options["trials"],
        **_counts(entries), "verify": options.get("verify", 1),
        "failed": sum(entry["error_code"] != 0 for entry in trials),
        "failures": failures_by_kind(trials),
        "tasks": tasks,
        "unknown": search["unknown"], "left_out": search["left_out"],
        "untuned_tasks": final["untuned"] if final is not None and is_final else [],
        "end_to_end": _compared(timings.get("main")) if is_network else None,
        "gain": total_gain(gains, seconds),
        "advice": advice(gains, options["stop_gain"], len(trials)),
        "xgb_shares": _xgb_shares(entries),
        "seconds": _seconds(entries),
        "module": str(folder / MODULE_FILE) if is_final else None,
    }  # fmt: skip


def _task(
    task: dict[str, Any], entries: Sequence[dict[str, Any]], timings: dict[str, Any]
) -> dict[str, Any]:
    own = [e for e in entries if e["kind"] == "measured" and e["task"] == task["key"]]
    latencies_s = [
        sum(entry["costs_s"]) / len(entry["costs_s"]) if entry["costs_s"] else math.inf
        for entry in own
    ]
    rounds = [e for e in entries if e["kind"] == "round" and e["task"] == task["key"]]
    best_s = min(latencies_s, default=math.inf)
    return {
        **{name: task[name] for name in
           ("name", "symbol", "operator", "shapes", "weight", "predicted_s")},
        "trials": len(own), "failed": sum(entry["error_code"] != 0 for entry in own),
        "best_s": None if math.isinf(best_s) else best_s,
        "best_by_trial_s": [None if math.isinf(v) else v for v in _running_best(latencies_s)],
        "predicted_gain": rounds[-1]["predicted_gain"] if rounds else None,
        "trend": trend(latencies_s),
        **_compared(timings.get(task["symbol"])),
    }  # fmt: skip


def _running_best(latencies_s: Sequence[float]) -> list[float]:
    best, found = math.inf, []
    for value in latencies_s:
        best = min(best, value)
        found.append(best)
    return found


def _compared(timing: dict[str, Any] | None) -> dict[str, Any]:
    """Returns mean, half width of its 95 % interval and number of repeats of both programs."""
    found: dict[str, Any] = {"error": None, "untuned_error": None}
    if timing is not None:
        found = {name: timing[name] for name in found}
    for which in ("tuned", "untuned"):
        costs_s = timing[f"{which}_costs_s"] if timing is not None else []
        mean, half = mean_and_interval(costs_s) if costs_s else (None, None)
        found |= {f"{which}_s": mean, f"{which}_half_s": half, f"{which}_repeats": len(costs_s)}
    tuned, untuned = found["tuned_s"], found["untuned_s"]
    found["speedup"] = untuned / tuned if tuned and untuned else None
    return found


def _counts(entries: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Returns the numbers of drafted and of built candidates; in a round without drafts, all trials
    count as drafted.
    """
    drafts = [e for e in entries if e["kind"] == "drafted"]
    rounds = {e["round"] for e in drafts}
    others = [e for e in entries if e["kind"] == "measured" and e["round"] not in rounds]
    return {
        "drafted": sum(e["drafted"] for e in drafts) + len(others),
        "built": sum(e["built"] for e in drafts)
        + sum(e["error_code"] not in BUILD_CODES for e in others),
    }


def _xgb_shares(entries: Sequence[dict[str, Any]]) -> list[float]:
    """Returns the weight of TVM's XGB model after every round, if that model runs too."""
    shares = [e.get("xgb_share") for e in entries if e["kind"] == "round" and e["task"] is not None]
    return [share for share in shares if share is not None]


def _seconds(entries: Sequence[dict[str, Any]]) -> dict[str, float]:
    rounds = [entry for entry in entries if entry["kind"] == "round"]
    found = {name: float(sum(e.get(f"{name}_s", 0.0) for e in rounds)) for name in _TIMES}
    wall = float(sum(entry["wall_s"] for entry in rounds))
    return {**found, "other": max(0.0, wall - sum(found.values())), "wall": wall}
