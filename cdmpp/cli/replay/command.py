"""`cdmpp replay`: the end-to-end latency of a network, from the times of its operators."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdmpp.cli.shared.options import add_output_options

if TYPE_CHECKING:
    from cdmpp.replay.summary import Outcome

_US = 1e-6


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    parser.description = (
        "Reads a network (.onnx, .pt2), tasks of Tenset's network_info, a graph of operators "
        "(.json, .yaml), traces of torch.profiler or ExecutionTraceObserver, or a training "
        "preset; gives every operator a time, and replays them on the queues of their devices. "
        "An operator that no model covers gets a roofline bound, is listed and widens the "
        "interval."
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="see docs/replay.md")
    _add_cost_options(parser)
    _add_engine_options(parser)
    _add_trace_options(parser)
    out = parser.add_argument_group("results")
    out.add_argument(
        "--out", type=Path, metavar="DIR",
        help="write replay.json, graph.json, timeline.html and trace.json (chrome) there",
    )  # fmt: skip
    add_output_options(parser)


def _add_cost_options(parser: argparse.ArgumentParser) -> None:
    costs = parser.add_argument_group("what operators cost")
    costs.add_argument(
        "--device", action="append", metavar="LABEL",
        help="hardware; several are replayed one after the other",
    )  # fmt: skip
    costs.add_argument(
        "--device-spec", action="append", type=Path, metavar="YAML",
        help="hardware that nobody measured, described as in cdmpp/devices (networks)",
    )  # fmt: skip
    costs.add_argument(
        "--model", type=Path, default=Path("pretrained"), metavar="RUN",
        help="cost model of networks and tasks: run folder (default: pretrained)",
    )  # fmt: skip
    costs.add_argument(
        "--schedule", metavar="WHICH",
        help="networks: first-valid (default), database:DIR, draws:N; Tenset tasks: best (default) "
        "or draws:N",
    )  # fmt: skip
    costs.add_argument("--seed", type=int, default=0, help="of samples and draws (default: 0)")
    costs.add_argument(
        "--times", type=Path, metavar="JSON",
        help="known times: {id, name, task or kind of an operator: seconds}",
    )  # fmt: skip
    costs.add_argument(
        "--dataset",
        type=Path,
        metavar="DIR",
        help="records of Tenset tasks (default: the folder that holds network_info)",
    )
    costs.add_argument(
        "--records-of", metavar="LABEL", help="whose records (default: those of --device)"
    )
    costs.add_argument(
        "--recorded", action="store_true", help="take the recorded times instead of predicted ones"
    )
    costs.add_argument(
        "--no-machine-code", action="store_true",
        help="do not compile a network's kernels, where the model can read machine code",
    )  # fmt: skip
    costs.add_argument(
        "--measure", action="store_true",
        help="compile and time the same network on this machine's CPU, and print both side by side",
    )  # fmt: skip


def _add_engine_options(parser: argparse.ArgumentParser) -> None:
    engine = parser.add_argument_group("the replay")
    engine.add_argument(
        "--policy", default="issue-order", choices=("issue-order", "earliest-ready"),
        help="order within a queue (default: issue-order)",
    )  # fmt: skip
    engine.add_argument(
        "--launch-us", type=float, default=0.0, metavar="US", help="host time to issue an operator"
    )
    engine.add_argument(
        "--gap", default="0", metavar="US|FILE",
        help="pause between two operators: µs, or a file of --calibrate-gap",
    )  # fmt: skip
    engine.add_argument(
        "--calibrate-gap", type=Path, metavar="FILE",
        help="with --measure: write the gap that makes the replay of measured operators right",
    )  # fmt: skip
    engine.add_argument(
        "--scale", action="append", default=[], metavar="NAME=FACTOR",
        help="what if these operators took that share of their time, e.g. conv2d=0.5",
    )  # fmt: skip


def _add_trace_options(parser: argparse.ArgumentParser) -> None:
    traces = parser.add_argument_group("traces and training presets")
    traces.add_argument(
        "--iterations", metavar="FIRST:LAST", help="of a trace with profiler.step(), from 0"
    )
    traces.add_argument(
        "--statistics", choices=("brief", "clean", "full"), help="print the operators of the files"
    )
    traces.add_argument(
        "--save-overheads", type=Path, metavar="FILE", help="extract T1 to T5 and write them"
    )
    traces.add_argument(
        "--walk", choices=("reference", "head"), help="walk the iteration on host and device clocks"
    )
    traces.add_argument(
        "--overheads", action="append", type=Path, metavar="FILE",
        help="for --walk: host overheads; several are averaged (default: those of the trace)",
    )  # fmt: skip
    traces.add_argument(
        "--pooled-overheads", action="store_true",
        help="for --walk: operators without overheads get the mean over all operators",
    )  # fmt: skip
    traces.add_argument(
        "--reproduce-defects", action="store_true",
        help="for --walk: count the optimiser as the first version does (T2 and T3 twice, no T4)",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    from cdmpp.cli.replay.inputs import one_kind
    from cdmpp.errors import UsageError

    kind = one_kind(args.files)
    if kind != "network" and (args.measure or args.calibrate_gap):
        raise UsageError(
            f"--measure compiles a network (.onnx, .pt2), got {args.files[0]}; leave it out"
        )
    if args.calibrate_gap and not args.measure:
        raise UsageError("--calibrate-gap needs --measure, which times the network; add it")
    if args.walk and kind not in ("chrome", "dlrm"):
        raise UsageError(
            f"--walk {args.walk}: expected a trace of torch.profiler or a training preset, got "
            f"{args.files[0]}"
        )
    if kind in ("chrome", "dlrm"):
        from cdmpp.cli.replay.training import run_training

        return run_training(args, kind)
    from cdmpp.cli.replay.costs import outcomes_of

    found = outcomes_of(args, kind)
    if args.statistics:
        return print_graph_statistics(args, found[0][0])
    return finish(args, found)


def finish(
    args: argparse.Namespace,
    found: list[tuple[Outcome, dict[str, Any] | None]],
    extra: dict[str, Any] | None = None,
) -> int:
    """Writes and prints the outcomes; returns the exit code.

    Args:
        found: (outcome, what was measured) one a device.
        extra: keys that are added to each JSON value.
    """
    from cdmpp.cli.replay.text import print_outcome
    from cdmpp.replay.summary import outcome_values

    values = [
        {**outcome_values(outcome), "measured": measured, **(extra or {})}
        for outcome, measured in found
    ]
    if args.out is not None:
        _write(args.out, found, values)
    if args.json:
        print(json.dumps(values, allow_nan=False))
        return 0
    for number, (outcome, measured) in enumerate(found):
        if number:
            print()
        print_outcome(outcome, measured)
    if args.out is not None:
        print(f"\nwritten to {args.out}: replay.json, graph.json, timeline.html, trace.json")
    return 0


def print_graph_statistics(args: argparse.Namespace, outcome: Outcome) -> int:
    """Prints the operators of a graph; returns the exit code."""
    from dataclasses import asdict

    from cdmpp.cli.replay.text import print_statistics
    from cdmpp.replay.traces.op_statistics import cleaned, graph_statistics

    rows = graph_statistics(outcome.costs.graph)
    rows = cleaned(rows) if args.statistics == "clean" else rows
    if args.json:
        print(json.dumps([asdict(row) for row in rows]))
    else:
        print_statistics(rows, args.statistics)
    return 0


def engine_options(args: argparse.Namespace) -> Any:
    """Returns the `ReplayOptions` of the options."""
    from cdmpp.replay.calibration import gap_of
    from cdmpp.replay.engine import ReplayOptions

    return ReplayOptions(policy=args.policy, launch_s=_US * args.launch_us, gap_s=gap_of(args.gap))


def scales_of(args: argparse.Namespace) -> dict[str, float]:
    """Returns the factors of --scale."""
    from cdmpp.replay.what_if import parse_scale

    return dict(parse_scale(text) for text in args.scale)


def _write(
    folder: Path,
    found: list[tuple[Outcome, dict[str, Any] | None]],
    values: list[dict[str, Any]],
) -> None:
    from cdmpp.files.atomic import make_folder, write_json
    from cdmpp.replay.graph_file import write_graph
    from cdmpp.replay.timeline import write_chrome_trace
    from cdmpp.report.replay_page import write_timeline_page

    make_folder(folder, what="results of the replay")
    write_json(folder / "replay.json", values)
    for number, (outcome, _) in enumerate(found):
        suffix = "" if len(found) == 1 else f"-{number + 1}"
        times = {
            one.id: seconds
            for one, seconds in zip(
                outcome.costs.graph.operators, outcome.expected.times_s, strict=True
            )
        }
        write_graph(folder / f"graph{suffix}.json", outcome.costs.graph.scaled(times))
        write_chrome_trace(folder / f"trace{suffix}.json", outcome.expected)
        write_timeline_page(folder / f"timeline{suffix}.html", outcome)
