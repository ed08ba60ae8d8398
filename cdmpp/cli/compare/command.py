"""`cdmpp compare`: compares networks on many devices: time, memory, cost, energy."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from cdmpp.analytic.sweep.predict import SweptKernels
from cdmpp.api.compare import onnx_cells
from cdmpp.cli.compare.load import (
    add_load_options,
    check_evaluation,
    check_load,
    print_evaluation,
    print_load,
    refuse_disaggregated,
)
from cdmpp.cli.compare.models import (
    add_model_options,
    models_of,
    parallels_of,
)
from cdmpp.cli.shared.option_table import add_table
from cdmpp.cli.shared.options import (
    add_device_spec_option,
    add_output_options,
    check_goes_with,
    command_line,
    given_options,
    labels_of,
)
from cdmpp.cli.shared.running import add_running_options, given_running
from cdmpp.comparison.cell import OBJECTIVES
from cdmpp.comparison.page import comparison_page
from cdmpp.comparison.prices import prices_of
from cdmpp.comparison.run import Question, TorchNetwork, asked_devices, compare
from cdmpp.comparison.tables import groups, json_rows, notes, operator_tables, rows, titles
from cdmpp.comparison.transformer import all_passes
from cdmpp.comparison.what_if import parse_scales
from cdmpp.errors import UsageError
from cdmpp.files.atomic import write_text
from cdmpp.networks.graph.execution import Running
from cdmpp.networks.shape_text import parse_input_shapes, parse_numbers
from cdmpp.replay.file_kind import file_kind
from cdmpp.report.page import check_page_file, page_html
from cdmpp.text import aligned

_DEFAULT_INPUT = "3x224x224"
_FILES = (".onnx", ".pt2")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    parser.description = (
        "Predicts networks on many devices and compares them: latency with its interval, "
        "memory, throughput, cost, an upper bound of the energy and the Pareto front. Nothing "
        "is run."
    )
    parser.add_argument(
        "networks", nargs="*", metavar="NETWORK",
        help=
            "MODULE:FACTORY of a torch network, followed by @ and its inputs "
            f"(nets.py:bert@384:int64; several: @3x224x224+10; default: @{_DEFAULT_INPUT}), an "
            "ONNX file, or .pt2 as torch.export.save writes it",
    )  # fmt: skip
    add_model_options(parser)
    add_load_options(parser)
    group = add_table(parser, """
        devices:
        --device LABEL[,LABEL]...  devices; may be repeated
        --all                      all devices of `cdmpp device list`
    """)  # fmt: skip
    add_device_spec_option(group)
    add_table(group, """
        --scale NAME=FACTOR,...      what if: also compare every device with its bandwidth, peak,
            memory, link or power scaled, e.g. bandwidth=1.5,peak=2
        --prices YAML...: Path = []  your price files, in the format of cdmpp/devices/prices; they
            take precedence over the shipped prices
        --provider NAME              only the shipped prices of this provider, e.g. 'Oracle Cloud'
    """)  # fmt: skip
    add_table(parser, f"""
        --batch N[,N]  samples or sequences in one run (default: 1; ONNX: as in the file, required
            if its first axes are dynamic)
        --input NAME=SHAPE...  ONNX: full shape of an input with dynamic sizes
        --objective {"|".join(OBJECTIVES)} = latency  sort the tables by this (default: latency)
        --export           trace torch networks with torch.export first: slower, supports more code
            than torch.fx
        --html FILE: Path  also write an HTML page
    """)  # fmt: skip
    add_running_options(parser, title="how torch runs its networks")
    add_output_options(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    if args.disaggregated:
        refuse_disaggregated()
    if args.evaluate:
        check_evaluation(given_options(add_options, vars(args)))
        print_evaluation(args.evaluate, args.model, is_json=args.json)
        return 0
    lengths = args.prefill or args.decode_at
    check_load(args.concurrency, args.input_tokens, args.output_tokens, lengths)
    running = Running(args.dtype, args.layout, args.compiled, args.mode)
    if args.networks or args.transformer or args.model:
        of_code = [text for text in args.networks if not text.endswith(_FILES)]
        check_goes_with("MODULE:FACTORY", of_code, export=args.export)
        onnx = [text for text in args.networks if text.endswith(".onnx")]
        either = "MODULE:FACTORY, FILE.onnx, --model or --transformer"
        has_batch = of_code or onnx or args.model or args.transformer
        check_goes_with(either, has_batch, batch=args.batch)
        check_goes_with("FILE.onnx", onnx, input=args.input)
        of_torch = [text for text in args.networks if text not in onnx]
        check_goes_with("MODULE:FACTORY or FILE.pt2", of_torch, **given_running(running))
        both = "--model or --transformer"
        check_goes_with(
            both, args.model or args.transformer, prefill=args.prefill, decode_at=args.decode_at,
            tensor_parallel=args.tensor_parallel, pipeline_parallel=args.pipeline_parallel,
            operators=args.operators, concurrency=args.concurrency,
        )  # fmt: skip
        check_goes_with(
            "--model", args.model, precision=args.precision, kv_precision=args.kv_precision,
            expert_parallel=args.expert_parallel,
            data_parallel_attention=args.data_parallel_attention,
        )  # fmt: skip
        check_goes_with(
            "--concurrency", args.concurrency, input_tokens=args.input_tokens,
            output_tokens=args.output_tokens, backend=args.backend, target_tpot=args.target_tpot,
            measured=args.measured, server_options=args.server_options,
        )  # fmt: skip
        check_goes_with(
            "language models", not args.networks, ", ".join(args.networks),
            concurrency=args.concurrency,
        )  # fmt: skip
        check_goes_with(
            "single passes", not args.concurrency, "--concurrency", batch=args.batch,
            operators=args.operators, objective=args.objective != OBJECTIVES[0],
        )  # fmt: skip
    check_page_file(args.html)
    scales = parse_scales(args.scale) if args.scale else {}
    devices, hypothetical = asked_devices(
        labels_of(args.device), args.device_spec or (), scales, takes_all=args.all
    )
    batches = parse_numbers(args.batch or "1", "--batch")
    prices = prices_of(args.prices, [spec.name for spec in devices], provider=args.provider)
    models = models_of(args.model, args.transformer, args.precision, args.kv_precision)
    parallels = parallels_of(
        args.tensor_parallel,
        args.data_parallel_attention,
        args.expert_parallel,
        args.pipeline_parallel,
    )
    if args.concurrency:
        if args.html:
            raise UsageError("--html: there is no page of a server under load; use --json")
        print_load(
            models, parallels, devices, args.concurrency,
            (args.input_tokens, args.output_tokens), args.backend, prices, hypothetical,
            args.target_tpot, args.measured, args.server_options, is_json=args.json,
        )  # fmt: skip
        return 0
    cells = compare(
        Question(
            devices, hypothetical,
            networks=_networks(args.networks, "export" if args.export else "fx"),
            transformers=models,
            passes=all_passes(
                parse_numbers(args.prefill, "--prefill"),
                parse_numbers(args.decode_at, "--decode-at"), batches, parallels,
            ),
            batches=batches, prices=prices, running=running,
        ),
        onnx_cells=partial(
            onnx_cells, batches=batches if args.batch else [None],
            shapes=parse_input_shapes(args.input or ()),
        ),
        kernels=SweptKernels.packaged,
    )  # fmt: skip
    if args.html:
        page = comparison_page(cells, args.objective, command_line())
        write_text(args.html, page_html(page))
    if args.json:
        print(json.dumps(json_rows(cells, args.objective), allow_nan=False))
        return 0
    for title, part in groups(cells):
        lines = rows(part, args.objective)
        print(f"{title}\n\n{aligned([titles(part), *lines])}\n" if lines else f"{title}\n")
        for layers, table in operator_tables(part) if args.operators else ():
            print(f"{layers}\n\n{aligned(table, 'lr')}\n")
        said = notes(part, args.objective)
        print("".join(f"  {note}\n" for note in said), end="\n" if said else "")
    print("= tied with others of this rank: their intervals overlap")
    print("* on the Pareto front of cost (or energy) and latency; ? hypothetical; [1] see the note")
    return 0


def _networks(texts: Sequence[str], method: str) -> list[TorchNetwork]:
    """Returns the distinct networks; those that share a short name are named by their text."""
    found = {text: _network(text, method) for text in texts}
    names = [one.name for one in found.values()]
    return [
        replace(one, name=text) if names.count(one.name) > 1 else one for text, one in found.items()
    ]


def _network(text: str, method: str) -> TorchNetwork:
    path = Path(text)
    if text.endswith(_FILES) or (path.is_file() and path.suffix != ".py"):
        file_kind(path, ["network"])
        return TorchNetwork(path.stem, path)
    from cdmpp.cli.predict.torch import parse_inputs
    from cdmpp.networks.graph.factory import load_factory

    factory, _, inputs = text.partition("@")
    shapes, dtypes = parse_inputs((inputs or _DEFAULT_INPUT).split("+"))
    name = factory.rpartition(":")[2]
    return TorchNetwork(name, load_factory(factory), shapes, dtypes, method)
