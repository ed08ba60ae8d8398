"""Network models evaluated on measured networks."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.config import load_config
from cdmpp.errors import DataError
from cdmpp.files.atomic import make_folder, write_json
from cdmpp.metrics import absolute_percentage_error, mean_and_interval
from cdmpp.models.registry import NETWORK_CLASSES
from cdmpp.networks.dataset.samples import TARGETS, NetworkSamples, assemble
from cdmpp.networks.dataset.split import NetworkSplit, SplitKind, split_networks
from cdmpp.networks.dataset.store import NetworkData, read_dataset
from cdmpp.networks.evaluate import judge
from cdmpp.networks.graph.execution import MODES
from cdmpp.networks.intervals import calibrate_networks
from cdmpp.networks.models.base import DEFAULT_MODEL, new_model
from cdmpp.networks.models.options import NetworkOptions
from cdmpp.networks.models.seernet import SeerNetModel
from cdmpp.networks.predict import NetworkPredictor
from cdmpp.networks.run import data_hash
from cdmpp.text import markdown_table
from lab.experiments.example_networks import mobilenet_v2, resnet18, squeezenet
from lab.pages import write_page
from lab.paths import RESULTS, ROOT
from lab.stamp import stamp
from lab.suites.leaderboard.other_tasks import ratio_interval

SEEDS = (0, 1, 2)
#: File in the dataset's folder, measured on the dataset's machine.
OUTSIDE_FILE = "outside.json"
_TITLES = {
    "infer_time_s": "Time of an inference", "train_time_s": "Time of a training step",
    "infer_memory_bytes": "Peak memory of inference",
    "train_memory_bytes": "Peak memory of a training step",
}  # fmt: skip
_GOALS = {"time": 0.10, "memory": 0.05}
_SHOWN = {
    "mape": "MAPE", "median_ape": "median", "mean_log_error": "mean log error",
    "spearman": "Spearman",
}  # fmt: skip
#: Metrics that are not fractions of the measurement.
_PLAIN = ("mean_log_error", "spearman")
#: Networks outside the generator: name -> (constructor, image side, batches).
OUTSIDE: dict[str, tuple[Callable[[int], Any], int, tuple[int, ...]]] = {
    "resnet-18": (resnet18, 224, (1, 4)),
    "mobilenet-v2": (mobilenet_v2, 224, (1, 4)),
    "squeezenet": (squeezenet, 224, (1, 4)),
}
_TIMEOUT_S = 300.0


#: Also fitted on random splits, which show the benefit of memorising architectures.
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
    """Fits missing cells, and refits cells of other data or options."""
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
    """Returns one model's errors on the test part and on the validation part."""
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
    networks = list(fitted.networks.values())
    if isinstance(fitted, SeerNetModel):  # one equal network per target
        networks = networks[:1]
    count = sum(one.numel() for network in networks for one in network.parameters())
    return {
        "model": model,
        "seed": seed,
        "split": parts.to_json(),
        "fit_s": fit_s,
        "parameters": count or None,
        "validation": judge(validation, held),
        "test": judge(test, found, intervals.bounds(found)),
        "architecture_errors": architecture_errors(test, found),
    }


def architecture_errors(
    samples: NetworkSamples, predicted: NDArray[np.float64]
) -> dict[str, dict[str, list[float]]]:
    """Returns target -> architecture -> [samples, sum of absolute percentage errors].

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
    """Measures the networks of `OUTSIDE` as `cdmpp networks measure` does, each part in its own
    process. Times are corrected to the usual speed in the dataset's campaign.

    Args:
        note: `note` of the dataset's manifest.
        device: label of the dataset.
        threads: threads of torch.
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
    """Measures (on the dataset's machine) and fits what is missing; writes the page.

    Args:
        random_models: models that are also fitted on random splits.
        settings: `name=value` of `NetworkOptions`. SeerNet as published (width 256, 500 epochs)
            takes hours per training on one core; the default is smaller.
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
    write_report(data, cells, outside)


def write_report(
    data: NetworkData,
    cells: Path,
    outside_file: Path,
    *,
    folder: Path = RESULTS,
) -> None:
    """Writes the page.

    Raises:
        DataError: there is no cell of this dataset.
    """
    found = read_cells(cells, data_hash(data))
    outside = _outside(outside_file)
    values = {
        "measured_on": data.manifest.get("note", {}).get("machine"), "outside": outside,
        "options": found[0]["key"]["options"],
    }  # fmt: skip
    origin = stamp(
        "python -m lab run networks", schemas=["networks"], data={"networks-cpu": data_hash(data)}
    )
    write_page("networks", markdown(found, data, outside), values, origin, folder=folder)


def read_cells(folder: Path, wanted: str) -> list[dict[str, Any]]:
    """Returns the fitted cells of the dataset with hash `wanted`, in the order of the tables.

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


def markdown(cells: list[dict[str, Any]], data: NetworkData, outside: list[dict[str, Any]]) -> str:
    """Returns the page."""
    note = data.manifest.get("note", {})
    lines = ["# Whole networks: time, memory and utilisation from the operator graph", ""]
    lines += [*_verdict(cells), ""]
    for target in TARGETS[:4]:
        lines += _target(cells, target, note)
    lines += ["## The random split leaks", "", *_random(cells), ""]
    return "\n".join([*lines, *_intervals(cells), *_outside_lines(outside)])


def _target(cells: list[dict[str, Any]], target: str, note: dict[str, Any]) -> list[str]:
    rows = []
    for model in NETWORK_CLASSES:
        if own := _of(cells, model, "architecture"):
            name = f"**{model}**" if model == DEFAULT_MODEL else model
            errors = [cell["test"][target] for cell in own]
            rows.append(
                [name, *(_mean([one[metric] for one in errors], metric) for metric in _SHOWN)]
            )
    repeats = note.get("repeatability") or {}
    if f"{target}_half_mean" in repeats:
        both = (repeats[f"{target}_half_{name}"] for name in ("mean", "median"))
        rows.append(
            ["noise between two processes", *(f"{100 * one:.2f}" for one in both), "-", "-"]
        )
    return [f"## {_TITLES[target]}", "", markdown_table(["model", *_SHOWN.values()], rows), ""]


def _verdict(cells: list[dict[str, Any]]) -> list[str]:
    """Returns one line per time and memory: our model beside the goal and the best baseline."""
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
    """Returns the 95 % interval of a MAPE, or of its ratio to `others`; None for one seed."""
    ours = [{"": cell["architecture_errors"][target]} for cell in own]
    theirs = (
        [{"": {name: (n, n) for name, (n, _) in seed[""].items()}} for seed in ours]
        if others is None
        else [{"": cell["architecture_errors"][target]} for cell in others]
    )
    return ratio_interval(ours, theirs, are_devices_drawn=False)


def _ends(ends: tuple[float, float] | None, scale: float) -> str:
    return "" if ends is None else f" [{scale * ends[0]:.2f}, {scale * ends[1]:.2f}]"


def _random(cells: list[dict[str, Any]]) -> list[str]:
    rows = []
    for model in NETWORK_CLASSES:
        if own := _of(cells, model, "random"):
            rows.append([model, *(_mean([c["test"][t]["mape"] for c in own]) for t in TARGETS)])
    return [markdown_table(["model", *TARGETS], rows)]


def _intervals(cells: list[dict[str, Any]]) -> list[str]:
    own = _of(cells, DEFAULT_MODEL, "architecture")
    rows = [
        [target, _mean([c["test"][target]["interval_coverage"] for c in own])] for target in TARGETS
    ]
    return ["## Intervals of our model", "", markdown_table(["target", "inside"], rows), ""]


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
        rows.append({**{name: row[name] for name in kept}, "predicted": one.to_json()})
    return rows


def _outside_lines(outside: list[dict[str, Any]]) -> list[str]:
    if not outside:
        return []
    errors = [abs(r["predicted"]["time_s"] / r["time_s"] - 1) for r in outside]
    memory_errors = [abs(r["predicted"]["memory_bytes"] / r["memory_bytes"] - 1) for r in outside]
    return [
        "## Networks that no generator drew", "",
        f"Mean error: time {100 * sum(errors) / len(errors):.1f} %, memory "
        f"{100 * sum(memory_errors) / len(memory_errors):.1f} %.",
        "",
    ]  # fmt: skip


def _of(cells: list[dict[str, Any]], model: str, split: str) -> list[dict[str, Any]]:
    return [cell for cell in cells if cell["model"] == model and cell["split"]["kind"] == split]


def _mape(cells: list[dict[str, Any]], target: str) -> float | None:
    values = [cell["test"][target]["mape"] for cell in cells]
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _mean(values: list[Any], metric: str = "mape") -> str:
    known = [float(value) for value in values if value is not None]
    if not known:
        return "-"
    mean, half = mean_and_interval(known)
    scale, digits = (1.0, 3) if metric in _PLAIN else (100.0, 2)
    text = f"{scale * mean:.{digits}f}"
    return text if half is None else f"{text} ± {scale * half:.{digits}f}"
