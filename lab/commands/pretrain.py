"""`python -m lab pretrain`: trains and packages a model for shipping."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from cdmpp.arrays import BoolArray, FloatArray
from cdmpp.calibration.intervals import operator_kinds
from cdmpp.calibration.left_out_kinds import strange_factor
from cdmpp.cli.shared.option_table import add_table
from cdmpp.cli.shared.options import (
    add_output_options,
    add_training_options,
    command_line,
)
from cdmpp.cli.shared.progress import training_progress
from cdmpp.cli.shared.samples import dataset_of
from cdmpp.config import load_config
from cdmpp.datasets.extraction.merge import merged_folder
from cdmpp.datasets.samples import Samples
from cdmpp.datasets.selection import cap_programs
from cdmpp.files.places import package_folder
from cdmpp.models.gbdt import GbdtCostModel
from cdmpp.predict import saved_model
from cdmpp.report.run_report import write_run_report
from cdmpp.training.options import TrainOptions
from cdmpp.training.run import train_run
from lab.package import bytes_of, package_run, read_card, shippable_samples

#: Maximum programs per device for trees without some kinds of operators.
_KINDS_PER_DEVICE = 3000


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `python -m lab pretrain`."""
    parser.description = (
        "Trains on the shipped dataset and on extracted datasets that are named, as far as their "
        "licence allows, and evaluates the model on unseen tasks. The "
        "result is a run folder; with --package or --out it is packaged, with its card."
    )
    add_table(parser, """
        --data DIR...: Path = []              another extracted dataset; may be repeated
        --name NAME = default                 name of the model (default: default)
        --programs-per-device N: int = 20000  at most so many of every device; 0 = all (default:
            20000)
        --seed N: int                         of the split and the training
    """)  # fmt: skip
    add_training_options(parser)
    add_table(parser.add_mutually_exclusive_group(), """
        --package        replace the model of the installed package, behind `--model pretrained`
        --out DIR: Path  package it into this folder
    """)  # fmt: skip
    add_table(parser, """
        --run RUN: Path as run_dir  run folder (default: runs/NAME)
        --cache DIR: Path = cache   where extracted data are kept (default: ./cache)
        --jobs N: int               processes that extract
    """)  # fmt: skip
    add_output_options(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    given = {"seed": args.seed}
    options = load_config(TrainOptions, args.config, overrides=args.set, given=given)
    folders = [
        dataset_of(
            place, cache_dir=args.cache, jobs=args.jobs, is_quiet=args.json or args.quiet
        ).folder
        for place in (None, *args.data)
    ]
    samples, others = shippable_samples(
        merged_folder(folders, args.cache), args.programs_per_device, seed=options.seed
    )
    if others and not (args.json or args.quiet):
        text = ", ".join(others)
        print(f"cdmpp: left out, no licence to ship weights: {text}", file=sys.stderr)
    labels = tuple(spec.name for spec in samples.devices)
    # These options are determined by the samples.
    options = replace(options, dataset="", devices=labels, baselines=())
    run_dir = args.run_dir or Path("runs") / f"pretrained-{args.name}"
    with training_progress(is_quiet=args.json or args.quiet) as progress:
        result = train_run(options, samples, run_dir, on_progress=progress)
    measure_left_out_kinds(run_dir, options, samples)
    write_run_report(result, command=command_line())
    out = package_folder("cdmpp.pretrained") if args.package else args.out
    if out is None:
        if args.json:
            print(json.dumps({"run": str(run_dir), **result.metrics}, allow_nan=False))
        else:
            print(f"model {run_dir}, trained on {', '.join(labels)}; nothing was packaged")
        return 0
    folder = package_run(run_dir, out, samples, name=args.name, command=command_line())
    if args.json:
        print(json.dumps({"folder": str(folder), **read_card(folder)}, allow_nan=False))
        return 0
    size = bytes_of(folder)
    print(f"packaged {folder} ({size / 1e6:.2f} MB), trained on {', '.join(labels)}")
    return 0


def measure_left_out_kinds(run_dir: Path, options: TrainOptions, samples: Samples) -> None:
    """Measures errors of the ensemble's trees on held-out kinds of operators, and adds their ratio
    to the model's intervals to its card. Does nothing for a model without intervals.

    Args:
        samples: training and calibration data of the model.

    Raises:
        DataError: the model is incomplete, or a file cannot be written.
    """
    calibration = saved_model.read_card(run_dir).calibration
    if calibration is None:
        return
    samples = cap_programs(samples, _KINDS_PER_DEVICE, seed=0)
    nothing = samples.take(np.zeros(0, np.int64))
    widths = [calibration.by_device.get(one.name, calibration.pooled) for one in samples.devices]

    def error_of(is_left_out: BoolArray) -> FloatArray:
        trees = GbdtCostModel(options.ensemble.trees)
        trees.fit(samples.take(~is_left_out), nothing, seed=options.seed)
        strange = samples.take(is_left_out)
        return np.asarray(np.abs(np.log(trees.predict(strange) / strange.latency_s)))

    tasks = np.asarray(samples.programs.tasks, np.str_)[samples.task_id]
    kinds = operator_kinds(samples).astype(np.str_)
    factor = strange_factor(kinds, tasks, np.array(widths)[samples.device], error_of)
    saved_model.write_strange_factor(run_dir, factor)
