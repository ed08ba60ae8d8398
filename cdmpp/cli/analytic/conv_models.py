"""`cdmpp analytic conv fit` and `evaluate`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.analytic.conv.layers.evaluate import evaluate_layers, split_layers
from cdmpp.analytic.conv.layers.model import MODEL_FILE, LayerOptions
from cdmpp.analytic.conv.layers.table import device_rows, read_layers
from cdmpp.analytic.conv.layers.validation import fit_validated_layers
from cdmpp.analytic.conv.other_operators import fit_operators, read_operators
from cdmpp.analytic.conv.predict import load_model
from cdmpp.analytic.conv.seer.evaluate import evaluate_folder, kernel_times
from cdmpp.analytic.conv.seer.fitting import SeerOptions
from cdmpp.analytic.conv.seer.folder import ConvFolder, read_folder
from cdmpp.analytic.conv.seer.model import SeerModel
from cdmpp.analytic.conv.seer.validation import fit_validated_seer
from cdmpp.arrays import FloatArray, IntArray
from cdmpp.cli.analytic.conv import add_model_option
from cdmpp.cli.shared.option_table import add_table
from cdmpp.cli.shared.options import add_output_options
from cdmpp.devices.registry import get_device
from cdmpp.errors import UsageError
from cdmpp.files.atomic import check_replaceable_json, make_folder, write_text
from cdmpp.report.plots import (
    COLOURS,
    check_plot_files,
    error_distribution,
    new_figure,
    predicted_against_measured,
    svg_text,
)
from cdmpp.text import aligned, percent_text

_PLOTS = ("predicted.svg", "errors.svg", "histogram.svg")
_ERROR_HEADER = ["", "n", "RMSPE", "MAPE", "median APE", "≤ 10 %", "≤ 20 %"]


def add_fit_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `analytic conv fit`."""
    _add_data(
        parser,
        """
        --operators CSV...  times of other operators, as `collect --operator` writes them;
            repeatable
    """,
    )
    add_table(parser, """
        --form original|smooth = original   time formulas of kernels: three regimes, or one smooth
            form (default: original)
        --residual direct|ratio|none = direct  what is fitted on top of the closed-form times of
            layers (default: direct)
        --no-drift                          do not correct layer times for drift
        --out PATH: Path required           where to write it
    """)  # fmt: skip


def add_evaluate_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `analytic conv evaluate`."""
    add_model_option(parser)
    _add_data(parser)
    add_table(parser, """
        --plots DIR: Path  write SVG plots there
    """)  # fmt: skip


def _add_data(parser: argparse.ArgumentParser, others: str = "") -> None:
    source = parser.add_mutually_exclusive_group(required=True)
    add_table(source, f"""
        --tables DIR: Path  folder of workbooks, one per kernel variant
        --layers CSV: Path  layers with their fastest time, without counters{others}
    """)  # fmt: skip
    add_table(parser, """
        --algo-convention cudnn|readme      meaning of the algorithm numbers (default: as stated in
            the files)
        --no-check                          accept rows that contradict the convention
        --split sheets|original|family|octave|none  how rows are split into fit and test:
            sheets of the workbooks (default of workbooks), original (the split of the paper),
            family (held-out sizes; default of layers), octave (held-out octaves), none (all rows
            in both)
        --seed N: int = 0                   of the split
        --device NAME                       label of the GPU of the workbooks or operators
    """)  # fmt: skip
    add_output_options(parser)


def run_fit(args: argparse.Namespace) -> int:
    """Runs `cdmpp analytic conv fit`; returns the exit code."""
    summary: dict[str, Any] = {"model": str(args.out)}
    if args.layers is None and args.device is None:
        raise UsageError("no device: give --device NAME; list them: cdmpp device list --kind gpu")
    is_folder = args.layers is not None
    check_replaceable_json(
        args.out / MODEL_FILE if is_folder else args.out, "cdmpp-conv-", what="a fitted model",
        option="--out",
    )  # fmt: skip
    if args.operators:
        tables = read_operators([Path(path) for path in args.operators])
        others = fit_operators(tables, get_device(args.device).name, seed=args.seed)
        others.save(args.out)
        summary["device"] = others.device
        summary["rows"] = {name: len(table.time_ms) for name, table in tables.items()}
        summary["rmspe"] = {name: fit.rmspe for name, fit in others.fits.items()}
        summary["log_errors"] = {name: found.to_json() for name, found in others.errors.items()}
    elif args.tables is not None:
        folder = _folder(args.tables, args.split, args.algo_convention, args.seed, args.no_check)
        train = folder.train
        options = SeerOptions(form=args.form)
        seer = fit_validated_seer(train, get_device(args.device), options, seed=args.seed)
        seer.save(args.out)
        summary["device"] = seer.device
        summary["rows"] = {name: len(table) for name, table in train.items()}
        summary["pooled"] = {
            name: [kind.name.lower() for kind in getattr(variant.times, "pooled", ())]
            for name, variant in seer.variants.items()
        }
    else:
        table, _ = split_layers(read_layers(args.layers), _split(args.split), seed=args.seed)
        layer_options = LayerOptions(residual=args.residual, has_drift=not args.no_drift)
        model = fit_validated_layers(table, layer_options, seed=args.seed)
        model.save(args.out)
        summary["rows"] = {spec.name: len(rows) for spec, rows in device_rows(table)}
        summary["drift_ms"] = {
            label: float(drift.slopes.sum()) for label, drift in sorted(model.drifts.items())
        }
    if args.json:
        print(json.dumps(summary))
    else:
        for name, value in summary.items():
            print(f"{name:12}  {value if not isinstance(value, dict) else json.dumps(value)}")
    return 0


def run_evaluate(args: argparse.Namespace) -> int:
    """Runs `cdmpp analytic conv evaluate`; returns the exit code."""
    check_plot_files(args.plots, _PLOTS)
    model = load_model(args.model)
    if isinstance(model, SeerModel) != (args.tables is not None):
        is_kernels = isinstance(model, SeerModel)
        raise UsageError(
            f"{args.model} is a model of {'kernels' if is_kernels else 'layers'}; "
            f"give --{'tables DIR' if is_kernels else 'layers CSV'}"
        )
    if isinstance(model, SeerModel):
        folder = _folder(args.tables, args.split, args.algo_convention, args.seed, args.no_check)
        result = evaluate_folder(model, folder)
    else:
        _, table = split_layers(read_layers(args.layers), _split(args.split), seed=args.seed)
        result, predicted_ms = evaluate_layers(model, table)
    if args.json:
        print(json.dumps(result))
    else:
        print(_kernels_text(result) if isinstance(model, SeerModel) else _layers_text(result))
    if args.plots is not None and isinstance(model, SeerModel):
        measured, predicted = kernel_times(model, folder.test)
        _plots(args.plots, measured, predicted, np.zeros(len(measured), np.int64), [model.device])
    elif args.plots is not None:
        labels = [spec.name for spec in table.devices]
        _plots(args.plots, table.time_ms, predicted_ms, table.device, labels)
    return 0


def _folder(
    place: Path, split: str | None, convention: Any, seed: int, is_unchecked: bool
) -> ConvFolder:
    if split == "none":
        raise UsageError("--split none is for --layers; workbooks have the sheets train and test")
    kind: Any = None if split == "sheets" else split
    return read_folder(
        place, algo_convention=convention, split=kind, seed=seed, is_checked=not is_unchecked
    )


def _split(asked: str | None) -> Any:
    if asked == "sheets":
        raise UsageError("--split sheets is for workbooks; a layer file has no sheets")
    return asked or "family"


def _kernels_text(result: dict[str, Any]) -> str:
    lines = [_error_line(name, value["time"]) for name, value in result["kernels"].items()]
    if "layers" in result:
        lines.append(_error_line("layers (best algorithm)", result["layers"]["layer"]))
    texts = [aligned([_ERROR_HEADER, *lines], "lr")]
    picks = [name for name in ("pick", "cudnn_pick") if result.get(name)]
    return "\n".join([*texts, *(f"{name}: {_pick_text(result[name])}" for name in picks)])


def _layers_text(result: dict[str, Any]) -> str:
    lines = [_error_line(label, value) for label, value in result["by_device"].items()]
    texts = [aligned([_ERROR_HEADER, *lines, _error_line("all", result)], "lr")]
    for label, value in result["by_device"].items():
        texts.append(
            f"{label}: correct algorithm {percent_text(value['algorithm_accuracy'], 2)}, RMSPE "
            f"without drift {percent_text(value['without_drift']['rmspe'], 2)}, in their "
            f"interval {percent_text(value['coverage'])}"
        )
    return "\n".join(texts)


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
    measured_ms: FloatArray,
    predicted_ms: FloatArray,
    device: IntArray,
    labels: list[str],
) -> None:
    folder = make_folder(folder, what="plots")
    error = np.abs(predicted_ms / measured_ms - 1.0)
    texts = (
        predicted_against_measured(measured_ms / 1e3, predicted_ms / 1e3, device, labels),
        error_distribution(
            {
                label: error[device == index]
                for index, label in enumerate(labels)
                if (device == index).any()
            }
        ),
        error_histogram(predicted_ms / measured_ms - 1.0),
    )
    for name, text in zip(_PLOTS, texts, strict=True):
        write_text(folder / name, text)


def error_histogram(relative: FloatArray) -> str:
    """Returns an SVG histogram of signed relative errors: bins of 5 %, clipped at ± 50 %."""
    figure, axes = new_figure()
    edges = np.arange(-0.5, 0.5001, 0.05)
    counts, _ = np.histogram(np.clip(relative, -0.499, 0.499), edges)
    axes.bar(100 * (edges[:-1] + 0.025), 100 * counts / len(relative), width=4.6, color=COLOURS[0])
    axes.set_xlabel("error (%); the outer bars hold everything beyond")
    axes.set_ylabel("share of rows (%)")
    return svg_text(figure)
