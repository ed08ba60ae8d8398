"""The page of results of `network_models.py`: tables, the tidy CSV, and where they are from."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cdmpp.errors import DataError
from cdmpp.files.atomic import write_text
from cdmpp.metrics import mean_and_interval
from cdmpp.models.registry import NETWORK_CLASSES
from cdmpp.networks.dataset.samples import TARGETS, assemble
from cdmpp.networks.dataset.store import NetworkData
from cdmpp.networks.evaluate import METRICS, noise_floor
from cdmpp.networks.graph.mode import MODES
from cdmpp.networks.models.base import DEFAULT_MODEL
from cdmpp.networks.run import data_hash
from cdmpp.report.stamp import stamp, write_page
from cdmpp.text import tidy_csv
from lab.experiments.network_models import OUTSIDE, OUTSIDE_FILE
from lab.suites.leaderboard.other_tasks import ratio_interval

COMMAND = "make bench-network-models"
SUITE, DATASET = "networks", "networks-cpu"
_TITLES = {
    "infer_time_s": "Time of an inference", "train_time_s": "Time of a training step",
    "infer_memory_bytes": "Peak memory of inference",
    "train_memory_bytes": "Peak memory of a training step",
    "infer_utilisation": "Utilisation in inference",
    "train_utilisation": "Utilisation in training",
}  # fmt: skip
_GOALS = {"time": 0.10, "memory": 0.05}
_SHOWN = (
    "mape", "median_ape", "rmspe", "within_10pct", "mean_log_error", "median_ratio", "spearman"
)  # fmt: skip
_HEADINGS = (
    "MAPE", "median", "RMSPE", "within 10 %", "mean log error", "median ratio", "Spearman"
)  # fmt: skip
#: Metrics that are no share of what was measured.
_PLAIN = ("mean_log_error", "median_ratio", "spearman")


def write_report(data: NetworkData, cells: Path, out: Path, *, speed: dict[str, Any]) -> None:
    """Writes networks.md, networks.csv and networks.json.

    Raises:
        DataError: no cell of this data set is there.
    """
    found = read_cells(cells, data_hash(data))
    outside = _outside(cells)
    tuned = cells / "tune.json"
    tuning = json.loads(tuned.read_text()) if tuned.exists() else []
    device = ",".join(sorted({label.device for label in data.labels}))
    write_page(
        out, "networks", markdown(found, data, outside, tuning, speed),
        {
            "measured_on": data.manifest.get("note", {}).get("machine"),
            **{
                name: data.manifest.get("note", {}).get(name)
                for name in ("repeatability", "repeatability_as_timed", "speed_correction")
            },
            "speed_ms": speed,
            "outside": outside,
            "options": found[0]["key"]["options"],
            "tree_shares": {
                f"{cell['split']['kind']}-{cell['seed']}": cell["tree_shares"]
                for cell in found
                if cell["tree_shares"]
            },
        },
        stamp(COMMAND, schemas=["networks"], data={"networks-cpu": data_hash(data)}),
    )  # fmt: skip
    write_text(out / "networks.csv", tidy_csv(_tidy(found, device)))


def read_cells(folder: Path, wanted: str) -> list[dict[str, Any]]:
    """Returns the fitted cells of the data set `wanted`, in the order of the tables.

    Raises:
        DataError: there is none.
    """
    paths = sorted(folder.glob("*-*.json"))
    cells = [json.loads(path.read_text()) for path in paths]
    kept = [cell for cell in cells if cell["key"]["data"] == wanted]
    if not kept:
        raise DataError(f"no fitted cell of this data set in {folder}; run the step `fit` first")
    order = list(NETWORK_CLASSES)
    return sorted(kept, key=lambda c: (c["split"]["kind"], order.index(c["model"]), c["seed"]))


def markdown(
    cells: list[dict[str, Any]],
    data: NetworkData,
    outside: list[dict[str, Any]],
    tuning: list[dict[str, Any]],
    speed: dict[str, Any],
) -> str:
    """Returns the page."""
    note = data.manifest.get("note", {})
    floor = noise_floor(assemble(data))
    lines = [
        "# Whole networks: time, memory and utilisation from the operator graph",
        "",
        f"`{COMMAND}`. Data: {data.manifest['graphs']} graphs of {data.manifest['architectures']} "
        f"architectures, {data.manifest['labels']} labels, on "
        f"{', '.join(data.manifest['devices'])}. Half of the architectures train, a quarter "
        "chooses (when to stop, how much of the trees), a quarter tests; no architecture is in two "
        f"parts. Seeds {', '.join(str(seed) for seed in _seeds(cells))} draw other parts and other "
        "weights; ± is the 95 % interval of the mean over them, brackets are 95 % intervals over "
        "architectures and seeds (both drawn again with replacement). A goal is met where such an "
        "interval is below it. All errors in percent of what was measured; a mean log error is of "
        "|log(predicted / measured)|, a median ratio of predicted / measured. `residual` is ours.",
        "",
        *_verdict(cells),
        "",
        *_seernet(cells),
    ]
    for target in TARGETS:
        lines += _target(cells, target, "architecture", floor[target], note)
    lines += [
        "## The random split leaks",
        "",
        "The same architecture at another batch can be in training, as in the published numbers "
        "(PerfSeer: mean MAPE 5.14 % over six single-target models; 7.75 % multi-target; an MIT "
        "re-implementation 3.90 %; all on an RTX 3090 and other networks). MAPE:",
        "",
        *_random(cells),
        "",
        *_intervals(cells),
        *_outside_lines(outside),
        *_tuning_lines(tuning),
        "## Speed",
        "",
        f"Median of {speed['runs']} runs on {', '.join(speed['networks'])} at batch 1, one thread: "
        f"graph by torch.fx {speed['fx']:.1f} ms, prediction {speed['predict']:.1f} ms, together "
        f"{speed['fx'] + speed['predict']:.1f} ms a network (goal 50 ms; published 248 + 2 ms). "
        f"Graph by torch.export {speed['export']:.0f} ms.",
        "",
    ]
    return "\n".join([*lines, *_noise_lines(note)])


def _noise_lines(note: dict[str, Any]) -> list[str]:
    """Returns what samples that were measured twice tell; nothing without any."""
    found = note.get("repeatability")
    if not found:
        return []
    lines = [
        "## Noise",
        "",
        f"Measured twice: {found['samples']:.0f} samples in other processes at another time "
        f"differ by {100 * found['time_median']:.2f} % in time and "
        f"{100 * found['memory_median']:.2f} % in memory (medians; 90th percentiles "
        f"{100 * found['time_p90']:.2f} % and {100 * found['memory_p90']:.2f} %). A label is "
        "of both; were they independent, it would err by half of their difference, and so "
        "would a perfect model: the line `noise between two processes` of each table. The line "
        "above it is what the repeats of a process tell, which do not know that a machine "
        "changes its speed between minutes.",
        "",
    ]
    correction, timed = note.get("speed_correction"), note.get("repeatability_as_timed")
    if correction:
        exponents = ", ".join(
            f"{name} {value:.2f}" for name, value in sorted(correction["exponents"].items())
        )
        lines += [
            "Times are at the usual speed of the machine: small fixed works are timed beside every "
            f"repeat, and what they say is taken out (exponents from {correction['pairs']} samples "
            f"measured twice: {exponents}). As timed, the two measurements differ by "
            f"{100 * timed['time_median']:.2f} % (median; 90th percentile "
            f"{100 * timed['time_p90']:.2f} %): the line `the same, as timed`.",
            "",
        ]
    return lines


def _target(
    cells: list[dict[str, Any]],
    target: str,
    split: str,
    floor: dict[str, Any],
    note: dict[str, Any],
) -> list[str]:
    """Returns the table of one target."""
    lines = [f"## {_TITLES[target]}", "", f"| model | {' | '.join(_HEADINGS)} | n | seeds |"]
    lines.append("|---|" + "--:|" * (len(_HEADINGS) + 2))
    for model in NETWORK_CLASSES:
        own = _of(cells, model, split)
        if not own:
            continue
        numbers = [_mean([c["test"][target][metric] for c in own], metric) for metric in _SHOWN]
        count = sum(cell["test"][target]["n"] for cell in own) // len(own)
        name = f"**{model}**" if model == DEFAULT_MODEL else model
        lines.append(f"| {name} | {' | '.join(numbers)} | {count} | {len(own)} |")
    if floor["mape"] is not None:
        numbers = [_mean([floor[metric]], metric) for metric in _SHOWN]
        lines.append(f"| noise in one process | {' | '.join(numbers)} | {floor['n']} | - |")
    for name, key in (
        ("noise between two processes", "repeatability"),
        ("the same, as timed", "repeatability_as_timed"),
    ):
        repeats = note.get(key) or {}
        if f"{target}_half_mean" in repeats and (key == "repeatability" or "_time_" in target):
            mean, median = repeats[f"{target}_half_mean"], repeats[f"{target}_half_median"]
            lines.append(
                f"| {name} | {100 * mean:.2f} | {100 * median:.2f} "
                f"{'| - ' * (len(_SHOWN) - 2)}| {repeats['samples']:.0f} | - |"
            )
    return [*lines, ""]


def _verdict(cells: list[dict[str, Any]]) -> list[str]:
    """Returns, for times and memories, ours beside the goal and the best other line."""
    lines = []
    for target in TARGETS[:4]:
        means = {
            model: _mape(_of(cells, model, "architecture"), target)
            for model in NETWORK_CLASSES
            if _of(cells, model, "architecture")
        }
        ours = means.pop(DEFAULT_MODEL, None)
        others = {model: value for model, value in means.items() if value is not None}
        if ours is None or not others:
            continue
        best = min(others, key=others.__getitem__)
        goal = next(value for word, value in _GOALS.items() if word in target)
        own = _of(cells, DEFAULT_MODEL, "architecture")
        ends = _interval(own, None, target)
        ratio_ends = _interval(own, _of(cells, best, "architecture"), target)
        is_met = ends is not None and ends[1] <= goal
        said = "met" if is_met else "not met" if ours > goal else "not beyond its interval"
        lines.append(
            f"- {_TITLES[target]}: {100 * ours:.2f} %{_ends(ends, 100)}, goal {100 * goal:.0f} % "
            f"{said}; {ours / others[best]:.2f}{_ends(ratio_ends, 1)} of the best other line "
            f"({best}, {100 * others[best]:.2f} %)"
        )
    return lines


def _interval(
    own: list[dict[str, Any]], others: list[dict[str, Any]] | None, target: str
) -> tuple[float, float] | None:
    """Returns the 95 % interval of a MAPE, or of its ratio to that of others; None for one seed."""
    ours = [{"": cell["architecture_errors"][target]} for cell in own]
    theirs = (
        [{"": {name: (n, n) for name, (n, _) in seed[""].items()}} for seed in ours]
        if others is None
        else [{"": cell["architecture_errors"][target]} for cell in others]
    )
    return ratio_interval(ours, theirs, are_devices_drawn=False)


def _ends(ends: tuple[float, float] | None, scale: float) -> str:
    return "" if ends is None else f" [{scale * ends[0]:.2f}, {scale * ends[1]:.2f}]"


def _seernet(cells: list[dict[str, Any]]) -> list[str]:
    """Returns how SeerNet was trained, which takes hours at the published settings."""
    lines = []
    for model in ("seernet", "seernet-multi"):
        own = _of(cells, model, "architecture")
        if own:
            chosen = own[0]["key"]["options"][model.replace("-", "_")]
            minutes = sum(cell["fit_s"] for cell in own) / len(own) / 60
            lines.append(
                f"`{model}`: width {chosen['hidden']} (published 256), at most "
                f"{chosen['fit']['epochs']} epochs (500) of batches of {chosen['fit']['batch']} "
                f"(128), {minutes:.0f} minutes a training."
            )
    return [*lines, ""] if lines else []


def _random(cells: list[dict[str, Any]]) -> list[str]:
    shown = list(TARGETS)
    lines = [f"| model | {' | '.join(shown)} | seeds |", "|---|" + "--:|" * (len(shown) + 1)]
    for model in NETWORK_CLASSES:
        own = _of(cells, model, "random")
        if own:
            numbers = [_mean([c["test"][t]["mape"] for c in own], "mape") for t in shown]
            lines.append(f"| {model} | {' | '.join(numbers)} | {len(own)} |")
    return lines


def _intervals(cells: list[dict[str, Any]]) -> list[str]:
    own = _of(cells, DEFAULT_MODEL, "architecture")
    if not own:
        return []
    lines = [
        "## Intervals of our model", "",
        "90 % intervals from the validation part; share of the test architectures inside, and the "
        "mean log of upper over lower end.", "",
        "| target | inside | log width |", "|---|--:|--:|",
    ]  # fmt: skip
    for target in TARGETS:
        inside = _mean([c["test"][target]["interval_coverage"] for c in own], "within")
        width = [c["test"][target]["interval_log_width"] for c in own]
        known = [value for value in width if value is not None]
        text = f"{sum(known) / len(known):.3f}" if known else "-"
        lines.append(f"| {target} | {inside} | {text} |")
    return [*lines, ""]


def _outside(cells: Path) -> list[dict[str, Any]]:
    """Returns the networks that no generator drew, measured and predicted by the packaged model."""
    path = cells / OUTSIDE_FILE
    if not path.exists():
        return []
    from cdmpp.networks.predict import NetworkPredictor

    predictor = NetworkPredictor.load()
    rows = []
    for row in json.loads(path.read_text()):
        make, side, _ = OUTSIDE[row["network"]]
        graphs = predictor.graphs(
            make(1)[0], [(3, side, side)], [row["batch"]], name=row["network"]
        )
        one = predictor.predict(graphs, [row["device"]])[MODES.index(row["mode"])]
        kept = ("network", "batch", "mode", "device", "time_s", "memory_bytes", "utilisation")
        rows.append(
            {
                **{name: row[name] for name in kept},
                "predicted": one.to_json(),
                "reasons": list(one.reasons),
            }
        )
    return rows


def _outside_lines(outside: list[dict[str, Any]]) -> list[str]:
    if not outside:
        return []
    lines = [
        "## Networks that no generator drew", "",
        "The packaged model; 224 x 224 pixels, measured as the data set was. Brackets: the 90 % "
        "interval. `!`: larger than anything measured, so a guess.", "",
        "| network | batch | mode | time, ms | predicted | error | memory, MB | predicted "
        "| error |",
        "|---|--:|---|--:|--:|--:|--:|--:|--:|",
    ]  # fmt: skip
    for row in outside:
        found = row["predicted"]
        time = _pair(row["time_s"], found, "time", "s", 1e3)
        memory = _pair(row["memory_bytes"], found, "memory", "bytes", 1e-6)
        mark = " !" if row["reasons"] else ""
        lines.append(
            f"| {row['network']}{mark} | {row['batch']} | {row['mode']} | {time} | {memory} |"
        )
    errors = [abs(r["predicted"]["time_s"] / r["time_s"] - 1) for r in outside]
    memory_errors = [abs(r["predicted"]["memory_bytes"] / r["memory_bytes"] - 1) for r in outside]
    lines += [
        "",
        f"Mean error: time {100 * sum(errors) / len(errors):.1f} %, memory "
        f"{100 * sum(memory_errors) / len(memory_errors):.1f} %.",
        "",
    ]
    return lines


def _pair(measured: float, found: dict[str, Any], name: str, unit: str, scale: float) -> str:
    value = found[f"{name}_{unit}"]
    low, high = found[f"{name}_low_{unit}"], found[f"{name}_high_{unit}"]
    ends = "" if low is None else f" [{scale * low:.3g}, {scale * high:.3g}]"
    error = 100 * (value / measured - 1)
    return f"{scale * measured:.3g} | {scale * value:.3g}{ends} | {error:+.1f} %"


def _tuning_lines(tuning: list[dict[str, Any]]) -> list[str]:
    if not tuning:
        return []
    names = list(dict.fromkeys(row["variant"] for row in tuning))
    lines = [
        "## Variants of our model, on the validation parts", "",
        "MAPE; what is packaged was chosen here, not on the test parts.", "",
        f"| variant | {' | '.join(TARGETS[:4])} | seeds |", "|---|--:|--:|--:|--:|--:|",
    ]  # fmt: skip
    for name in names:
        own = [row for row in tuning if row["variant"] == name]
        numbers = [_mean([row["mape"][target] for row in own], "mape") for target in TARGETS[:4]]
        lines.append(f"| {name} | {' | '.join(numbers)} | {len(own)} |")
    return [*lines, ""]


def _of(cells: list[dict[str, Any]], model: str, split: str) -> list[dict[str, Any]]:
    return [cell for cell in cells if cell["model"] == model and cell["split"]["kind"] == split]


def _seeds(cells: list[dict[str, Any]]) -> list[int]:
    return sorted({cell["seed"] for cell in cells})


def _mape(cells: list[dict[str, Any]], target: str) -> float | None:
    values = [cell["test"][target]["mape"] for cell in cells]
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _mean(values: list[Any], metric: str) -> str:
    known = [float(value) for value in values if value is not None]
    if not known:
        return "-"
    mean, half = mean_and_interval(known)
    scale, digits = (1.0, 3) if metric in _PLAIN else (100.0, 2)
    text = f"{scale * mean:.{digits}f}"
    return text if half is None else f"{text} ± {scale * half:.{digits}f}"


def _tidy(cells: list[dict[str, Any]], device: str) -> Iterable[tuple[Any, ...]]:
    for cell in cells:
        for target, numbers in cell["test"].items():
            for metric in METRICS:
                if metric != "n" and numbers[metric] is not None:
                    yield (
                        SUITE, DATASET, cell["split"]["kind"], device, target, cell["model"],
                        cell["seed"], metric, numbers[metric], numbers["n"],
                    )  # fmt: skip
