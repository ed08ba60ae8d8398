"""`cdmpp autotune`: tunes hyper-parameters of a cost model by trials on the validation part."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial

from cdmpp.autotune.options import AutotuneOptions, ObjectiveKind, check_options
from cdmpp.autotune.report import write_study_report
from cdmpp.autotune.storage import existing_study
from cdmpp.autotune.study import Source, best_trial, run_study, winner_options, write_preset
from cdmpp.autotune.trial_rows import row_json, trial_rows
from cdmpp.cli.shared.option_table import add_table
from cdmpp.cli.shared.options import (
    add_data_options,
    add_output_options,
    add_training_options,
    command_line,
    given_options,
)
from cdmpp.cli.shared.progress import training_progress
from cdmpp.cli.shared.samples import dataset_of, given_data
from cdmpp.cli.shared.tables import print_metric_tables
from cdmpp.config import load_config
from cdmpp.datasets.cache import load_samples
from cdmpp.errors import UsageError
from cdmpp.files.atomic import make_folder
from cdmpp.report.run_report import run_tables, write_run_report
from cdmpp.text import counted, percent_text, seconds_text
from cdmpp.training.run import RunResult, train_run

_JOURNAL = "journal.log"
_PAGE = "report.html"
_PRESET = "best.yaml"
_OF_REPORT = ("out", "storage", "study", "json", "autotune_command")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `cdmpp autotune` and of `cdmpp autotune report`."""
    parser.description = (
        "Tunes hyper-parameters: trains one model per trial, evaluates every trial on the "
        "validation part and writes the best settings to best.yaml. Then trains with these "
        "settings as `cdmpp train` does, evaluates once on the test part and writes "
        "report.html. Rerun the same command to continue a study, or run it in parallel to add "
        "workers."
    )
    _add_study_options(parser)
    add_data_options(parser)
    add_training_options(parser)
    add_table(parser, """
        --model KIND                        kind of model to tune (default: as in --config)
        --workers N: int = 1                processes, one thread each (default 1)
        --trials N: int                     trials of the study
        --minutes M: float                  wall-time limit of this run
        --sampler tpe|random                how settings are chosen
        --pruner none|percentile|hyperband  how bad trials are stopped early (one objective only)
        --seed N: int                       seed of the sampler
        --no-train                          do not train with the best settings: the test part stays
            unused
    """)  # fmt: skip
    add_output_options(parser)
    parts = parser.add_subparsers(dest="autotune_command", metavar="report")
    report = parts.add_parser(
        "report",
        help="write the report of a study",
        description=(
            "Writes one HTML file with the history, importance of settings, parallel "
            "coordinates, the Pareto front of error and prediction time, and all trials. Trains "
            "nothing; works while a study runs."
        ),
        argument_default=argparse.SUPPRESS,  # keeps what stands before the word `report`
    )
    _add_study_options(report)
    add_table(report, """
        --study NAME  which study, if the storage has several
    """)  # fmt: skip
    add_output_options(report)
    report.set_defaults(run=run_report, study=None)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    if args.workers < 1:
        raise UsageError(f"--workers must be at least 1, got {args.workers}")
    given = {name: getattr(args, name) for name in ("trials", "minutes", "sampler", "seed")}
    options = load_config(AutotuneOptions, args.config, overrides=args.set, given=given)
    train = {**given_data(args.dataset, args.device), "model": args.model}
    train = {name: value for name, value in train.items() if value is not None}
    options = replace(options, train=replace(options.train, **train))
    if args.pruner:
        options = replace(options, pruner=replace(options.pruner, kind=args.pruner))
    check_options(options)  # before the extraction
    out = args.out or Path("runs") / f"autotune-{options.name}"
    folder = dataset_of(
        options.train.dataset, options.train.devices, cache_dir=args.cache,
        network_info=args.network_info, jobs=args.jobs, may_install=not args.no_install,
        is_quiet=args.json or args.quiet,
    ).folder  # fmt: skip
    source = Source(load_samples, folder, list(options.train.devices) or None)
    study = run_study(
        options,
        source,
        args.storage or str(out / _JOURNAL),
        workers=args.workers,
        on_trial=None if args.json or args.quiet else partial(print_trial, options.objective.kind),
    )
    best = best_trial(study)
    make_folder(out, what="study")
    write_preset(out / _PRESET, options, best)
    page = _write_page(study, out)
    result = None
    if not args.no_train:
        with training_progress(is_quiet=args.json or args.quiet) as progress:
            train_options = winner_options(options, best)
            run_dir = out / f"trial-{best.number}"
            result = train_run(train_options, source.samples(), run_dir, on_progress=progress)
        write_run_report(result, command=command_line())
    if args.json:
        print(json.dumps(_value(study, best, out, result), allow_nan=False))
    else:
        _print_end(options.objective.kind, study, best, out, page, result)
    return 0


def run_report(args: argparse.Namespace) -> int:
    """Runs `autotune report`; returns the exit code."""
    unused = [name for name in given_options(add_options, vars(args)) if name not in _OF_REPORT]
    if unused:
        raise UsageError(
            f"autotune report trains nothing: got --{unused[0].replace('_', '-')}, expected only "
            "--out, --storage, --study and --json; leave it out"
        )
    if args.out is None:
        raise UsageError("autotune report needs the folder of a study: give --out RUN")
    study = existing_study(args.storage or str(args.out / _JOURNAL), args.study)
    make_folder(args.out, what="study")
    page = _write_page(study, args.out)
    if args.json:
        rows = [row_json(row) for row in trial_rows(study)]
        value = {"study": study.study_name, "report": str(page), "trials": rows}
        print(json.dumps(value, allow_nan=False))
    else:
        print(f"report  {page}")
    return 0


def print_trial(objective: ObjectiveKind, trial: FrozenTrial) -> None:
    """Prints a finished trial on stderr."""
    facts = trial.user_attrs
    words = [
        f"trial {trial.number} {trial.state.name.lower()}",
        _objective_text(objective, trial.values or ()),
        f"{facts.get('epochs', 0)} epochs, {facts.get('cpu_s', 0.0):.1f} CPU s",
        str(facts.get("reason", "")),
    ]
    print(", ".join(word for word in words if word), file=sys.stderr, flush=True)


def _objective_text(objective: ObjectiveKind, values: Sequence[float]) -> str:
    if not values:
        return ""
    if objective == "error-and-order":
        return f"error and order {values[0]:.3f}"
    seconds = "".join(f", {seconds_text(value)} a prediction" for value in values[1:])
    return f"MAPE {percent_text(values[0])}{seconds}"


def _add_study_options(parser: argparse.ArgumentParser) -> None:
    add_table(parser, """
        --out DIR: Path  folder of the study (default: runs/autotune-NAME)
        --storage PLACE  journal file, or postgresql://USER@HOST/DATABASE for many machines
            (default: journal.log in --out)
    """)  # fmt: skip


def _write_page(study: optuna.Study, out: Path) -> Path:
    preset = out / _PRESET
    text = preset.read_text("utf-8") if preset.exists() else ""
    return write_study_report(study, out / _PAGE, command=command_line(), preset=text)


def _value(
    study: optuna.Study, best: FrozenTrial, out: Path, result: RunResult | None
) -> dict[str, Any]:
    rows = trial_rows(study)
    return {
        "study": study.study_name,
        "preset": str(out / _PRESET),
        "report": str(out / _PAGE),
        "best": next(row_json(row) for row in rows if row.number == best.number),
        "first": next((row_json(row) for row in rows if row.number == 0), None),
        "trials": len(rows),
        "done": sum(row.is_done for row in rows),
        "cpu_s": sum(row.cpu_s for row in rows),
        "steps": sum(row.steps for row in rows),
        "run": None if result is None else str(result.run_dir),
        "test": None if result is None else result.metrics["test"][result.metrics["model"]],
    }


def _print_end(
    objective: ObjectiveKind,
    study: optuna.Study,
    best: FrozenTrial,
    out: Path,
    page: Path,
    result: RunResult | None,
) -> None:
    rows = trial_rows(study)
    first = next((row for row in rows if row.number == 0 and row.is_done), None)
    value = _objective_text(objective, best.values)
    began = f" (trial 0: {_objective_text(objective, first.values)})" if first else ""
    print(f"best    trial {best.number}: {value} on the validation part{began}")
    print(
        f"spent   {sum(r.cpu_s for r in rows) / 60:.1f} CPU minutes, {counted(len(rows), 'trial')}"
    )
    if result is not None:
        print(f"\ntest part, {result.metrics['split']['description']}\n")
        print_metric_tables(run_tables(result.metrics))
        print(f"model   {result.run_dir}")
    print(f"preset  {out / _PRESET}\nreport  {page}")
