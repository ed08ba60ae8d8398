"""Options for how torch runs a network, the same for all commands."""

from __future__ import annotations

import argparse

from cdmpp.cli.shared.option_table import add_table
from cdmpp.networks.graph.execution import DTYPES, LAYOUTS, MODES, Running

#: Names of the options, as attributes.
RUNNING = ("dtype", "layout", "compiled", "mode")


def add_running_options(parser: argparse._ActionsContainer, *, title: str) -> None:
    """Adds --dtype, --layout, --compiled and --mode.

    Args:
        title: title of the option group.
    """
    add_table(parser, f"""
        {title}:
        --dtype {"|".join(DTYPES)}  element types (default: those of the weights); amp-*: float32
            weights under torch.autocast
        --layout {"|".join(LAYOUTS)} = nchw  memory format; nhwc is torch.channels_last (default:
            nchw)
        --compiled  compiled by torch.compile (inductor)
        --mode {"|".join(MODES)}  only inference, or only training steps (default: both; compare:
            infer)
    """)  # fmt: skip


def given_running(running: Running) -> dict[str, object]:
    """Returns option -> value, false if it is the default; for `check_goes_with`."""
    given = {name: getattr(running, name) for name in RUNNING}
    return given | {"layout": running.layout != LAYOUTS[0]}
