"""`cdmpp compare`: networks on many devices, side by side: time, memory, cost, energy."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from cdmpp.analytic.sweep.predict import SweptKernels
from cdmpp.api.model import load
from cdmpp.cli.shared.option_table import add_table
from cdmpp.cli.shared.options import (
    add_device_spec_option,
    add_output_options,
    check_goes_with,
    command_line,
    labels_of,
)
from cdmpp.cli.shared.running import add_running_options, given_running
from cdmpp.compare.cell import OBJECTIVES, CompareCell
from cdmpp.compare.compiled import compiled_cell
from cdmpp.compare.page import comparison_page
from cdmpp.compare.prices import prices_of
from cdmpp.compare.run import Question, TorchNetwork, asked_devices, compare
from cdmpp.compare.tables import groups, json_rows, notes, rows, titles
from cdmpp.compare.transformer import Pass, parse_transformer
from cdmpp.compare.what_if import parse_scales
from cdmpp.devices.registry import load_registry
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import UsageError
from cdmpp.files.atomic import write_text
from cdmpp.networks.graph.execution import Running
from cdmpp.networks.graph.network_file import onnx_batch
from cdmpp.networks.onnx_files.sizes import InputSizes
from cdmpp.networks.shape_text import parse_input_shapes
from cdmpp.replay.file_kind import file_kind
from cdmpp.report.page import page_html
from cdmpp.text import aligned

_DEFAULT_INPUT = "3x224x224"
_FILES = (".onnx", ".pt2")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    parser.description = (
        "Predicts networks on many devices and puts them side by side: latency with its interval, "
        "whether they fit in memory, throughput, cost, an upper bound of the energy, and which "
        "devices no other beats. Nothing is run."
    )
    parser.add_argument(
        "networks", nargs="*", metavar="NETWORK",
        help="MODULE:FACTORY of a torch network, with its inputs behind an @ "
        f"(nets.py:bert@384:int64; several: @3x224x224+10; default: @{_DEFAULT_INPUT}), an ONNX "
        "file, or .pt2 as torch.export.save writes it",
    )  # fmt: skip
    transformer = parser.add_argument_group("a transformer by its shape")
    transformer.add_argument(
        "--transformer", action="append", default=[], metavar="NAME=N,...",
        help="layers=32,width=4096,heads=32,kv_heads=8,ffn=14336,vocab=128256,dtype=bf16 (or fp16, "
        "fp8, fp4); also head_size, kv_dtype=fp8, name=TEXT; repeat it",
    )  # fmt: skip
    add_table(transformer, """
        --prefill N[,N]          tokens of a prompt that are read
        --decode-at N[,N]        tokens in the cache when one more is made
        --tensor-parallel N[,N]  devices that share every product (default: 1)
    """)  # fmt: skip
    group = add_table(parser, """
        devices:
        --device LABEL[,LABEL]...  devices; may be repeated
        --all                      all devices of `cdmpp device list`
    """)  # fmt: skip
    add_device_spec_option(group)
    add_table(group, """
        --scale NAME=FACTOR,...      what if: every device once more with bandwidth, peak, memory,
            link or power scaled, e.g. bandwidth=1.5,peak=2
        --prices YAML...: Path = []  your prices, as in cdmpp/devices/prices; they count before the
            shipped ones
        --provider NAME              only this provider's shipped prices, e.g. 'Oracle Cloud'
    """)  # fmt: skip
    add_table(parser, f"""
        --batch N[,N]  samples or sequences of one run (default: 1; ONNX: as the file says, needed
            where it leaves its first axes open)
        --input NAME=SHAPE...  ONNX: whole shape of an input whose sizes are open
        --objective {"|".join(OBJECTIVES)} = latency  what the tables are sorted by (default:
            latency)
        --export           follow torch networks with torch.export at once: slower, understands
            more code than torch.fx
        --html FILE: Path  also write the page
    """)  # fmt: skip
    add_running_options(parser, title="how torch runs its networks")
    add_output_options(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    running = Running(args.dtype, args.layout, args.compiled, args.mode)
    if args.networks or args.transformer:
        of_code = [text for text in args.networks if not text.endswith(_FILES)]
        check_goes_with("MODULE:FACTORY", of_code, export=args.export)
        onnx = [text for text in args.networks if text.endswith(".onnx")]
        either = "MODULE:FACTORY, FILE.onnx or --transformer"
        check_goes_with(either, of_code or onnx or args.transformer, batch=args.batch)
        check_goes_with("FILE.onnx", onnx, input=args.input)
        of_torch = [text for text in args.networks if text not in onnx]
        check_goes_with("MODULE:FACTORY or FILE.pt2", of_torch, **given_running(running))
        check_goes_with(
            "--transformer", args.transformer, prefill=args.prefill, decode_at=args.decode_at,
            tensor_parallel=args.tensor_parallel,
        )  # fmt: skip
    scales = parse_scales(args.scale) if args.scale else {}
    devices, hypothetical = asked_devices(
        labels_of(args.device), args.device_spec or (), scales, takes_all=args.all
    )
    batches = _numbers(args.batch or "1", "--batch")
    prices = prices_of(args.prices, [spec.name for spec in devices], provider=args.provider)
    cells = compare(
        Question(
            devices, hypothetical,
            networks=_networks(args.networks, "export" if args.export else "fx"),
            transformers=[parse_transformer(text) for text in args.transformer],
            passes=_passes(args.prefill, args.decode_at, batches, args.tensor_parallel or "1"),
            batches=batches, prices=prices, running=running,
        ),
        onnx_cells=partial(
            _onnx_cells, batches=batches if args.batch else [None],
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
        print(f"{title}\n\n{aligned([titles(part), *rows(part, args.objective)])}\n")
        said = notes(part, args.objective)
        print("".join(f"  {note}\n" for note in said), end="\n" if said else "")
    print("= cannot be told apart from others of this rank")
    print("* on the front of cost (or energy) and latency; ? hypothetical; [1] see the note")
    return 0


def _networks(texts: Sequence[str], method: str) -> list[TorchNetwork]:
    """Returns the different networks; of those with the same short name, each has its text."""
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


def _passes(
    prefill: str | None, decode_at: str | None, batches: Sequence[int], degrees: str
) -> list[Pass]:
    lengths = [("prefill", one) for one in _numbers(prefill, "--prefill")]
    lengths += [("decode", one) for one in _numbers(decode_at, "--decode-at")]
    return [
        Pass("prefill" if kind == "prefill" else "decode", length, batch, degree)
        for kind, length in lengths
        for degree in _numbers(degrees, "--tensor-parallel")
        for batch in batches
    ]


def _numbers(text: str | None, option: str) -> list[int]:
    if text is None:
        return []
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() and int(part) >= 1 for part in parts):
        raise UsageError(f"{option} {text!r}, expected whole numbers from 1 up, e.g. 1,8,32")
    return list(dict.fromkeys(int(part) for part in parts))


def _onnx_cells(
    path: Path,
    name: str,
    devices: Sequence[DeviceSpec],
    *,
    batches: Sequence[int | None],
    shapes: Mapping[str, tuple[int, ...]],
) -> list[CompareCell]:
    known, model = load_registry(), load()
    labels = [spec.name for spec in devices if spec.name in known]
    found: list[CompareCell] = []
    for batch in batches:
        samples = onnx_batch(path, InputSizes(shapes, batch))
        rows = model.network(
            path, labels, name=name, ways=("tvm-untuned",), input_shapes=shapes,
            batches=None if batch is None else [batch],
        )  # fmt: skip
        answers = {one.device: (one.latency_s, one.low_s, one.high_s, one.reasons) for one in rows}
        found += [compiled_cell(name, samples, spec, answers.get(spec.name)) for spec in devices]
    return found
