"""The page of `search`: its tables, curves and tidy rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.text import markdown_table
from lab.figures import ratio_text
from lab.pages import sections, write_page
from lab.paths import PAGES, RESULTS
from lab.stamp import PROGRAMS, stamp

Results = Mapping[tuple[str, str, int], Mapping[str, Any]]
_XGB = "xgb-warm0"


def write_results(
    found: Results,
    timed: Mapping[str, Mapping[str, Any]],
    *,
    name: str,
    tasks: Mapping[str, str],
    methods: Sequence[str],
) -> None:
    """Writes the page, its JSON file and its figure.

    Args:
        found: (task, method, seed) -> result of a search.
        timed: task -> winners and their readings.
        name: of the page.
        tasks: short name -> full name.
        methods: in the order of the columns.
    """
    best = best_times(timed)
    methods = [method for method in methods if any(key[1] == method for key in found)]
    some = next(iter(found.values()))
    page = _markdown(found, best, name, tasks, methods)
    parts = [result.get("stamp") for result in found.values()]
    origin = stamp(f"python -m lab run {name}", schemas=PROGRAMS, parts=parts)
    models = sorted({str(result["model"]) for result in found.values() if result["model"]})
    write_page(name, page, {
        "device": some["device"], "models": models,
        "searches": len(found), "trials": sum(len(r["latency_s"]) for r in found.values()),
        "untuned_s": {task: _median(times, "untuned") for task, times in timed.items()},
        "best_s": {" ".join(map(str, key)): value for key, value in sorted(best.items())},
    }, origin)  # fmt: skip
    folder = PAGES if (PAGES / f"{name}.png").is_file() else RESULTS
    _plot(found, best, tasks, methods, folder / f"{name}.png")


def best_times(timed: Mapping[str, Mapping[str, Any]]) -> dict[tuple[str, str, int, int], float]:
    """Returns (task, method, seed, trials) -> the winner's median seconds when timed again."""
    return {
        (task, row["method"], row["seed"], row["trials"]): _median(times, row["program"])
        for task, times in timed.items()
        for row in times["winners"]
    }


def _median(times: Mapping[str, Any], program: str) -> float:
    return float(np.median(times["seconds"][program]))


def _markdown(
    found: Results,
    best: Mapping[tuple[str, str, int, int], float],
    name: str,
    tasks: Mapping[str, str],
    methods: Sequence[str],
) -> str:
    lines = [
        *_relative(best, tasks, methods), "", f"![curves]({name}.png)", "",
        *_walls(found, methods),
    ]  # fmt: skip
    return sections(name, tables="\n".join(lines))


def over_xgb(
    best: Mapping[tuple[str, str, int, int], float],
    tasks: Mapping[str, str],
    method: str,
    trials: int,
    of_xgb: int,
) -> list[float]:
    """Returns a method's latency over XGB's: per task, geometric mean over the seeds of both.

    Args:
        trials: measured programs of the method.
        of_xgb: measured programs of XGB.
    """
    found = []
    for task in tasks:
        seeds = {key[2] for key in best if key[0] == task}
        pairs = [((task, method, seed, trials), (task, _XGB, seed, of_xgb)) for seed in seeds]
        logs = [
            np.log(best[ours] / best[theirs])
            for ours, theirs in pairs
            if ours in best and theirs in best
        ]
        if logs:
            found.append(float(np.exp(np.mean(logs))))
    return found


def _relative(
    best: Mapping[tuple[str, str, int, int], float],
    tasks: Mapping[str, str],
    methods: Sequence[str],
) -> list[str]:
    rows = []
    for trials, of_xgb in ((16, 16), (64, 64), (16, 64)):
        ratios = [over_xgb(best, tasks, method, trials, of_xgb) for method in methods]
        cells = [ratio_text(one) if one else "-" for one in ratios]
        rows.append([str(trials), str(of_xgb), str(max(map(len, ratios))), *cells])
    return [
        "## Latency over that of the better XGB of the task", "",
        "Geometric mean over tasks, 95 % interval over tasks (Student's t).", "",
        markdown_table(["after", "XGB after", "tasks", *methods], rows),
    ]  # fmt: skip


def _walls(found: Results, methods: Sequence[str]) -> list[str]:
    lines = [
        "## Wall time", "",
        "| method | searches | seconds per trial (median) | share in the cost model | failed |",
        "|---|---|---|---|---|",
    ]  # fmt: skip
    for method in methods:
        rows = [result for key, result in found.items() if key[1] == method]
        if not rows:
            continue
        per_trial = np.median([row["wall_s"] / max(1, len(row["latency_s"])) for row in rows])
        share = sum(row["cost_model_s"] for row in rows) / sum(row["wall_s"] for row in rows)
        failed = sum(value is None for row in rows for value in row["latency_s"])
        lines.append(f"| {method} | {len(rows)} | {per_trial:.2f} | {share:.1%} | {failed} |")
    return lines


def _plot(
    found: Results,
    best: Mapping[tuple[str, str, int, int], float],
    tasks: Mapping[str, str],
    methods: Sequence[str],
    path: Path,
) -> None:
    """Draws the best latency so far against trials, one panel per task."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 4, figsize=(15, 6.5), squeeze=False)
    for axis, task in zip(axes.flat, tasks, strict=True):
        for number, method in enumerate(methods):
            curves = [
                _curve(result["latency_s"])
                for key, result in found.items()
                if key[:2] == (task, method)
            ]
            if not curves:
                continue
            length = min(map(len, curves))
            mean = np.exp(np.nanmean(np.log([curve[:length] for curve in curves]), axis=0))
            axis.plot(np.arange(1, length + 1), 1e6 * mean, color=f"C{number}", label=method)
            for trials in (16, 64):
                values = [v for k, v in best.items() if k[:2] == (task, method) and k[3] == trials]
                if values:
                    axis.plot([trials], [1e6 * np.exp(np.mean(np.log(values)))], "o",
                              color=f"C{number}", markersize=4)  # fmt: skip
        axis.set_xscale("log", base=2)
        axis.set_title(task)
        axis.set_xlabel("programs measured")
        axis.set_ylabel("shortest latency, us")
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=len(methods), fontsize=9)
    figure.suptitle("Lines: readings during the searches, mean of seeds. Points: timed again.")
    figure.tight_layout(rect=(0, 0.04, 1, 1))
    temporary = path.with_suffix(".tmp.png")
    figure.savefig(temporary, dpi=80)
    plt.close(figure)
    temporary.replace(path)


def _curve(latency_s: Sequence[float | None]) -> Any:
    values = np.array([np.nan if value is None else value for value in latency_s], float)
    return np.fmin.accumulate(values)
