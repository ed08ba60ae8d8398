"""`cdmpp networks measure`: time, memory and utilisation of random networks on this machine."""

from __future__ import annotations

import argparse
import json

from cdmpp.cli.networks.generate import add_drawing_options, networks_config
from cdmpp.cli.shared.option_table import add_table
from cdmpp.cli.shared.options import (
    add_devices_option,
    add_force_option,
    add_output_options,
    device_folders,
)
from cdmpp.cli.shared.progress import campaign_progress
from cdmpp.networks.campaign.run import measure_networks
from cdmpp.networks.campaign.tables import write_tables


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `networks measure`."""
    add_table(parser, """
        --out DIR: Path required  output folder of the campaign and data set; the same command
            resumes it
        --device LABEL            of this machine, see `device list`
    """)  # fmt: skip
    add_devices_option(parser)
    add_force_option(parser)
    add_drawing_options(parser)
    add_table(parser, """
        --tables-only  measure nothing; write the data set of an interrupted campaign
    """)  # fmt: skip
    add_output_options(parser)


def run(args: argparse.Namespace) -> int:
    """Runs `cdmpp networks measure`; returns the exit code."""
    if args.tables_only:
        tables = write_tables(args.out)
        print(json.dumps(tables.to_json()) if args.json else tables.summary())
        return 0
    config = networks_config(vars(args))
    with campaign_progress(is_quiet=args.json or args.quiet) as show:
        report = measure_networks(
            config, args.out, device_folders=device_folders(args.devices), on_progress=show
        )
    print(json.dumps(report.to_json()) if args.json else report.summary())
    return 0
