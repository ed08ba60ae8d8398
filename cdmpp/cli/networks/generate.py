"""`cdmpp networks generate`: random architectures and their operator graphs, without running."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from cdmpp.cli.shared.option_table import add_table
from cdmpp.cli.shared.options import add_config_options, add_output_options
from cdmpp.config import load_config, to_dict
from cdmpp.networks.architectures.generator import generate
from cdmpp.networks.campaign.options import NetworksConfig
from cdmpp.networks.campaign.tables import write_graphs
from cdmpp.text import counted


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `networks generate`."""
    add_table(parser, """
        --out DIR: Path required  data set of graphs without labels
    """)  # fmt: skip
    add_drawing_options(parser)
    add_output_options(parser)


def add_drawing_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the generator: --config, --set, --architectures and --seed."""
    add_config_options(
        parser,
        config="settings of the generator, see configs/networks (default: "
        "configs/networks/published.yaml)",
        setting="space.most_flops=1e9",
    )
    add_table(parser, """
        --architectures N: int  number of networks, not counting batch sizes
        --seed N: int           seed (default: 0)
    """)  # fmt: skip


def networks_config(values: Mapping[str, Any]) -> NetworksConfig:
    """Returns the settings: defaults, overridden by --config, by --set, and by other options.

    Args:
        values: name -> value of the command's options.

    Raises:
        UsageError: a setting is unknown, or a value is invalid.
    """
    given = {name: values.get(name) for name in ("architectures", "seed", "device", "force")}
    config = load_config(NetworksConfig, values["config"], overrides=values["set"], given=given)
    config.check()
    return config


def run(args: argparse.Namespace) -> int:
    """Runs `cdmpp networks generate`; returns the exit code."""
    config = networks_config(vars(args))
    values = to_dict(config)
    note = {
        "command": "cdmpp networks generate",
        "config": {name: values[name] for name in ("architectures", "seed", "space")},
    }
    networks = generate(config.space, config.architectures, seed=config.seed)
    architectures, graphs = write_graphs(args.out, networks, note=json.loads(json.dumps(note)))
    if args.json:
        print(
            json.dumps({"folder": str(args.out), "architectures": architectures, "graphs": graphs})
        )
    else:
        print(f"{args.out}: {counted(architectures, 'architecture')}, {graphs} graphs, no labels")
    return 0
