"""`cdmpp analytic conv fit` and `evaluate`."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from cdmpp.analytic.conv.layers.model import (
    LayerModel,
    LayerOptions,
    fit_layers,
    load_layers_model,
    remove_drifts,
)
from cdmpp.analytic.conv.layers.table import LayerTable, device_rows, read_layers
from cdmpp.analytic.conv.seer.fitting import SeerOptions, fit_seer
from cdmpp.analytic.conv.seer.folder import ConvFolder, read_folder
from cdmpp.analytic.conv.seer.judging import kernel_errors, layer_errors, pick_errors, time_errors
from cdmpp.analytic.conv.seer.model import SeerModel, load_seer
from cdmpp.analytic.conv.seer.splits import SplitKind, family_split, octave_split, original_split
from cdmpp.devices.registry import get_device
from cdmpp.errors import UsageError
from cdmpp.files.atomic import make_folder, write_atomic
from cdmpp.text import aligned, percent_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ERROR_HEADER = ["", "n", "RMSPE", "MAPE", "median APE", "≤ 10 %", "≤ 20 %"]


def run_fit(args: argparse.Namespace) -> int:
    """Runs `cdmpp analytic conv fit`; returns the exit code."""
    summary = _fit_tables(args) if args.tables is not None else _fit_layers(args)
    if args.json:
        print(json.dumps(summary))
    else:
        for name, value in summary.items():
            print(f"{name:12}  {value if not isinstance(value, dict) else json.dumps(value)}")
    return 0


def run_evaluate(args: argparse.Namespace) -> int:
    """Runs `cdmpp analytic conv evaluate`; returns the exit code."""
    model = load_any(args.model)
    if isinstance(model, SeerModel) != (args.tables is not None):
        is_kernels = isinstance(model, SeerModel)
        raise UsageError(
            f"{args.model} is a model of {'kernels' if is_kernels else 'layers'}; "
            f"give --{'tables DIR' if is_kernels else 'layers CSV'}"
        )
    if isinstance(model, SeerModel):
        _evaluate_tables(model, args)
    else:
        _evaluate_layers(model, args)
    return 0


def load_any(path: Path) -> SeerModel | LayerModel:
    """Returns the model of a file (kernels) or a folder (layers)."""
    return load_layers_model(path) if Path(path).is_dir() else load_seer(path)


def _fit_tables(args: argparse.Namespace) -> dict[str, Any]:
    if args.device is None:
        raise UsageError("no device: give --device NAME; list them: cdmpp device list --kind gpu")
    folder = _folder(args)
    model = fit_seer(folder.train, get_device(args.device), SeerOptions(form=args.form))
    model.save(args.out)
    return {
        "model": str(args.out),
        "device": model.device,
        "rows": {name: len(table) for name, table in folder.train.items()},
        "pooled": {
            name: [kind.name.lower() for kind in getattr(variant.times, "pooled", ())]
            for name, variant in model.variants.items()
        },
    }


def _fit_layers(args: argparse.Namespace) -> dict[str, Any]:
    table, _ = _layer_parts(args)
    options = LayerOptions(residual=args.residual, has_drift=not args.no_drift)
    model = fit_layers(table, options, seed=args.seed)
    model.save(args.out)
    return {
        "model": str(args.out),
        "rows": {spec.name: len(rows) for spec, rows in device_rows(table)},
        "drift_ms": {
            label: float(drift.slopes.sum()) for label, drift in sorted(model.drifts.items())
        },
    }


def _folder(args: argparse.Namespace) -> ConvFolder:
    asked = args.split or "sheets"
    if asked == "none":
        raise UsageError("--split none is for --layers; workbooks have the sheets train and test")
    return read_folder(
        args.tables,
        algo_convention=args.algo_convention,
        split=None if asked == "sheets" else cast(SplitKind, asked),
        seed=args.seed,
        is_checked=not args.no_check,
    )


def _layer_parts(args: argparse.Namespace) -> tuple[LayerTable, LayerTable]:
    """Returns (rows to fit, rows to judge) of a layer file."""
    table = read_layers(args.layers)
    asked = args.split or "family"
    if asked == "sheets":
        raise UsageError("--split sheets is for workbooks; a layer file has no sheets")
    train: NDArray[np.bool_]
    if asked == "none":
        return table, table
    if asked == "original":
        train, test = original_split(table.time_ms)
    else:
        divide = octave_split if asked == "octave" else family_split
        train, test = divide(table.shapes, seed=args.seed)
    return table.take(train), table.take(test)


def _evaluate_tables(model: SeerModel, args: argparse.Namespace) -> None:
    folder = _folder(args)
    result: dict[str, Any] = {"kernels": kernel_errors(model, folder.test)}
    if folder.layers is not None:
        result["layers"] = layer_errors(model, folder.layers)
    if folder.picks is not None:
        found = model.predict(folder.picks.shapes)
        result["pick"] = asdict(pick_errors(folder.picks, found.pick))
        has_cudnn = (folder.picks.cudnn_pick >= 0).any()
        result["cudnn_pick"] = (
            asdict(pick_errors(folder.picks, folder.picks.cudnn_pick)) if has_cudnn else None
        )
    if args.json:
        print(json.dumps(result))
    else:
        lines = [_error_line(name, value["time"]) for name, value in result["kernels"].items()]
        if "layers" in result:
            lines.append(_error_line("layers (best algorithm)", result["layers"]["layer"]))
        print(aligned([_ERROR_HEADER, *lines], "lr"))
        for name in ("pick", "cudnn_pick"):
            if result.get(name):
                print(f"{name}: {_pick_text(result[name])}")
    if args.plots is not None:
        parts = [
            (table.time_ms, model.variants[name].predict(table.shapes, table.launch).time_ms)
            for name, table in folder.test.items()
            if name in model.variants
        ]
        measured, predicted = (np.concatenate(column) for column in zip(*parts, strict=True))
        _plots(args.plots, measured, predicted, np.zeros(len(measured), np.int64), [model.device])


def _evaluate_layers(model: LayerModel, args: argparse.Namespace) -> None:
    _, table = _layer_parts(args)
    found = model.predict(table)
    predicted = found.time_ms + model.drift_ms(table)
    without = remove_drifts(table, model.drifts).time_ms
    result: dict[str, Any] = {"by_device": {}}
    for spec, rows in device_rows(table):
        known = rows[table.algorithm[rows] >= 0]
        result["by_device"][spec.name] = {
            **asdict(time_errors(table.time_ms[rows], predicted[rows])),
            "without_drift": asdict(time_errors(without[rows], found.time_ms[rows])),
            "algorithm_accuracy": (
                float(np.mean(found.algorithm[known] == table.algorithm[known]))
                if len(known)
                else None
            ),
        }
    result = {**asdict(time_errors(table.time_ms, predicted)), **result}
    if args.json:
        print(json.dumps(result))
    else:
        lines = [_error_line(label, value) for label, value in result["by_device"].items()]
        print(aligned([_ERROR_HEADER, *lines, _error_line("all", result)], "lr"))
        for label, value in result["by_device"].items():
            print(
                f"{label}: algorithm right {percent_text(value['algorithm_accuracy'], 2)}, RMSPE "
                f"without drift {percent_text(value['without_drift']['rmspe'], 2)}"
            )
    if args.plots is not None:
        labels = [spec.name for spec in table.devices]
        _plots(args.plots, table.time_ms, predicted, table.device, labels)


def _error_line(name: str, errors: dict[str, Any]) -> list[str]:
    keys = ("rmspe", "mape", "median_ape", "within_10pct", "within_20pct")
    return [name, f"{errors['n']:,}", *(percent_text(errors[key], 2) for key in keys)]


def _pick_text(errors: dict[str, Any]) -> str:
    return (
        f"{errors['n']:,} layers, {percent_text(errors['error_rate'], 2)} over 10 % slower "
        f"than the best, regret mean {percent_text(errors['mean_regret'], 2)}, 95th percentile "
        f"{percent_text(errors['p95_regret'], 2)}"
    )


def _plots(
    folder: Path,
    measured_ms: NDArray[np.float64],
    predicted_ms: NDArray[np.float64],
    device: NDArray[np.int64],
    labels: list[str],
) -> None:
    from cdmpp.report.plots import error_distribution, predicted_against_measured

    folder = make_folder(folder, what="plots")
    error = np.abs(predicted_ms / measured_ms - 1.0)
    texts = {
        "predicted.svg": predicted_against_measured(
            measured_ms / 1e3, predicted_ms / 1e3, device, labels
        ),
        "errors.svg": error_distribution(
            {
                label: error[device == index]
                for index, label in enumerate(labels)
                if (device == index).any()
            }
        ),
        "histogram.svg": error_histogram(predicted_ms / measured_ms - 1.0),
    }
    for name, text in texts.items():
        write_atomic(folder / name, _writer(text))


def error_histogram(relative: NDArray[np.float64]) -> str:
    """Returns an SVG histogram of signed errors: steps of 5 %, overflow buckets at ± 50 %."""
    from cdmpp.report.plots import COLOURS, new_figure, svg_text

    figure, axes = new_figure(5.6, 3.6)
    edges = np.arange(-0.5, 0.5001, 0.05)
    counts, _ = np.histogram(np.clip(relative, -0.499, 0.499), edges)
    axes.bar(100 * (edges[:-1] + 0.025), 100 * counts / len(relative), width=4.6, color=COLOURS[0])
    axes.set_xlabel("error (%); the outer bars hold everything beyond")
    axes.set_ylabel("share of rows (%)")
    return svg_text(figure)


def _writer(text: str) -> Any:
    def write(path: Path) -> None:
        path.write_text(text, encoding="utf-8")

    return write
