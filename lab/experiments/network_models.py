"""Models of whole networks on measured ones: `python -m lab.experiments.network_models STEP`.

Steps: `outside` measures networks that no generator drew (on the machine of the data set); `fit`
fits every model on every split and seed, one file a cell, so that it continues where it was
stopped; `tune` judges variants of our model on validation parts alone; `report` writes networks.md,
.csv and .json. Without a step: fit, then report.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from cdmpp.errors import CdmppError, DataError
from cdmpp.files.atomic import make_folder, write_json
from cdmpp.metrics import absolute_percentage_error
from cdmpp.models.registry import NETWORK_CLASSES
from cdmpp.networks.dataset.samples import TARGETS, NetworkSamples, assemble
from cdmpp.networks.dataset.split import SPLITS, NetworkSplit, SplitKind, split_networks
from cdmpp.networks.dataset.store import NetworkData, read_dataset
from cdmpp.networks.evaluate import judge
from cdmpp.networks.graph.mode import MODES
from cdmpp.networks.intervals import calibrate_networks
from cdmpp.networks.models.base import new_model
from cdmpp.networks.models.options import NetworkOptions
from cdmpp.networks.run import data_hash
from lab.experiments.example_networks import mobilenet_v2, resnet18, squeezenet
from tests.paths import ROOT

DATASET = ROOT / "data" / "networks-cpu"
CELLS = ROOT / "runs" / "network-models"
SEEDS = (0, 1, 2)
OUTSIDE_FILE = "outside.json"
#: Networks that no generator drew, with the side of their image and batches.
OUTSIDE: dict[str, tuple[Callable[[int], Any], int, tuple[int, ...]]] = {
    "resnet-18": (resnet18, 224, (1, 4)),
    "mobilenet-v2": (mobilenet_v2, 224, (1, 4)),
    "squeezenet": (squeezenet, 224, (1, 4)),
}
_TIMEOUT_S = 300.0


def fit_cells(
    data: NetworkData,
    out: Path,
    *,
    models: list[str],
    splits: list[SplitKind],
    seeds: list[int],
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
    shares = getattr(fitted, "tree_shares", None)
    return {
        "model": model,
        "seed": seed,
        "split": parts.to_json(),
        "fit_s": fit_s,
        "parameters": count() if count else None,
        "tree_shares": shares() if shares else None,
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


def tune(data: NetworkData, out: Path, seeds: list[int], options: NetworkOptions) -> None:
    """Judges variants of our model on the validation parts; the test parts are not looked at."""
    samples = assemble(data)
    path = out / "tune.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
    done = {(row["variant"], row["seed"]) for row in rows}
    for seed in seeds:
        parts = split_networks(
            samples.architecture, samples.sample_names, kind="architecture", seed=seed
        )
        train, validation = samples.take(parts.train), samples.take(parts.validation)
        for name, variant in variants(options):
            if (name, seed) in done:
                continue
            model = new_model("residual", variant)
            model.fit(train, validation, seed=seed)
            found = judge(validation, model.predict(validation))
            rows.append(
                {
                    "variant": name,
                    "seed": seed,
                    "mape": {target: numbers["mape"] for target, numbers in found.items()},
                }
            )
            write_json(path, rows)
            said = ", ".join(
                f"{100 * value:.2f}" for value in rows[-1]["mape"].values() if value is not None
            )
            print(f"{name} seed {seed}: {said} %", file=sys.stderr)


def variants(options: NetworkOptions) -> Iterator[tuple[str, NetworkOptions]]:
    """Yields name and options of each variant of our model."""
    own = replace(options.residual, members=1, has_trees=False)
    changes: dict[str, Any] = {
        "one member, no trees": own,
        "no message round": replace(own, rounds=0),
        "two message rounds": replace(own, rounds=2),
        "no context": replace(own, has_context=False),
        "hidden 32": replace(own, hidden=32),
        "hidden 128": replace(own, hidden=128),
        "dropout 0.1": replace(own, dropout=0.1),
        "weight decay 0.01": replace(own, fit=replace(own.fit, weight_decay=0.01)),
        "trees as well": replace(own, has_trees=True),
        "as it is": options.residual,
    }
    for name, residual in changes.items():
        yield name, replace(options, residual=residual)


def measure_outside(
    out: Path, note: dict[str, Any], *, page: Path, device: str, threads: int
) -> None:
    """Measures the networks of `OUTSIDE` as `cdmpp networks measure` does, every part in a process
    of its own; times are at the usual speed of the data set's campaign. What the page has already
    stays: it was measured on the data set's machine.

    Args:
        note: of the data set's manifest.
        page: networks.json.
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
    path = out / OUTSIDE_FILE
    rows: list[dict[str, Any]] = []
    if path.exists():
        rows = json.loads(path.read_text())
    elif page.exists():
        rows = json.loads(page.read_text())["outside"]
        write_json(path, rows)
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


def main(argv: list[str] | None = None) -> int:
    """Runs the step that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "step", nargs="?", choices=("outside", "fit", "tune", "report", "all"), default="all"
    )
    parser.add_argument("--dataset", type=Path, default=DATASET)
    parser.add_argument("--cells", type=Path, default=CELLS, help="folder of the fitted cells")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results")
    parser.add_argument("--models", default=",".join(NETWORK_CLASSES))
    parser.add_argument("--splits", default=",".join(SPLITS))
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)))
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    args = parser.parse_args(argv)
    from cdmpp.config import load_config

    options = load_config(NetworkOptions, overrides=args.set)
    seeds = [int(seed) for seed in args.seeds.split(",")]
    cells = make_folder(args.cells, what="fitted cells")
    try:
        data = read_dataset(args.dataset)
        if args.step == "outside":
            label = next(label for label in data.labels if label.outcome == "ok")
            note = data.manifest["note"]
            measure_outside(
                cells, note, page=args.out / "networks.json", device=label.device,
                threads=label.threads or 1,
            )  # fmt: skip
        if args.step in ("fit", "all"):
            fit_cells(
                data,
                cells,
                models=args.models.split(","),
                splits=[kind for kind in SPLITS if kind in args.splits.split(",")],
                seeds=seeds,
                options=options,
            )
        if args.step == "tune":
            tune(data, cells, seeds, options)
        if args.step in ("report", "all"):
            from lab.experiments.network_models_page import write_report

            write_report(data, cells, args.out, speed=speed())
    except CdmppError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
