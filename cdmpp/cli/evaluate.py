"""`cdmpp evaluate`: evaluates a saved model on any measured dataset."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cdmpp.api.model import load
from cdmpp.cli.shared.option_table import add_table
from cdmpp.cli.shared.options import add_data_options, add_model_option, add_output_options
from cdmpp.cli.shared.progress import campaign_progress
from cdmpp.cli.shared.samples import asked_labels, dataset_of
from cdmpp.cli.shared.tables import print_metric_tables
from cdmpp.config import load_config
from cdmpp.datasets.extraction.machine_code import MachineCode, read_machine_code
from cdmpp.errors import UsageError
from cdmpp.models.registry import judged_baselines
from cdmpp.predict.estimates import TrainedModel
from cdmpp.processes.campaign import CAMPAIGN_FILE
from cdmpp.report.recognised import judged_table, on_device
from cdmpp.report.tier_tables import tier_tables
from cdmpp.text import agreed, counted
from cdmpp.training.baselines import load_baselines
from cdmpp.training.evaluate import EvaluateOptions, evaluate
from cdmpp.training.tiers import COMPILED, FAST


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `cdmpp evaluate`."""
    parser.description = (
        "Evaluates a model on the measured programs of a dataset or campaign, without machine "
        "code (fast tier) and with it (compiled tier): overall, by measured time and by "
        "operator. Tasks in the model's training data are left out and counted."
    )
    add_model_option(parser)
    add_data_options(parser)
    add_table(parser, """
        --machine-code  compile the programs of a campaign that have no machine code yet (half a
            second each); by default only the folder's table of machine code is used
        --all-tasks     also evaluate tasks of the model's training part; their errors are too
            optimistic
    """)  # fmt: skip
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE",
        help=
            "baselines=[conv,embedding,roofline,constant]: baselines of the run, evaluated "
            "beside the model",
    )  # fmt: skip
    add_output_options(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    options = load_config(EvaluateOptions, overrides=args.set)
    is_quiet = args.json or args.quiet
    model = load(args.model)
    trained = model.trained(machine_code=True)
    asked = judged_baselines(options.baselines)
    kinds = [kind for kind in asked if kind != trained.card.kind]
    baselines = load_baselines(model.folder, kinds)
    data = dataset_of(
        args.dataset, asked_labels(args.dataset, args.device), cache_dir=args.cache,
        network_info=args.network_info, jobs=args.jobs, may_install=not args.no_install,
        is_quiet=is_quiet,
    )  # fmt: skip
    code = _machine_code(data.folder, trained, is_quiet=is_quiet, compiles=args.machine_code)
    values = evaluate(trained, data.samples, baselines, code, all_tasks=args.all_tasks)
    if args.json:
        print(json.dumps(values, allow_nan=False))
        return 0
    _print_tables(values, trained.card.kind)
    print_metric_tables(tier_tables(values["tiers"]))
    if values["tiers"][COMPILED] is None:
        print(_without_code(data.folder, trained, code))
    if values["tiers"][FAST]["inside_interval"] is None:
        print("no intervals: the model was calibrated on too few tasks, or by an older version")
    print(_overlap_sentence(values, args.model))
    return 0


def _machine_code(
    folder: Path, trained: TrainedModel, *, compiles: bool, is_quiet: bool
) -> tuple[MachineCode, ...]:
    """Returns a folder's tables of machine code; with `compiles`, after compiling missing programs.

    Raises:
        UsageError: the programs cannot be compiled, or the model does not read machine code.
    """
    if compiles:
        if not trained.readers:
            raise UsageError(
                "--machine-code: the model does not read machine code; leave the option out, or "
                "extend the model with cdmpp train-code"
            )
        if not (folder / CAMPAIGN_FILE).is_file():
            raise UsageError(
                "--machine-code needs a campaign of cdmpp measure, whose programs can be "
                f"compiled: got {folder}. Leave the option out: an existing table of machine "
                "code is used without it"
            )
        from tvm_helper.measure.machine_code import write_machine_code  # needs TVM

        with campaign_progress(is_quiet=is_quiet) as show:
            write_machine_code(folder, on_progress=show)
    return read_machine_code(folder)


def _without_code(folder: Path, trained: TrainedModel, code: Sequence[MachineCode]) -> str:
    """Returns why there is no compiled tier, and how to get one."""
    if not trained.readers:
        return "no compiled tier: the model does not read machine code; cdmpp train-code adds this"
    if code:
        return "no compiled tier: the model does not read the machine code of these programs"
    if (folder / CAMPAIGN_FILE).is_file():
        return (
            "no compiled tier: the folder has no machine code; --machine-code (or cdmpp measure "
            f"--machine-code --out {folder}) compiles its programs"
        )
    return "no compiled tier: the dataset has no machine code of these programs"


def _print_tables(values: dict[str, Any], kind: str) -> None:
    recognised = values.get("recognised", {})
    lines = {kind: values, **values.get("baselines", {})}
    whole = {line: {**found, "tasks": values["tasks"]} for line, found in lines.items()}
    groups = [judged_table("all devices", whole, recognised, model=kind)]
    for label, one in values["by_device"].items():
        own = {
            line: {**found["by_device"][label], "tasks": one["tasks"]}
            for line, found in lines.items()
        }
        groups.append(judged_table(label, own, on_device(recognised, label), model=kind))
    print_metric_tables(groups if len(groups) > 2 else groups[1:])


def _overlap_sentence(values: dict[str, Any], model: Path) -> str:
    """Returns the sentence that says whether the evaluation is held-out."""
    overlap, left_out = values["overlap_with_training"], values["left_out_samples"]
    known = f"{counted(overlap, 'task', 'were')} in the training part of {model}"
    if overlap == 0:
        return f"held out: none of the tasks was in the training part of {model}"
    if left_out:
        return (
            f"held out: {known} and {agreed(overlap, 'are')} left out "
            f"({counted(left_out, 'program')}). Tasks of its validation part, which selected and "
            "calibrated it, are not recorded in the model: any in this dataset are counted as "
            "held out"
        )
    return f"NOT held out: {known}, so these errors are too optimistic for unseen tasks"
