"""`cdmpp analytic`: closed-form latency models; one module a model."""

from __future__ import annotations

import argparse
import importlib

#: Modules of `cdmpp.cli`, in the order of the help. Each has `register(subparsers)`.
_MODULES = ("conv", "embedding", "operator")


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the `analytic` command and its subcommands."""
    parser = subparsers.add_parser(
        "analytic", help="closed-form models: convolutions, embedding lookups, operators"
    )
    models = parser.add_subparsers(dest="analytic_model", required=True, metavar="MODEL")
    for name in _MODULES:
        importlib.import_module(f"cdmpp.cli.analytic.{name}").register(models)
