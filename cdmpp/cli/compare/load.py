"""Options and tables of servers under load, and of predictions against measured servers."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from cdmpp.analytic.gpu_kernels.model import GpuKernels
from cdmpp.analytic.sweep.predict import SweptKernels
from cdmpp.cli.shared.option_table import add_table
from cdmpp.comparison.llm.config_file import read_model
from cdmpp.comparison.llm.decoder import Decoder, Parallel
from cdmpp.comparison.llm.evaluate import (
    evaluate_serving,
    groups,
    read_serving,
    report_lines,
    scores,
)
from cdmpp.comparison.llm.schedule import LEAST_SHARE, Load
from cdmpp.comparison.llm.server_options import BACKENDS, Backend, parse_server_options
from cdmpp.comparison.llm.sweep import load_cells, sweep_json, sweep_notes, sweep_rows
from cdmpp.comparison.prices import Price
from cdmpp.comparison.tables import number
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import UsageError
from cdmpp.networks.shape_text import parse_numbers
from cdmpp.text import aligned

_TIME = re.compile(r"(\d+(?:\.\d+)?) ?(ms|s)")


def add_load_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of servers under load."""
    add_table(parser, f"""
        a language model under load:
        --concurrency N[,N]  requests in flight; every answered request is followed by a new one
        --input-tokens N: int   tokens of a prompt; lengths are drawn from 80 %% of N to N
        --output-tokens N: int  tokens of an answer; lengths are drawn in the same way
        --backend {"|".join(BACKENDS)}  serving framework: its scheduler and kernels (default: vllm)
        --server-options NAME=VALUE,...  launch options of the servers by the backend's names, e.g.
            max_num_seqs=64,gpu_memory_utilization=0.85; an unknown name lists the known ones
        --target-tpot TIME   also name the cheapest configuration within this time per token, e.g.
            20ms; with --json, by is_best_within_target
        --measured FILE: Path  a few measured loads of this server, which calibrate the predictions:
            CSV or Parquet with concurrency, isl, osl, ttft_ms, tpot_ms
        --disaggregated      separate servers for prefill and decode (not supported)
        --evaluate PARQUET: Path  measured servers in the layout of llm-serving, to compare with the
            predictions; takes only --json and --model NAME=CONFIG, the config of a model in it
    """)  # fmt: skip


def check_load(
    concurrency: str | None, input_tokens: int | None, output_tokens: int | None,
    lengths: str | None,
) -> None:  # fmt: skip
    """Checks that a load has its lengths and is not combined with single passes.

    Raises:
        UsageError: a length is missing, or `lengths` (of single passes) are given too.
    """
    if concurrency is None:
        return
    if input_tokens is None or output_tokens is None:
        missing = "--input-tokens" if input_tokens is None else "--output-tokens"
        raise UsageError(f"--concurrency needs {missing} N, the length of a request")
    if lengths:
        raise UsageError(
            "--concurrency is for servers under load, --prefill and --decode-at for a single "
            "pass; leave one out"
        )


def check_evaluation(given: Collection[str]) -> None:
    """Checks that --evaluate is not combined with other options.

    Args:
        given: names of the given options.

    Raises:
        UsageError: another option is given.
    """
    others = [name for name in given if name not in ("evaluate", "model", "json", "profile")]
    if others:
        name = "NETWORK" if others[0] == "networks" else f"--{others[0].replace('_', '-')}"
        raise UsageError(
            f"{name} cannot be used with --evaluate, whose file says devices, loads and options of "
            "every server; leave it out"
        )


def refuse_disaggregated() -> None:
    """Rejects separate servers for prefill and decode.

    Raises:
        UsageError: always.
    """
    raise UsageError(
        "--disaggregated is not supported: transfers of the KV cache between servers are not "
        "modelled. Leave it out to run prefill and decode on the same devices"
    )


def print_load(
    models: Sequence[Decoder], parallels: Sequence[Parallel], devices: Sequence[DeviceSpec],
    concurrency: str, lengths: tuple[int, int], backend: Backend | None,
    prices: Mapping[str, Price], hypothetical: frozenset[str], target: str | None,
    measured: Path | None, options: str | None, *, is_json: bool,
) -> None:  # fmt: skip
    """Prints a sweep over loads.

    Args:
        options: launch options of the servers, `NAME=VALUE,...`.

    Raises:
        CdmppError: a number is invalid, the devices cannot share a model, or no configuration has a
            prediction.
    """
    target_s = None if target is None else _seconds(target)
    users = parse_numbers(concurrency, "--concurrency")
    loads = [Load(one, *lengths, LEAST_SHARE) for one in users]
    cells = load_cells(
        models, parallels, devices, loads, backend or "vllm", SweptKernels.packaged(), prices,
        hypothetical, measured, None if options is None else parse_server_options(options),
    )  # fmt: skip
    if is_json:
        print(json.dumps(sweep_json(cells, target_s), allow_nan=False))
        return
    for name in dict.fromkeys(cell.network for cell in cells):
        part = [cell for cell in cells if cell.network == name]
        title = f"{name}, {lengths[0]:,} tokens in, {lengths[1]:,} out, {backend or 'vllm'}"
        title += f" ({options})" if options else ""
        print(f"{title}\n\n{aligned(sweep_rows(part, number))}\n")
        said = sweep_notes(part, target_s)
        print("".join(f"  {note}\n" for note in said), end="\n" if said else "")
    print("* on the Pareto front of time per token and cost; ? hypothetical")


def _seconds(text: str) -> float:
    found = _TIME.fullmatch(text)
    if found is None or not float(found[1]):
        raise UsageError(f"--target-tpot {text!r}, expected a time above 0, e.g. 20ms or 0.02s")
    return float(found[1]) * (1e-3 if found[2] == "ms" else 1.0)


def print_evaluation(path: Path, configs: Sequence[str], *, is_json: bool) -> None:
    """Prints the packaged models' errors on measured servers.

    Args:
        configs: configs of models that are not shipped, as `NAME=config.json`.

    Raises:
        CdmppError: a file cannot be read.
    """
    models = {}
    for text in configs:
        name, separator, file = text.partition("=")
        if not separator:
            raise UsageError(
                f"--model {text!r} beside --evaluate, expected NAME=config.json with the name that "
                "the rows have"
            )
        models[name] = read_model(file, name=name)
    report = evaluate_serving(read_serving(path), GpuKernels.packaged(), models)
    if is_json:
        each = {name: asdict(scores(part, report.rows)) for name, part in groups(report).items()}
        print(json.dumps({"scores": each, "left_out": dict(report.left_out)}, allow_nan=False))
        return
    print(aligned(report_lines(report), "lr") if report.rows else "no row could be predicted")
    print("\nleft out:" if report.left_out else "")
    for reason, count in report.left_out.items():
        print(f"  {count:,} {reason}")
