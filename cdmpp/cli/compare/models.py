"""Options of language models, and their values."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from cdmpp.cli.shared.option_table import add_table
from cdmpp.comparison.llm.config_file import read_model
from cdmpp.comparison.llm.decoder import FORMATS, Decoder, Parallel
from cdmpp.comparison.transformer import all_parallels, parse_transformer
from cdmpp.networks.shape_text import parse_numbers


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of language models."""
    group = parser.add_argument_group("a language model")
    group.add_argument(
        "--model", action="append", default=[], metavar="CONFIG",
        help=
            "Hugging Face's config.json, the folder that it is in, or the name of a shipped "
            "config, e.g. Qwen/Qwen3-30B-A3B; may be repeated",
    )  # fmt: skip
    group.add_argument(
        "--transformer", action="append", default=[], metavar="NAME=N,...",
        help=
            "a dense language model by its shape: "
            "layers=32,width=4096,heads=32,kv_heads=8,ffn=14336,vocab=128256,dtype=bf16 (or "
            "fp16, fp8, fp4); also head_size, kv_dtype=fp8, name=TEXT; may be repeated",
    )  # fmt: skip
    add_table(group, f"""
        --precision {"|".join(FORMATS)}  format of all weights of a --model's layers (default: as in
            its config)
        --kv-precision bf16|fp8  type of its KV cache (default: as in its config)
        --prefill N[,N]          prefill: tokens of the prompt
        --decode-at N[,N]        decode one token: tokens in the KV cache before it
        --tensor-parallel N[,N]  devices that share every matrix product (default: 1)
        --data-parallel-attention N[,N]  replicas of attention that share the experts (default: 1)
        --expert-parallel N[,N]  groups of experts, spread over all devices (default: 1)
        --pipeline-parallel N[,N]  stages of layers (default: 1)
        --operators              also print the time of each operator of each kind of layer
    """)  # fmt: skip


def models_of(
    configs: Sequence[str], shapes: Sequence[str], precision: str | None, kv_precision: str | None
) -> list[Decoder]:
    """Returns the requested models: those given by shape, then those given by config.

    Raises:
        CdmppError: a model cannot be read.
    """
    of_shapes = [parse_transformer(text).decoder for text in shapes]
    return of_shapes + [
        read_model(text, precision=precision, kv_precision=kv_precision) for text in configs
    ]


def parallels_of(
    tensor: str | None, data: str | None, expert: str | None, pipeline: str | None
) -> list[Parallel]:
    """Returns all combinations of parallelism; see `all_parallels`.

    Raises:
        UsageError: a number is invalid, or no combination is possible.
    """
    return all_parallels(
        parse_numbers(tensor or "1", "--tensor-parallel"),
        parse_numbers(data or "1", "--data-parallel-attention"),
        parse_numbers(expert or "1", "--expert-parallel"),
        parse_numbers(pipeline or "1", "--pipeline-parallel"),
    )
