"""`cdmpp networks`: time and memory of whole networks; one module a part."""

from __future__ import annotations

import argparse
import importlib

#: Modules of `cdmpp.cli`, in the order of the help. Each has `register(subparsers)`.
_MODULES = ("generate", "measure", "train", "data")


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the `networks` command and its subcommands."""
    parser = subparsers.add_parser(
        "networks", help="whole networks: time, memory and utilisation from the operator graph"
    )
    actions = parser.add_subparsers(dest="networks_action", required=True, metavar="ACTION")
    for name in _MODULES:
        importlib.import_module(f"cdmpp.cli.networks.{name}").register(actions)
