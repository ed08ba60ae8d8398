"""Models of whole networks on measured ones."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from cdmpp.config import load_config
from cdmpp.errors import DataError
from cdmpp.files.atomic import make_folder, write_json
from cdmpp.metrics import absolute_percentage_error, mean_and_interval
from cdmpp.models.registry import NETWORK_CLASSES
from cdmpp.networks.dataset.samples import TARGETS, NetworkSamples, assemble
from cdmpp.networks.dataset.split import NetworkSplit, SplitKind, split_networks
from cdmpp.networks.dataset.store import NetworkData, read_dataset
from cdmpp.networks.evaluate import METRICS, judge, noise_floor
from cdmpp.networks.graph.execution import MODES
from cdmpp.networks.intervals import calibrate_networks
from cdmpp.networks.models.base import DEFAULT_MODEL, new_model
from cdmpp.networks.models.options import NetworkOptions
from cdmpp.networks.models.residual import ResidualModel
from cdmpp.networks.predict import NetworkPredictor
from cdmpp.networks.run import data_hash
from lab.experiments.example_networks import mobilenet_v2, resnet18, squeezenet
from lab.pages import write_page
from lab.paths import RESULTS, ROOT
from lab.stamp import stamp
from lab.suites.leaderboard.other_tasks import ratio_interval

SEEDS = (0, 1, 2)
#: In the folder of the data set: measured on its machine.
OUTSIDE_FILE = "outside.json"
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
#: Networks that no generator drew, with the side of their image and batches.
OUTSIDE: dict[str, tuple[Callable[[int], Any], int, tuple[int, ...]]] = {
    "resnet-18": (resnet18, 224, (1, 4)),
    "mobilenet-v2": (mobilenet_v2, 224, (1, 4)),
    "squeezenet": (squeezenet, 224, (1, 4)),
}
_TIMEOUT_S = 300.0


#: Fitted on random splits too, which say what memorising architectures is worth.
RANDOM_MODELS = ("residual", "trees", "mlp", "operator-linear", "roofline", "constant")
QUICK_SEERNET = tuple(
    f"{model}.{setting}"
    for model in ("seernet", "seernet_multi")
    for setting in ("hidden=128", "fit.epochs=40", "fit.batch=16")
)


def fit_cells(
    data: NetworkData,
    out: Path,
    *,
    models: Sequence[str],
    splits: Sequence[SplitKind],
    seeds: Sequence[int],
    options: NetworkOptions,
) -> None:
    """Fits what is missing; a cell of other data or other options is fitted anew."""
    samples = assemble(data)
    for seed in seeds:
        for kind in splits:
            parts = split_networks(samples.architecture, samples.sample_names, kind=kind, seed=seed)
            for model in models:
                path = out / f"{kind}-{model}-{seed}.json"
                key = _key(data, options)
                if _is_done(path, key):
                    continue
                cell = fit_cell(samples, parts, model, options, seed=seed)
                write_json(path, {"key": key, **cell})
                found = cell["test"]["infer_time_s"]["mape"]
                print(
                    f"{kind} {model} seed {seed}: {cell['fit_s']:.0f} s, inference time MAPE "
                    f"{100 * found:.2f} %",
                    file=sys.stderr,
                )


def fit_cell(
    samples: NetworkSamples,
    parts: NetworkSplit,
    model: str,
    options: NetworkOptions,
    *,
    seed: int,
) -> dict[str, Any]:
    """Returns the errors of one model on the test part, and on the validation part."""
    train, validation, test = (
        samples.take(rows) for rows in (parts.train, parts.validation, parts.test)
    )
    fitted = new_model(model, options)
    start = time.perf_counter()
    fitted.fit(train, validation, seed=seed)
    fit_s = time.perf_counter() - start
    held = fitted.predict(validation)
    intervals = calibrate_networks(validation, held)
    found = fitted.predict(test)
    count = getattr(fitted, "parameter_count", None)
    return {
        "model": model,
        "seed": seed,
        "split": parts.to_json(),
        "fit_s": fit_s,
        "parameters": count() if count else None,
        "tree_shares": (
            dict(zip(TARGETS, fitted.found.tree_share.tolist(), strict=True))
            if isinstance(fitted, ResidualModel)
            else None
        ),
        "validation": judge(validation, held),
        "test": judge(test, found, intervals.bounds(found)),
        "architecture_errors": architecture_errors(test, found),
    }


def architecture_errors(
    samples: NetworkSamples, predicted: NDArray[np.float64]
) -> dict[str, dict[str, list[float]]]:
    """Returns target -> architecture -> its samples and the sum of their absolute percentage
    errors, of which intervals over architectures are made.

    Args:
        predicted: float64 [N, 6].
    """
    found: dict[str, dict[str, list[float]]] = {name: {} for name in TARGETS}
    for column, name in enumerate(TARGETS):
        error = absolute_percentage_error(samples.targets[:, column], predicted[:, column])
        for row in np.flatnonzero(np.isfinite(error)):
            entry = found[name].setdefault(samples.architecture[row], [0.0, 0.0])
            entry[0] += 1.0
            entry[1] += float(error[row])
    return found


def measure_outside(path: Path, note: dict[str, Any], *, device: str, threads: int) -> None:
    """Measures the networks of `OUTSIDE` as `cdmpp networks measure` does, every part in a process
    of its own; times are at the usual speed of the data set's campaign.

    Args:
        note: of the data set's manifest.
        device: its label.
        threads: of torch.
    """
    from cdmpp.config import from_dict
    from cdmpp.networks.campaign.labels import NetworkTiming
    from cdmpp.networks.campaign.machine_speed import SpeedCorrection
    from cdmpp.networks.campaign.sample import parts_of, prepare_process, run_part
    from cdmpp.networks.campaign.sample_step import SampleRequest
    from cdmpp.networks.campaign.tables import at_usual_speed
    from cdmpp.networks.campaign.worker import in_fork

    timing = from_dict(NetworkTiming, note["config"]["timing"])
    correction = note.get("speed_correction") and SpeedCorrection.from_json(
        note["speed_correction"]
    )
    rows: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
    done = {(row["network"], row["batch"], row["mode"]) for row in rows}
    missing = [
        (name, make, batch, mode)
        for name, (make, _, batches) in OUTSIDE.items()
        for batch in batches
        for mode in MODES
        if (name, batch, mode) not in done
    ]
    if missing:
        prepare_process()
    for name, make, batch, mode in missing:
        request = SampleRequest(
            spec=None, batch=batch, mode=mode, kind="cpu", threads=threads, timing=timing,
            make=partial(make, batch),
        )  # fmt: skip
        row: dict[str, Any] = {"network": name, "batch": batch, "mode": mode, "device": device}
        for part in parts_of("cpu"):
            answer = in_fork(partial(run_part, request, part), timeout_s=_TIMEOUT_S)
            if answer["outcome"] != "ok":
                raise DataError(
                    f"{name} at batch {batch}: {answer['outcome']} ({answer['note']}); run it "
                    "again on a machine with more memory or time"
                )
            row |= answer
        rows.append(dict(at_usual_speed(row, correction)) if correction else row)
        write_json(path, rows)
        print(f"{name} batch {batch} {mode}: {row['time_s']:.4f} s", file=sys.stderr)


def speed(count: int = 40) -> dict[str, Any]:
    """Returns median milliseconds to make the graph of a network and to predict it."""
    from cdmpp.networks.architectures.generated_graph import generated_graph  # noqa: F401  (loads torch.fx)
    from cdmpp.networks.predict import NetworkPredictor

    predictor = NetworkPredictor.load()
    makers: list[tuple[str, nn.Module]] = [
        (name, make(1)[0]) for name, (make, _, _) in OUTSIDE.items()
    ]
    times: dict[str, list[float]] = {"fx": [], "export": [], "predict": []}
    for method in ("fx", "export"):
        for _, module in makers:
            predictor.graphs(module, [(3, 224, 224)], [1], name="warm-up", method=method)
    for number in range(count):
        name, module = makers[number % len(makers)]
        graphs = predictor.graphs(module, [(3, 224, 224)], [1], name=name)
        times["fx"].append(predictor.extraction_s)
        predictor.predict(graphs)
        times["predict"].append(predictor.prediction_s)
        if number < 2 * len(makers):
            predictor.graphs(module, [(3, 224, 224)], [1], name=name, method="export")
            times["export"].append(predictor.extraction_s)
    return {name: 1e3 * float(np.median(values)) for name, values in times.items()} | {
        "networks": [name for name, _ in makers],
        "runs": count,
    }


def _key(data: NetworkData, options: NetworkOptions) -> dict[str, Any]:
    from cdmpp.config import to_dict

    return {"data": data_hash(data), "options": to_dict(options)}


def _is_done(path: Path, key: dict[str, Any]) -> bool:
    if not path.exists():
        return False
    return bool(json.loads(path.read_text())["key"] == json.loads(json.dumps(key)))


def experiment(
    dataset: Path = ROOT / "data" / "networks-cpu",
    cells: Path = ROOT / "runs" / "network-models",
    seeds: tuple[int, ...] = SEEDS,
    random_models: tuple[str, ...] = RANDOM_MODELS,
    settings: tuple[str, ...] = QUICK_SEERNET,
) -> None:
    """Measures (on the data set's machine) and fits what is missing, and writes the page.

    Args:
        random_models: those that are fitted on random splits too.
        settings: `name=value` of `NetworkOptions`. SeerNet as published (width 256, 500 epochs)
            takes hours a training on one core; the default is less.
    """
    options = load_config(NetworkOptions, overrides=settings)
    make_folder(cells, what="fitted cells")
    data = read_dataset(dataset)
    label = next(label for label in data.labels if label.outcome == "ok")
    outside = dataset / OUTSIDE_FILE
    measure_outside(outside, data.manifest["note"], device=label.device, threads=label.threads or 1)
    fitted: dict[SplitKind, tuple[str, ...]] = {
        "architecture": tuple(NETWORK_CLASSES), "random": random_models
    }  # fmt: skip
    for kind, models in fitted.items():
        fit_cells(data, cells, models=models, splits=[kind], seeds=seeds, options=options)
    write_report(data, cells, outside, speed=speed())


def write_report(
    data: NetworkData,
    cells: Path,
    outside_file: Path,
    *,
    speed: dict[str, Any],
    folder: Path = RESULTS,
) -> None:
    """Writes the page.

    Raises:
        DataError: no cell of this data set is there.
    """
    found = read_cells(cells, data_hash(data))
    outside = _outside(outside_file)
    device = ",".join(sorted({label.device for label in data.labels}))
    write_page(
        "networks", markdown(found, data, outside, speed),
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
        stamp("python -m lab run networks", schemas=["networks"],
              data={"networks-cpu": data_hash(data)}),
        rows=_tidy(found, device), folder=folder,
    )  # fmt: skip


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
    speed: dict[str, Any],
) -> str:
    """Returns the page."""
    note = data.manifest.get("note", {})
    floor = noise_floor(assemble(data))
    lines = [
        "# Whole networks: time, memory and utilisation from the operator graph",
        "",
        f"`python -m lab run networks`. Data: {data.manifest['graphs']} graphs of "
        f"{data.manifest['architectures']} architectures, {data.manifest['labels']} labels, on "
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
    if correction and timed:
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
    """Returns, for times and memories, ours beside the goal and the best baseline."""
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
            f"{said}; {ours / others[best]:.2f}{_ends(ratio_ends, 1)} of the best baseline "
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


def _outside(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
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
