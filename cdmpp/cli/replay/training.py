"""`cdmpp replay` for profiler traces and training presets: graphs, overheads and the host walk."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from cdmpp.cli.shared.options import is_quiet

if TYPE_CHECKING:
    from cdmpp.cli.replay.inputs import TraceInput
    from cdmpp.replay.traces.iteration_walk import Walk, WalkedOperator
    from cdmpp.replay.traces.overheads import HostOverheads


def run_training(args: argparse.Namespace, kind: str) -> int:
    """Runs the command; returns the exit code."""
    return _run_trace(args) if kind == "chrome" else _run_preset(args)


def _run_trace(args: argparse.Namespace) -> int:
    from cdmpp.cli.replay.command import finish
    from cdmpp.cli.replay.costs import graph_outcomes
    from cdmpp.cli.replay.inputs import read_traces, trace_graph
    from cdmpp.replay.traces.trace_graph import walked_operators
    from cdmpp.replay.transfers import Links

    traces = read_traces(args.files, args)
    if args.statistics:
        return _statistics(args, traces)
    overheads = _trace_overheads(traces, args) if args.save_overheads or args.walk else None
    if args.save_overheads and overheads is not None:
        from cdmpp.replay.traces.overheads import write_overheads

        write_overheads(args.save_overheads, overheads)
        if not is_quiet(args):
            print(f"T1 to T5 written to {args.save_overheads}", file=sys.stderr)
    if args.walk:
        assert overheads is not None
        # The walk is of one iteration; ranks wait for each other.
        walked = [walked_operators(iterations[-1]) for iterations in traces.ranks]
        return _walk(args, walked, _given_overheads(args) or overheads)
    graph = trace_graph(traces, args.files)
    return finish(args, graph_outcomes(args, graph, Links()))


def _run_preset(args: argparse.Namespace) -> int:
    from cdmpp.analytic.kernels.times import KernelTimes
    from cdmpp.cli.replay.command import finish
    from cdmpp.cli.replay.costs import graph_outcomes, labels
    from cdmpp.devices.registry import get_device
    from cdmpp.errors import UsageError
    from cdmpp.replay.traces.dlrm import (
        dlrm_iteration,
        iteration_graph,
        load_dlrm,
        walked_iteration,
    )
    from cdmpp.replay.transfers import Links

    preset = load_dlrm(args.files[0])
    named = labels(args)
    if len(named) != 1:
        raise UsageError(
            f"a training preset needs one GPU, got {', '.join(named) or 'none'}; expected --device "
            "LABEL, such as v100 (`cdmpp device list`)"
        )
    if args.save_overheads or args.statistics == "full":
        raise UsageError("overheads and full statistics are those of a trace, not of a preset")
    operators = dlrm_iteration(preset)
    times = KernelTimes(get_device(named[0]))
    if args.walk:
        given = _given_overheads(args)
        if given is None:
            raise UsageError(
                "a training preset has no host overheads; expected --overheads FILE, from: cdmpp "
                "replay TRACE --save-overheads FILE"
            )
        return _walk(args, [walked_iteration(operators, times)], given)
    graph = iteration_graph(operators, times, name=preset.name, device=named[0])
    found = graph_outcomes(args, graph, Links(), is_analytic=True)
    if args.statistics:
        from cdmpp.cli.replay.command import print_graph_statistics

        return print_graph_statistics(args, found[0][0])
    return finish(args, found)


def _statistics(args: argparse.Namespace, traces: TraceInput) -> int:
    from cdmpp.cli.replay.text import print_statistics
    from cdmpp.replay.traces.op_statistics import cleaned, trace_statistics

    rows = trace_statistics(one for iterations in traces.ranks for one in iterations)
    rows = cleaned(rows) if args.statistics == "clean" else rows
    if args.json:
        print(json.dumps([asdict(row) for row in rows]))
    else:
        print_statistics(rows, args.statistics)
    return 0


def _trace_overheads(traces: TraceInput, args: argparse.Namespace) -> HostOverheads:
    from cdmpp.replay.traces.overheads import extract_overheads, merged

    return merged(
        [
            extract_overheads(iterations, source=path.name)
            for iterations, path in zip(traces.ranks, args.files, strict=True)
        ]
    )


def _given_overheads(args: argparse.Namespace) -> HostOverheads | None:
    from cdmpp.replay.traces.overheads import merged, read_overheads

    if not args.overheads:
        return None
    return merged([read_overheads(path) for path in args.overheads])


def _walk(
    args: argparse.Namespace, ranks: list[list[WalkedOperator]], overheads: HostOverheads
) -> int:
    from cdmpp.cli.replay.text import print_walk
    from cdmpp.replay.traces.iteration_walk import WalkOptions, slowest, walk

    options = WalkOptions(args.walk, args.reproduce_defects, args.pooled_overheads)
    found = slowest([walk(operators, overheads, options=options) for operators in ranks])
    if args.json:
        print(json.dumps(_walk_values(found, args.walk, len(ranks)), allow_nan=False))
        return 0
    print_walk(found, args.walk)
    return 0


def _walk_values(found: Walk, version: str, ranks: int) -> dict[str, Any]:
    return {
        "walk": version, "ranks": ranks, "total_s": 1e-6 * found.total_us,
        "active_s": 1e-6 * found.active_us, "host_s": 1e-6 * found.host_us,
        "exposed_communication_s": 1e-6 * found.exposed_communication_us,
        "operators": [
            {"name": name, "host_s": 1e-6 * value} for name, value in found.after_us
        ],
        "pooled": list(found.pooled), "unmodelled": found.unmodelled,
    }  # fmt: skip
