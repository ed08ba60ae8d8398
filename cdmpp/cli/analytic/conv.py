"""Options that the `analytic conv` commands share."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from cdmpp.analytic.conv.algorithms import ConvAlgorithm
from cdmpp.analytic.conv.collect.cudnn_collect import read_layer_list
from cdmpp.analytic.conv.shapes import ConvShapes
from cdmpp.cli.shared.option_table import add_table
from cdmpp.errors import UsageError

LAYER_HELP = "BATCH,CIN,WIDTH,COUT,KERNEL[,STRIDE[,PADDING]]"


def add_model_option(parser: argparse.ArgumentParser) -> None:
    """Adds --model."""
    add_table(parser, """
        --model PATH: Path = pretrained  model written by `fit` (default: pretrained, the packaged
            model of layers on NVIDIA GPUs)
    """)  # fmt: skip


def add_layer_options(group: argparse._ActionsContainer) -> None:
    """Adds --layer and --list."""
    add_table(group, f"""
        --layer SIZES...   {LAYER_HELP}; repeatable
        --list FILE: Path  file of layers: their number, then one layer per line
    """)  # fmt: skip


def given_layers(layers: Sequence[str], layer_list: Path | None) -> ConvShapes:
    """Returns the layers of --layer or of --list.

    Raises:
        UsageError, DataError: as `parse_layers` and `read_layer_list`.
    """
    return parse_layers(layers) if layer_list is None else read_layer_list(layer_list)


def parse_layers(texts: Sequence[str]) -> ConvShapes:
    """Returns layers from texts BATCH,CIN,WIDTH,COUT,KERNEL[,STRIDE[,PADDING]].

    Raises:
        UsageError: a text has another form.
    """
    rows = []
    for text in texts:
        words = text.split(",")
        if not 5 <= len(words) <= 7 or not all(word.strip().isdecimal() for word in words):
            raise UsageError(
                f"got the layer {text!r}; expected {LAYER_HELP}, e.g. 32,64,56,128,3,1,1"
            )
        rows.append([*map(int, words), *(1, 0)[len(words) - 5 :]])
    columns = list(zip(*rows, strict=True))
    return ConvShapes.of(*columns)


def parse_algorithm(text: str) -> int:
    """Returns cuDNN's number of an algorithm, from its name or number."""
    try:
        return int(ConvAlgorithm(int(text)) if text.isdecimal() else ConvAlgorithm[text.upper()])
    except (KeyError, ValueError):
        known = ", ".join(algorithm.name.lower() for algorithm in ConvAlgorithm)
        raise UsageError(f"unknown algorithm {text!r}; known: {known}, or 0 to 7") from None
