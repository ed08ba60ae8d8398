"""`cdmpp analytic conv`: the time model of cuDNN's forward convolutions."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from pathlib import Path

from cdmpp.cli.shared.options import add_output_options

_NETWORKS = ("vgg19", "inception-v1", "resnet50")
_ALGORITHMS = (
    "implicit_gemm", "implicit_precomp_gemm", "gemm", "fft", "fft_tiling", "winograd",
    "winograd_nonfused",
)  # fmt: skip
_LAYER_HELP = "BATCH,CIN,WIDTH,COUT,KERNEL[,STRIDE[,PADDING]]"


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the `conv` command and its subcommands."""
    parser = subparsers.add_parser("conv", help="cuDNN forward convolutions")
    commands = parser.add_subparsers(dest="conv_command", required=True, metavar="COMMAND")
    fit = commands.add_parser("fit", help="fit a model to measured kernels or layers")
    _add_data(fit)
    fit.add_argument(
        "--form",
        choices=("original", "smooth"),
        default="original",
        help="time formulas of kernels: three regimes, or one smooth form (default: original)",
    )
    fit.add_argument(
        "--residual",
        choices=("direct", "ratio", "none"),
        default="direct",
        help="what is learned on top of the closed forms of layers (default: direct)",
    )
    fit.add_argument(
        "--no-drift", action="store_true", help="take no drift of the measuring out of the layers"
    )
    fit.add_argument("--out", type=Path, required=True, metavar="PATH", help="where to write it")
    fit.set_defaults(run=_lazily("conv_models", "run_fit"))
    evaluate = commands.add_parser(
        "evaluate", help="judge a model on the rows it was not fitted on"
    )
    _add_model(evaluate)
    _add_data(evaluate)
    evaluate.add_argument("--plots", type=Path, metavar="DIR", help="write SVG plots there")
    evaluate.set_defaults(run=_lazily("conv_models", "run_evaluate"))
    predict = commands.add_parser("predict", help="time, algorithm and limit of layers")
    _add_model(predict)
    _add_layers(predict)
    predict.set_defaults(run=_lazily("conv_predict", "run_predict"))
    pick = commands.add_parser("pick", help="which algorithm is fastest for a layer")
    _add_model(pick)
    _add_layers(pick)
    pick.set_defaults(run=_lazily("conv_predict", "run_pick"))
    _add_collect(commands)


def _lazily(module: str, name: str) -> Callable[[argparse.Namespace], int]:
    def run(args: argparse.Namespace) -> int:
        code: int = getattr(importlib.import_module(f"cdmpp.cli.analytic.{module}"), name)(args)
        return code

    return run


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", type=Path, required=True, metavar="PATH", help="what `fit` wrote"
    )


def _add_data(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--tables", type=Path, metavar="DIR", help="folder of workbooks, one a kernel variant"
    )
    source.add_argument(
        "--layers", type=Path, metavar="CSV", help="layers with their fastest time, no counters"
    )
    parser.add_argument(
        "--algo-convention",
        choices=("cudnn", "readme"),
        help="meaning of the algorithm numbers (default: what the files say)",
    )
    parser.add_argument(
        "--no-check", action="store_true", help="accept rows that contradict the convention"
    )
    parser.add_argument(
        "--split",
        choices=("sheets", "original", "family", "octave", "none"),
        help="rows to fit and to judge: the sheets of the workbooks (their default), as the "
        "original, held-out sizes (default of layers), held-out octaves, or all for both",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the split")
    parser.add_argument("--device", metavar="NAME", help="label of the GPU of the workbooks")
    add_output_options(parser)


def _add_layers(parser: argparse.ArgumentParser) -> None:
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument(
        "--layer", action="append", default=None, metavar="SIZES", help=f"{_LAYER_HELP}; repeatable"
    )
    group.add_argument("--list", type=Path, metavar="FILE", help="file of layers (a count, lines)")
    group.add_argument("--network", choices=_NETWORKS, help="the convolutions of a network")
    parser.add_argument("--batch", type=int, default=128, metavar="N", help="of --network")
    parser.add_argument("--device", metavar="NAME", help="label of the GPU")
    add_output_options(parser)


def _add_collect(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    collect = commands.add_parser("collect", help="measure on a machine with an NVIDIA GPU")
    group = collect.add_mutually_exclusive_group(required=True)
    group.add_argument("--layer", action="append", metavar="SIZES", help=_LAYER_HELP)
    group.add_argument("--list", type=Path, metavar="FILE", help="file of layers (a count, lines)")
    group.add_argument(
        "--grid", choices=_ALGORITHMS, help="the original's training layers of an algorithm"
    )
    collect.add_argument(
        "--algorithm",
        action="append",
        default=[],
        metavar="NAME",
        help="name or cuDNN's number; repeatable (default: all that a layer allows)",
    )
    collect.add_argument("--free", action="store_true", help="let cuDNN choose the algorithm")
    collect.add_argument(
        "--operator",
        choices=("maxpool", "maxpool_gradient", "conv_1x1", "data_layout", "conv_grad"),
        help="measure this operator in torch instead",
    )
    collect.add_argument("--repeats", type=int, default=10, metavar="N", help="timed runs")
    collect.add_argument("--warmups", type=int, default=3, metavar="N", help="runs before them")
    collect.add_argument(
        "--flush", type=int, default=0, metavar="MIB", help="copy so much before each timed run"
    )
    collect.add_argument(
        "--math", choices=("fma", "default", "tensor"), default="fma", help="fma = fp32 only"
    )
    collect.add_argument(
        "--counters", action="store_true", help="also read the counters, with ncu (slow)"
    )
    collect.add_argument("--kernels", type=Path, metavar="YAML", help="your table of kernel names")
    collect.add_argument("--limit", type=int, metavar="N", help="only the first N layers")
    collect.add_argument("--gpu", metavar="NAME", help="label of the GPU, for the layer file")
    collect.add_argument(
        "--out", type=Path, metavar="PATH", help="CSV of layers; with --counters a folder"
    )
    add_output_options(collect)
    collect.set_defaults(run=_lazily("conv_collect", "run_collect"))
