"""`python -m lab run`, `list`, `stale` and `claims`."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import os
import sys

from cdmpp.text import aligned, listed
from lab.registry import EXPERIMENTS, Experiment, find, options_of


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `python -m lab run`."""
    parser.description = (
        "Runs an experiment and writes its pages. Finished work is kept: run it again to "
        "continue. `python -m lab list NAME` says which options it has."
    )
    parser.add_argument("name", help="of the experiment")
    parser.add_argument(
        "options", nargs="*", metavar="OPTION=VALUE", help="the value is read as YAML"
    )


def run_run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    experiment = find(args.name)
    if experiment.is_one_thread:  # before numpy, torch and TVM read them
        os.environ |= {"OMP_NUM_THREADS": "1", "TVM_NUM_THREADS": "1"}
    if experiment.is_pinned:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    experiment.run(args.options)
    return 0


def add_list_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `python -m lab list`."""
    parser.description = "Lists the experiments, or the options of one."
    parser.add_argument("name", nargs="?", help="of the experiment")


def run_list(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    if args.name:
        print(_described(find(args.name)))
    else:
        print(aligned([["name", "what"], *([one.name, one.what] for one in EXPERIMENTS)]))
    return 0


def _described(experiment: Experiment) -> str:
    function = experiment.function()
    module = sys.modules[function.__module__]
    lines = [f"{experiment.name}: {experiment.what}"]
    if experiment.cpu_time:
        lines.append(f"CPU time: {experiment.cpu_time}")
    if experiment.written:
        lines.append(f"writes runs/results/{listed([f'{name}.md' for name in experiment.written])}")
    lines += ["", inspect.cleandoc(function.__doc__ or module.__doc__ or ""), "", "options:"]
    for field in dataclasses.fields(options_of(function)):
        is_needed = field.default is dataclasses.MISSING
        lines.append(f"  {field.name}{'' if is_needed else f' = {field.default}'}")
    return "\n".join(lines)


def add_stale_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `python -m lab stale`."""
    parser.description = "Lists the results of earlier models or features, why, and their commands."
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these")
    parser.add_argument(
        "--run", dest="is_run", action="store_true", help="rerun them, one after the other"
    )


def run_stale(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code: 1 if `--run` leaves a page stale."""
    from lab import stale

    return stale.rerun(args.names) if args.is_run else stale.show(args.names)


def add_claims_options(parser: argparse.ArgumentParser) -> None:
    """Adds the description of `python -m lab claims`, which has no options."""
    parser.description = (
        "Fills docs/results from the full pages in runs/results, draws docs/accuracy.svg, and "
        "looks up the numbers of README.md and docs/accuracy.md in the pages that they link. Ends "
        "with 1 where a number is missing there."
    )


def run_claims(_: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    from lab import claims

    return claims.write()
