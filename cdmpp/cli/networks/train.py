"""`cdmpp networks train|evaluate|package`: models of whole networks."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from cdmpp.cli.networks.step_time import evaluate_on_table, train_on_table
from cdmpp.cli.shared.option_table import add_table
from cdmpp.cli.shared.options import add_output_options, add_training_options, check_goes_with
from cdmpp.cli.shared.progress import training_progress
from cdmpp.config import dump_text, load_config
from cdmpp.errors import UsageError
from cdmpp.files.run_folder import check_run_folder
from cdmpp.machine import versions
from cdmpp.models.registry import NETWORK_CLASSES
from cdmpp.networks.dataset.store import read_dataset
from cdmpp.networks.packaged import model_folder, package_run
from cdmpp.networks.run import NetworkRun, evaluate_run, load_run, train_run
from cdmpp.text import aligned, counted, percent_text


def add_train_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `networks train`."""
    add_table(parser, f"""
        --dataset DIR: Path           data set; with --table the graphs of its architectures
            (default: the shipped ones of timm's)
        --table FILE: Path            fit the step-time model of GPUs to a table of measured
            networks (.parquet, .csv)
        --out RUN: Path required      run folder; one with the same options is overwritten
        --model {"|".join(NETWORK_CLASSES)}  model to fit to a data set (default: residual)
        --seed N: int                seed of split and model (default: 0)
        --split architecture|random  what is split into parts (default: architecture; random leaks:
            the same architecture at another batch can be in training)
        --device LABEL               only this device's measurements
    """)  # fmt: skip
    add_training_options(parser)
    add_output_options(parser)


def add_evaluate_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `networks evaluate`."""
    parser.add_argument("model", metavar="RUN", help="run folder, or pretrained")
    add_table(parser, """
        --dataset DIR: Path           data set; with --table the graphs of its architectures
            (default: the shipped ones of timm's)
        --table FILE: Path            errors of the step-time model of GPUs on a table of measured
            networks (.parquet, .csv), by device, way of running and family
        --part auto|test|all = auto   auto: the test part of the run's split if this is the run's
            own data set, else all
        --device LABEL                only this device's measurements
    """)  # fmt: skip
    add_output_options(parser)


def add_package_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `networks package`."""
    parser.add_argument("model", type=Path, metavar="RUN", help="finished run folder")
    add_table(parser, """
        --licence LICENCE required  licence of the measurements that the run was trained on
        --made-by COMMAND required  command that reproduces the model, for the card
        --out DIR: Path             default: in the package
    """)  # fmt: skip
    add_output_options(parser)


def run_train(args: argparse.Namespace) -> int:
    """Runs `cdmpp networks train`; returns the exit code."""
    if args.table is not None:
        check_goes_with(
            "--dataset without --table", None, model=args.model, seed=args.seed, split=args.split,
            device=args.device,
        )  # fmt: skip
        train_on_table(
            args.table, args.dataset, args.out, config=args.config, overrides=args.set,
            as_json=args.json, is_quiet=args.quiet,
        )  # fmt: skip
        return 0
    _check_dataset(args.dataset)
    given = {name: getattr(args, name) for name in ("model", "seed", "split", "device")}
    run = load_config(NetworkRun, args.config, overrides=args.set, given=given)
    check_run_folder(args.out, dump_text(run))
    data = read_dataset(args.dataset)
    with training_progress(is_quiet=args.json or args.quiet) as show:
        metrics = train_run(
            data, args.out, run, versions=versions(),
            on_progress=lambda progress: show(f"training {run.model}", progress),
        )  # fmt: skip
    if args.json:
        print(json.dumps(metrics, allow_nan=False))
        return 0
    split = metrics["split"]
    print(
        f"{metrics['model']}, split by {split['kind']} (seed {split['seed']}): {split['train']} "
        f"training, {split['validation']} validation and {split['test']} test "
        f"networks{_leak(split)}"
    )
    _print_targets(metrics["test"], metrics["noise-floor"])
    print(f"\nrun folder: {args.out}")
    return 0


def run_evaluate(args: argparse.Namespace) -> int:
    """Runs `cdmpp networks evaluate`; returns the exit code."""
    if args.table is not None:
        check_goes_with("--dataset without --table", None, part=args.part != "auto")
        evaluate_on_table(
            args.model, args.table, args.dataset, device=args.device, as_json=args.json
        )
        return 0
    _check_dataset(args.dataset)
    trained = load_run(model_folder(args.model))
    data = read_dataset(args.dataset)
    found = evaluate_run(trained, data, part=args.part, device=args.device)
    if args.json:
        print(json.dumps(found, allow_nan=False))
        return 0
    what = "test part of its split" if found["part"] == "test" else "all networks of the data set"
    print(f"{found['model']} on the {what}: {counted(found['n'], 'sample')}{_leak(found['split'])}")
    if found["overlap_with_training"]:
        print("! the model was trained on a part of these samples; use --part test")
    _print_targets(found["targets"], found["noise-floor"])
    return 0


def _check_dataset(dataset: Path | None) -> None:
    if dataset is None:
        raise UsageError("no data; expected --dataset DIR, or --table FILE of measured networks")


def run_package(args: argparse.Namespace) -> int:
    """Runs `cdmpp networks package`; returns the exit code."""
    folder = package_run(args.model, command=args.made_by, licence=args.licence, out=args.out)
    print(json.dumps({"folder": str(folder)}) if args.json else f"packaged: {folder}")
    return 0


def _leak(split: dict[str, Any]) -> str:
    if not split["leaks"]:
        return ""
    return (
        f" (leaks: {split['shared_architectures']} architectures of the test part are in training "
        "at another batch)"
    )


_SHARES = ("mape", "median_ape", "rmspe", "within_5pct", "within_10pct", "interval_coverage")


def _print_targets(targets: dict[str, Any], floor: dict[str, Any]) -> None:
    rows = []
    for name, found in targets.items():
        rows.append(
            [
                name,
                str(found["n"]),
                *(percent_text(found[metric], 2) for metric in _SHARES),
                percent_text(floor[name]["mape"], 2),
            ]
        )
    headings = [
        "target", "n", "MAPE", "median", "RMSPE", "within 5 %", "within 10 %", "in interval",
        "noise of repeats",
    ]  # fmt: skip
    print(aligned([headings, *rows]))
