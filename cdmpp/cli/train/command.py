"""`cdmpp train`: trains a cost model on measure records and evaluates it, in a run folder."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from cdmpp.api.train import train_in_folder
from cdmpp.cli.shared.option_table import add_table
from cdmpp.cli.shared.options import (
    add_data_options,
    add_output_options,
    add_profile_option,
    add_training_options,
    command_line,
)
from cdmpp.cli.shared.progress import training_progress
from cdmpp.cli.shared.samples import dataset_of, given_data
from cdmpp.cli.shared.tables import print_metric_tables
from cdmpp.config import load_config
from cdmpp.datasets.find import next_step
from cdmpp.models.registry import MODEL_CLASSES
from cdmpp.report.left_out import left_out_intervals, left_out_sentence, left_out_tables
from cdmpp.report.run_report import interval_sentence, run_tables
from cdmpp.training.options import TrainOptions, run_name, trained_on

if TYPE_CHECKING:  # they bring torch
    from cdmpp.datasets.samples import Samples
    from cdmpp.training.unmeasured import Unmeasured


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `cdmpp train`."""
    parser.description = (
        "Extracts the measured programs if needed, trains a model and its baselines, evaluates "
        "them once on the test part and writes a run folder with report.html. Rerun the same "
        "command to continue an interrupted training. For a device without measurements, the "
        "model is trained on all measured devices of its kind and evaluated with each of them "
        "left out."
    )
    add_data_options(parser)
    add_table(parser, f"""
        --model KIND                 {", ".join(MODEL_CLASSES)} (default: transformer)
        --split task|network|record  what is held out: tasks (default), networks, or single records
            (leaks)
        --seed N: int                seed of the split and the training
    """)  # fmt: skip
    add_training_options(parser)
    add_table(parser, """
        --from-scratch          do not start from the shipped model (by default, training on few
            tasks starts from it if held-out tasks show smaller errors)
        --device-type cpu|cuda  where a transformer is trained (default: cpu)
        --out RUN: Path         run folder (default: runs/NAME of the options)
    """)  # fmt: skip
    add_profile_option(parser)
    add_output_options(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    # Imported here because it loads torch, which --help and usage errors do not need.
    from cdmpp.training.finetune.start import start_sentence

    given = {
        **given_data(args.dataset, args.device),
        **{name: getattr(args, name) for name in ("model", "split", "seed")},
    }
    options = load_config(TrainOptions, args.config, overrides=args.set, given=given)
    if args.device_type:
        options = trained_on(options, args.device_type)
    run_dir = args.out or Path("runs") / run_name(options)
    is_quiet = args.json or args.quiet

    def read(options: TrainOptions) -> Samples:
        return dataset_of(
            options.dataset, options.devices, cache_dir=args.cache, network_info=args.network_info,
            jobs=args.jobs, may_install=not args.no_install, is_quiet=is_quiet,
        ).samples  # fmt: skip

    def tell(found: Unmeasured) -> None:
        print(found.sentence, file=sys.stderr if args.json else sys.stdout, flush=True)

    with training_progress(is_quiet=is_quiet) as progress:
        result, found = train_in_folder(
            options, run_dir, read, command=command_line(), cache_dir=args.cache,
            device_type=args.device_type or "cpu", from_nothing=args.from_scratch, on_found=tell,
            on_progress=progress,
        )  # fmt: skip
    if result is None:
        return 0
    report = result.run_dir / "report.html"
    if args.json:
        values = {"run": str(run_dir), "report": str(report), **result.metrics}
        print(json.dumps(values, allow_nan=False))
        return 0
    if found is not None:
        print()
        print_metric_tables(left_out_tables(result.metrics))
        print(left_out_sentence(result.metrics))
        print(f"intervals: {left_out_intervals(result.metrics)}")
        print(f"model   {run_dir}\nreport  {report}")
        for spec in found.devices:
            print(f"next    {next_step(spec.name)}")
        return 0
    print(f"test part, {result.metrics['split']['description']}\n")
    print_metric_tables(run_tables(result.metrics))
    print(f"intervals: {interval_sentence(result.metrics)}")
    if "start" in result.metrics:
        print(f"start   {start_sentence(result.metrics['start'])}")
    print(f"model   {run_dir}\nreport  {report}")
    return 0
