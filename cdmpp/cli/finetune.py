"""`cdmpp finetune`: adapts a trained model to a new device or network with a few measured tasks."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cdmpp.api.train import finetune_in_folder
from cdmpp.cli.shared.option_table import add_table
from cdmpp.cli.shared.options import (
    add_data_options,
    add_output_options,
    add_training_options,
    command_line,
)
from cdmpp.cli.shared.progress import training_progress
from cdmpp.cli.shared.samples import dataset_of, given_data
from cdmpp.cli.shared.tables import print_metric_tables
from cdmpp.config import load_config
from cdmpp.errors import UsageError
from cdmpp.report.run_report import run_tables
from cdmpp.text import counted, percent_text
from cdmpp.training.finetune.choice import SAYS

if TYPE_CHECKING:
    from cdmpp.api.dataset import Dataset
    from cdmpp.training.finetune.run import Budget, FinetuneRunOptions


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `cdmpp finetune`."""
    parser.description = (
        "Chooses a few tasks of the device (or network), adapts the model of a run folder to "
        "their measurements, evaluates it once on the device's other tasks beside the unadapted "
        "model, and writes a new run folder."
    )
    add_table(parser, """
        --from RUN: Path as from_run      run folder to start from, or pretrained
        --budget Ntasks                   number of tasks to train on (default: 10tasks), or all:
            the model is then selected by cross-validation
        --sampler kmeans|random|k-center  how the tasks are chosen (default: kmeans); no choice
            needs measurements
        --network NAME                    only the tasks of this network
        --seed N: int                     seed of the task selection and the training
        --compare = None                  also train only on the budget: the same kind of model,
            and boosted trees
        --measured-on LABEL               a device in the training data of the model: its times of
            the same programs correct the predictions for the new device, and the budget is drawn
            from programs measured on both (afterwards: cdmpp predict --records FILE --measured-on
            LABEL)
    """)  # fmt: skip
    add_data_options(parser)
    add_training_options(parser)
    add_table(parser, """
        --out RUN2: Path  run folder (default: runs/NAME of the options)
    """)  # fmt: skip
    add_output_options(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    # Imported here because it loads torch, which --help does not need.
    from cdmpp.training.finetune.run import FinetuneRunOptions, run_name

    given = {
        **given_data(args.dataset, args.device),
        "from_run": str(args.from_run) if args.from_run else None,
        "budget": None if args.budget is None else budget_tasks(args.budget),
        **{
            name: getattr(args, name)
            for name in ("sampler", "network", "seed", "compare", "measured_on")
        },
    }
    options = load_config(FinetuneRunOptions, args.config, overrides=args.set, given=given)
    if not options.from_run:
        raise UsageError("finetune needs a model to start from: give --from RUN")
    run_dir = args.out or Path("runs") / run_name(options)
    is_quiet = args.json or args.quiet

    def read(labels: Sequence[str]) -> Dataset:
        return dataset_of(
            options.dataset, labels, cache_dir=args.cache, network_info=args.network_info,
            jobs=args.jobs, may_install=not args.no_install, is_quiet=is_quiet,
        )  # fmt: skip

    with training_progress(is_quiet=is_quiet) as progress:
        result, budget = finetune_in_folder(
            options, run_dir, read, command=command_line(), on_progress=progress
        )
    report = run_dir / "report.html"
    if args.json:
        values = {"run": str(run_dir), "report": str(report), **result.metrics}
        print(json.dumps(values, allow_nan=False))
        return 0
    _print_budget(budget, options)
    print(f"\ntest part, {result.metrics['split']['description']}\n")
    print_metric_tables(run_tables(result.metrics))
    metrics = result.metrics
    steps = ", ".join(
        f"{what} {counted(count, 'step')}" for what, count in metrics["steps"].items()
    )
    kept = f"{SAYS[metrics['kept']]}{f' ({steps})' if steps else ''}: {metrics['why']}"
    print(f"chosen  {kept}")
    if metrics["held_out_error"]:
        errors = ", ".join(
            f"{SAYS[name]} {percent_text(error)}"
            for name, error in metrics["held_out_error"].items()
        )
        print(
            "errors  mean over tasks of the budget, each held out, with at most 300 % a program "
            f"(MAPE above: mean over programs, unlimited): {errors}"
        )
    if metrics["lost_machine_code"]:
        kinds = " and ".join(f"{kind.upper()}s" for kind in metrics["lost_machine_code"])
        print(
            f"note    without machine code on {kinds}, which {options.from_run} reads: it was not "
            "adapted to these measurements"
        )
    print(f"model   {run_dir}\nreport  {report}")
    return 0


def budget_tasks(text: str) -> int:
    """Returns the number of tasks in a text such as `10tasks` or `10`; 0 for `all`.

    Raises:
        UsageError: the text has another form, or the number is below 1.
    """
    if text.strip() == "all":
        return 0
    found = re.fullmatch(r"(\d+)(?:\s*tasks?)?", text.strip())
    if found is None or int(found[1]) < 1:
        raise UsageError(
            f"--budget must be a number of tasks from 1 up, or all: got {text!r}, expected e.g. "
            "--budget 10tasks (for zero-shot errors: cdmpp evaluate)"
        )
    return int(found[1])


def _print_budget(budget: Budget, options: FinetuneRunOptions) -> None:
    programs = budget.train.programs
    print(f"training tasks ({options.sampler}):")
    for task in budget.tasks:
        rows = budget.train.task_id == task
        operator = programs.operator[budget.train.program[rows][0]]
        networks = ", ".join(name for name, _ in programs.networks[task]) or "no network"
        key = str(programs.tasks[task])
        short = key if len(key) <= 60 else f"{key[:57]}..."
        print(f"  {operator}  {counted(int(rows.sum()), 'measurement')}  {networks}  {short}")
