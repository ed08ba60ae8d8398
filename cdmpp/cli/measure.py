"""`cdmpp measure`: builds and times programs on a device, into an extracted dataset."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from cdmpp.cli.shared.option_table import add_table
from cdmpp.cli.shared.options import (
    add_config_options,
    add_output_options,
    add_profile_option,
    add_target_options,
    device_folders,
)
from cdmpp.cli.shared.progress import campaign_progress
from cdmpp.config import given_fields, load_config
from cdmpp.datasets.extraction.extracted import read_manifest
from cdmpp.errors import UsageError
from cdmpp.text import counted
from tvm_helper.measure.options import MeasureOptions
from tvm_helper.measure.tables import write_tables


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `cdmpp measure`."""
    add_table(parser, """
        --out DIR: Path  output folder of the campaign and its dataset
        what to measure (may be mixed and repeated):
        --task TASK+ as sample = []         schedules of a task: KIND:SIZE=N,... (see --list-tasks)
            or a Python file with TVMScript
        --sample-random N: int              schedules of N random tasks: kinds, sizes and types are
            drawn from the seed
        --replay DATASET... = []            programs of a folder in Tenset's layout, replayed on
            this device
        --replay-device LABEL... as replay_devices = []  devices whose records are replayed
            (default: all of the target's kind)
        --network FILE+ = []         schedules of the tasks of a network (.onnx, .pt2)
        --batch N: int as network_batch        ONNX: size of the first axes that are dynamic in the
            file
        --input NAME=SHAPE... as network_input = []  ONNX: full shape of an input with dynamic sizes
        --tasks-of CAMPAIGN... = []  the tasks of another campaign, sampled again (another seed,
            another device, or choose_from)
        --list-tasks                 list the task kinds and sizes
        --as random|default|dlight|hand+ as schedules = []  how programs are scheduled, in turns
            over the tasks: random (in MetaSchedule's space, the default), default (the loops of
            relax), dlight (DLight's rules) or hand (hand-written schedules)
        --per-task N: int            programs of each task (default: 64)
        --max-programs N: int as most_programs  total number of programs, spread evenly over the
            tasks
        --seed N: int                seed (default: 0)
        --jobs N: int                number of CPUs that measure in parallel (labels of one thread)
    """)  # fmt: skip
    place = parser.add_argument_group("on what")
    add_target_options(place)
    add_table(place, """
        --rpc HOST:PORT:KEY  TVM's RPC tracker (default: this machine)
    """)  # fmt: skip
    add_config_options(
        parser,
        config="file with all settings, see configs/measure",
        setting="run_timeout_s=30 or timing.spread=0.01",
    )
    add_table(parser, """
        --tables-only   measure nothing; write the tables of an interrupted campaign
        --quiet-times   with --tables-only: divide times by how much slower the reference program
            ran in the campaign than at its best
        --machine-code  measure nothing; compile the programs of a campaign and write
            machine_code.parquet
    """)  # fmt: skip
    add_profile_option(parser)
    add_output_options(parser)


def run(args: argparse.Namespace) -> int:
    """Runs `cdmpp measure`; returns the exit code."""
    if args.list_tasks:
        from tvm_helper.measure.tasks import task_names  # needs TVM, as the others below

        names = task_names()
        text = "\n".join(f"{kind}:{sizes}" for kind, sizes in names.items())
        print(json.dumps(names) if args.json else text)
        return 0
    if args.out is None:
        raise UsageError("no output folder: give --out DIR")
    if args.quiet_times and not args.tables_only:
        raise UsageError("--quiet-times is for --tables-only; give both or neither")
    if args.tables_only:
        tables = write_tables(args.out, is_quiet_time=args.quiet_times)
        print(json.dumps(tables.to_json()) if args.json else tables.summary())
        if args.quiet_times and not args.json:
            print(_slowdown_text(read_manifest(args.out)["slowdown"]))
        return 0
    if args.machine_code:
        from tvm_helper.measure.machine_code import write_machine_code

        with campaign_progress(is_quiet=args.json or args.quiet) as show:
            table = write_machine_code(args.out, on_progress=show)
        if args.json:
            print(json.dumps({"programs": len(table.columns), "targets": dict(table.targets)}))
        else:
            print(f"machine code of {counted(len(table.columns), 'program')} in {args.out}")
        return 0
    options = measure_options(vars(args))
    options.check()
    from tvm_helper.measure.campaign import run_campaign

    with campaign_progress(is_quiet=args.json or args.quiet) as show:
        report = run_campaign(
            options, args.out, device_folders=device_folders(args.devices), on_progress=show
        )
    print(json.dumps(report.to_json()) if args.json else report.summary())
    return 0


def _slowdown_text(slowdown: float) -> str:
    if slowdown == 1:
        return "times as measured: the reference program was not timed, or never slower"
    return f"times divided by {slowdown}, the mean slowdown of the reference program"


def measure_options(values: Mapping[str, Any]) -> MeasureOptions:
    """Returns the settings: defaults, overridden by --config, by --set, and by other options.

    Args:
        values: name -> value of the command's options.

    Raises:
        UsageError: an unknown setting or a value of the wrong type.
    """
    given = given_fields(MeasureOptions, {**values, "machine_code": None})
    return load_config(MeasureOptions, values["config"], overrides=values["set"], given=given)
