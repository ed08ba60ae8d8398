"""Tables of measured networks: traces architectures, trains and evaluates step-time models."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cdmpp.cli.shared.progress import progress
from cdmpp.config import dump_text, load_config
from cdmpp.devices.registry import get_device
from cdmpp.files.atomic import make_folder, write_columns, write_json
from cdmpp.files.run_folder import check_run_folder
from cdmpp.files.stored import to_json
from cdmpp.machine import versions
from cdmpp.networks.packaged import model_folder
from cdmpp.networks.step_time.runs import architectures, read_runs
from cdmpp.pretrained import PRETRAINED
from cdmpp.text import aligned, counted, percent_text

_KEPT = "left_out"
#: Maximum number of architectures listed in a message.
_SHOWN = 10


def convert_table(table: Path, out: Path, *, as_json: bool, is_quiet: bool) -> None:
    """Traces the architectures of a table of measured networks, and prints the result."""
    from cdmpp.networks.step_time.graphs import trace_architectures

    runs, left_out = read_runs(table)
    wanted = architectures(runs)
    with progress(is_quiet=as_json or is_quiet) as show:
        failed = trace_architectures(
            wanted, out, on_progress=lambda done, of, name: show("tracing", done, of, name)
        )
    traced = len(wanted) - len(failed)
    if as_json:
        found = {"out_dir": str(out), "traced": traced, "untraced": failed}
        print(json.dumps(found | {"rows_left_out": left_out}))
        return
    print(f"{traced} of {counted(len(wanted), 'architecture')} with their image sizes in {out}")
    for name, reason in list(failed.items())[:_SHOWN]:
        print(f"  not traced: {name}: {reason}")
    if len(failed) > _SHOWN:
        print(f"  and {len(failed) - _SHOWN} more (--json lists all)")
    _print_left_out(left_out)


def train_on_table(
    table: Path,
    dataset: Path | None,
    out: Path,
    *,
    config: Path | None,
    overrides: Sequence[str],
    as_json: bool,
    is_quiet: bool,
) -> None:
    """Fits the step-time model to a table of measured networks, and prints its errors."""
    from cdmpp.networks.step_time.fit import (
        StepFitOptions,
        fit_step_time,
        left_out_columns,
        measured_steps,
    )
    from cdmpp.networks.step_time.graphs import read_graphs
    from cdmpp.networks.step_time.model import STEP_TIME

    options = load_config(StepFitOptions, config, overrides=overrides, given={})
    check_run_folder(out, dump_text(options))
    runs, unusable = read_runs(table)
    graphs = read_graphs(dataset)
    steps = measured_steps(runs, graphs)
    with progress(is_quiet=as_json or is_quiet) as show:
        model, left_out = fit_step_time(
            steps, graphs, options, keep=make_folder(out / _KEPT, what="fits"),
            on_fit=lambda what, done, of: show(what, done, of, ""),
        )  # fmt: skip
    write_columns(out / "left_out.parquet", left_out_columns(steps, left_out))
    model.save(out)
    metrics = {
        "model": STEP_TIME, "devices": list(model.devices), "options": to_json(options),
        "versions": versions(), **model.facts, "rows_left_out": unusable,
    }  # fmt: skip
    write_json(out / "metrics.json", metrics)
    if as_json:
        print(json.dumps(metrics, allow_nan=False))
        return
    facts = model.facts
    print(
        f"step-time model of {counted(facts['runs'], 'run')} of "
        f"{counted(len(facts['architectures']), 'architecture')} "
        f"on {', '.join(model.devices)}"
    )
    rows = [["left out", "median error"]]
    for name, what in (
        ("left_out_median_ape", "families"),
        ("left_out_device_median_ape", "families and the device"),
    ):
        if facts[name] is not None:
            rows.append([what, percent_text(facts[name], 1)])
    print(aligned(rows, "lr"))
    print(f"\nrun folder: {out}")


def evaluate_on_table(
    model: str, table: Path, dataset: Path | None, *, device: str | None, as_json: bool
) -> None:
    """Prints the errors of a step-time model on a table of measured networks."""
    from cdmpp.networks.step_time.evaluate import evaluate_model
    from cdmpp.networks.step_time.fit import measured_steps
    from cdmpp.networks.step_time.graphs import read_graphs
    from cdmpp.networks.step_time.model import StepTimeModel, packaged_step_time

    folder = packaged_step_time() if model == PRETRAINED else model_folder(model)
    trained = StepTimeModel.load(folder)
    runs, left_out = read_runs(table)
    if device:
        label = get_device(device).name
        runs = [run for run in runs if run.device == label]
    steps = measured_steps(runs, read_graphs(dataset))
    found = evaluate_model(trained, steps) | {"rows_left_out": left_out}
    if as_json:
        print(json.dumps(found, allow_nan=False))
        return
    whole = found["all"]
    print(
        f"step-time model on {counted(whole['n'], 'run')} of "
        f"{counted(whole['architectures'], 'architecture')}"
    )
    if found["trained_on"]:
        print(
            f"! {counted(found['trained_on'], 'run', 'are')} of architectures that the model was "
            "trained on; docs/results/networks-gpu.md has the errors on families left out"
        )
    _print_groups(found["by_device"], ["device", "dtype", "way", "torch"])
    _print_groups(found["by_family"], ["family"])
    if found["untraced"]:
        count = sum(found["untraced"].values())
        print(
            f"\n{counted(count, 'run')} left out: no graph of "
            f"{', '.join(list(found['untraced'])[:_SHOWN])}"
        )
    _print_left_out(left_out)


def _print_groups(groups: list[dict[str, Any]], names: list[str]) -> None:
    headings = [
        *names, "runs", "median error", "MAPE", "MACs at peak", "ratio", "in interval", "factor",
    ]  # fmt: skip
    rows = [headings]
    for one in groups:
        rows.append(
            [
                *(str(one[name]) for name in names), str(one["n"]),
                percent_text(one["median_ape"], 1), percent_text(one["mape"], 1),
                percent_text(one["macs_mape"], 1), f"{one['median_ratio']:.2f}",
                percent_text(one["interval_coverage"], 0),
                "-" if one["interval_factor"] is None else f"{one['interval_factor']:.2f}",
            ]
        )  # fmt: skip
    print(f"\n{aligned(rows, 'l' * len(names) + 'r')}")


def _print_left_out(left_out: dict[str, int]) -> None:
    for reason, count in left_out.items():
        print(f"  {counted(count, 'row')} left out: {reason}")


def is_table(path: Path) -> bool:
    """Returns whether a path is a table of runs, by its suffix."""
    return path.suffix in (".parquet", ".csv")
