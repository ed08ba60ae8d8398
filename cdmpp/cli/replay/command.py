"""`cdmpp replay`: predicts the latency of a network from the times of its operators."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from cdmpp.analytic.embedding.devices import rates_of
from cdmpp.analytic.kernels.times import KernelTimes
from cdmpp.cli.replay.output import check_results, show_outcomes, show_statistics, show_walk
from cdmpp.cli.shared.option_table import add_table
from cdmpp.cli.shared.options import (
    add_device_spec_option,
    add_force_option,
    add_output_options,
    check_goes_with,
    labels_of,
)
from cdmpp.devices.registry import get_device
from cdmpp.errors import UsageError
from cdmpp.files.atomic import check_replaceable_json
from cdmpp.files.places import given_or_shipped
from cdmpp.networks.onnx_files.sizes import InputSizes
from cdmpp.networks.shape_text import parse_input_shapes
from cdmpp.predict.estimates import load_trained
from cdmpp.predict.record_costs import RecordChoice, replay_records
from cdmpp.pretrained import model_folder
from cdmpp.replay.calibration import FORMAT as GAP_FORMAT
from cdmpp.replay.calibration import gap_of
from cdmpp.replay.engine import ReplayOptions
from cdmpp.replay.file_kind import FileKind
from cdmpp.replay.graph import OperatorGraph
from cdmpp.replay.graph_file import read_graph
from cdmpp.replay.inputs import (
    TraceInput,
    execution_files,
    execution_graph,
    one_kind,
    read_traces,
    trace_graph,
    trace_overheads,
)
from cdmpp.replay.outcome import costs_of_graph, read_times, replay_graph
from cdmpp.replay.traces.dlrm import (
    dlrm_iteration,
    iteration_graph,
    load_dlrm,
    walked_iteration,
)
from cdmpp.replay.traces.execution_trace import HOST, read_calls, read_execution_trace, walked_calls
from cdmpp.replay.traces.iteration_walk import Walk, WalkOptions, slowest, walk
from cdmpp.replay.traces.op_statistics import (
    OperatorStatistics,
    call_statistics,
    graph_statistics,
    trace_statistics,
)
from cdmpp.replay.traces.overheads import FORMAT as OVERHEADS_FORMAT
from cdmpp.replay.traces.overheads import HostOverheads, merged, read_overheads, write_overheads
from cdmpp.replay.traces.trace_graph import walked_operators
from cdmpp.replay.transfers import Links
from cdmpp.replay.what_if import parse_scale

_US = 1e-6


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    parser.description = (
        "Reads a network (.onnx, .pt2), tasks of Tenset's network_info, a graph of operators "
        "(.json, .yaml), traces of torch.profiler or ExecutionTraceObserver, or a training "
        "preset; gives every operator a time, and replays them on the queues of their devices. "
        "An operator without a model gets a roofline estimate, is listed and widens the "
        "interval."
    )
    parser.add_argument(
        "files", nargs="+", type=given_or_shipped, metavar="FILE", help="see docs/how-to/replay.md"
    )
    costs = add_table(parser, """
        what operators cost:
        --device LABEL...  device; may be repeated
    """)  # fmt: skip
    add_device_spec_option(costs, of="networks")
    add_table(costs, """
        --model RUN: Path = pretrained  cost model of networks and tasks: run folder (default:
            pretrained)
        --schedule WHICH                networks: default (as TVM compiles it untuned),
            first-valid, database:DIR, draws:N; Tenset tasks: best (default) or draws:N
        --seed SEED: int = 0            of samples and draws (default: 0)
        --times JSON: Path              known times: {id, name, task or kind of an operator:
            seconds}
        --dataset DIR: Path             records of Tenset tasks (default: the folder that holds
            network_info)
        --records-of LABEL              device whose records are used (default: those of --device)
        --recorded                      use the recorded times instead of predicted ones
        --batch N: int                  ONNX: size of the first axes that are dynamic in the file
        --input NAME=SHAPE...           ONNX: full shape of an input with dynamic sizes
        --no-machine-code               do not compile a network's kernels to read their machine
            code
        --measure                       compile and time the same network on this machine's CPU,
            and print both side by side
    """)  # fmt: skip
    add_force_option(costs)
    add_table(parser, """
        the replay:
        --policy issue-order|earliest-ready = issue-order  order within a queue (default:
            issue-order)
        --launch-us US: float = 0.0         host time to issue an operator
        --gap US|FILE = '0'                 pause between two operators: µs, or a file of
            --calibrate-gap
        --calibrate-gap FILE: Path          with --measure: write the gap at which the replay of
            measured operators matches the measured network
        --scale NAME=FACTOR... = []         what if: multiply the time of these operators, e.g.
            conv2d=0.5
        traces and training presets:
        --iterations FIRST:LAST        iterations of a trace with profiler.step(), counted from 0
        --statistics brief|clean|full  print the operators of the files
        --save-overheads FILE: Path    extract T1 to T5 and write them
        --walk reference|head          walk the iteration on host and device clocks
        --overheads FILE...: Path      for --walk: host overheads; several are averaged (default:
            those of the trace)
        --pooled-overheads             for --walk: operators without overheads get the mean over
            all operators
        results:
        --out DIR: Path  write replay.json, graph.json, timeline.html and trace.json (chrome) there
    """)  # fmt: skip
    add_output_options(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    paths: list[Path] = args.files
    path, kind, labels = paths[0], one_kind(paths), labels_of(args.device)
    _check(path, kind, is_measured=args.measure, gap_file=args.calibrate_gap, walk=args.walk)
    check_goes_with(
        "a trace of torch.profiler", kind == "chrome", path,
        iterations=args.iterations, save_overheads=args.save_overheads,
    )  # fmt: skip
    check_goes_with(
        "tasks of Tenset", kind == "tenset", path,
        recorded=args.recorded, records_of=args.records_of, dataset=args.dataset,
    )  # fmt: skip
    check_goes_with(
        "--walk", args.walk, path, overheads=args.overheads,
        pooled_overheads=args.pooled_overheads,
    )  # fmt: skip
    check_goes_with("a network", kind == "network", path, batch=args.batch, input=args.input)
    if kind == "dlrm":
        _check_one_gpu(labels, "a training preset")
        if args.save_overheads or args.statistics == "full":
            raise UsageError("overheads and full statistics need a trace, not a preset")
    for option, file, form, what in (
        ("--save-overheads", args.save_overheads, OVERHEADS_FORMAT, "a file of host overheads"),
        ("--calibrate-gap", args.calibrate_gap, GAP_FORMAT, "a gap of a replay"),
    ):
        check_replaceable_json(file, form, what=what, option=option)
    if args.walk and args.statistics:
        raise UsageError("expected --walk or --statistics, not both; leave one out")
    instead = "--walk" if args.walk else "--statistics"
    check_goes_with(
        "a replay", not (args.walk or args.statistics), instead, out=args.out, times=args.times,
        scale=args.scale,
    )  # fmt: skip
    check_results(args.out, paths, len(labels))
    traces = read_traces(paths, args.iterations) if kind == "chrome" else None
    notes = list(traces.notes) if traces is not None else []
    if notes and args.statistics:
        print("\n".join(notes), file=sys.stderr)
    if traces is not None and args.save_overheads:
        write_overheads(args.save_overheads, trace_overheads(traces, paths))
        if not (args.json or args.quiet):
            print(f"T1 to T5 written to {args.save_overheads}", file=sys.stderr)
    if args.statistics and kind in ("chrome", "execution", "graph"):
        rows = _statistics(paths, traces)
        show_statistics(rows, args.statistics, as_json=args.json)
        return 0
    if args.walk:
        # The overheads for an execution trace are from other runs.
        how = WalkOptions(args.walk, args.pooled_overheads or kind == "execution")
        given = [read_overheads(file) for file in args.overheads or ()]
        if kind == "execution":
            walks = [_walked_execution(paths, labels, given, how, notes)]
        else:
            walks = _walks(paths, traces, labels, given, how)
        show_walk(slowest(walks), args.walk, len(walks), notes=notes, as_json=args.json)
        return 0
    options = ReplayOptions(
        policy=args.policy, launch_s=_US * args.launch_us, gap_s=gap_of(args.gap)
    )
    scales = dict(parse_scale(text) for text in args.scale)
    times = {} if args.times is None else read_times(args.times)
    if kind == "network":
        from tvm_helper.predict.predictor import new_predictor  # TVM takes a second
        from tvm_helper.replay.costs import ScheduleChoice
        from tvm_helper.replay.outcome import replay_network

        choice = ScheduleChoice.of(args.schedule or "default", args.seed)
        predictor = new_predictor(
            args.model, labels, args.device_spec or (), compiles=not args.no_machine_code
        )
        outcomes = replay_network(
            path, predictor, choice, options, times=times, scales=scales,
            is_measured=args.measure, is_forced=args.force, gap_file=args.calibrate_gap,
            sizes=InputSizes(parse_input_shapes(args.input or ()), args.batch),
        )  # fmt: skip
    elif kind == "tenset":
        records = RecordChoice.of(args.schedule or "best", args.seed)
        if not labels:
            raise UsageError("choose a device with --device LABEL, such as epyc-avx2-2c")
        trained = None if args.recorded else load_trained(model_folder(args.model))
        outcomes = [
            replay_records(
                path, label, records, options, trained=trained, dataset=args.dataset,
                records_of=args.records_of, times=times, scales=scales,
            )
            for label in labels
        ]  # fmt: skip
    else:
        graph, links = _graph(paths, kind, traces, labels, notes)
        if args.schedule:
            raise UsageError(
                f"--schedule {args.schedule}: the operators of {graph.source} are not tensor "
                "programs; leave it out"
            )
        outcomes = [
            replay_graph(
                graph, links, options, device=label, times=times, scales=scales,
                graph_source="analytic" if kind == "dlrm" else "given",
                notes=(*notes, *(_assumed(labels) if kind == "dlrm" else ())),
            )
            for label in labels or [""]
        ]  # fmt: skip
    if args.statistics:
        rows = graph_statistics(outcomes[0].costs.graph)
        show_statistics(rows, args.statistics, as_json=args.json)
    else:
        show_outcomes(outcomes, args.out, as_json=args.json)
    return 0


def _check(
    path: Path, kind: FileKind, *, is_measured: bool, gap_file: Path | None, walk: str | None
) -> None:
    if kind != "network" and (is_measured or gap_file):
        raise UsageError(f"--measure compiles a network (.onnx, .pt2), got {path}; leave it out")
    if gap_file and not is_measured:
        raise UsageError("--calibrate-gap needs --measure, which times the network; add it")
    if walk and kind not in ("chrome", "execution", "dlrm"):
        raise UsageError(
            f"--walk {walk}: expected a trace of torch.profiler or ExecutionTraceObserver, or a "
            f"training preset, got {path}"
        )


def _statistics(paths: list[Path], traces: TraceInput | None) -> list[OperatorStatistics]:
    """Returns the operators of files whose statistics need no device."""
    if traces is not None:
        return trace_statistics(one for iterations in traces.ranks for one in iterations)
    if one_kind(paths) == "graph":
        return graph_statistics(read_graph(paths[0]).graph)
    observed, times_s, _ = execution_files(paths, on_note=lambda note: print(note, file=sys.stderr))
    return call_statistics(read_calls(observed), times_s)


def _check_one_gpu(labels: list[str], what: str) -> None:
    if len(labels) != 1:
        raise UsageError(
            f"{what} needs one GPU, got {', '.join(labels) or 'none'}; expected "
            "--device LABEL, such as v100 (`cdmpp device list`)"
        )


def _walks(
    paths: list[Path],
    traces: TraceInput | None,
    labels: list[str],
    given: Sequence[HostOverheads],
    options: WalkOptions,
) -> list[Walk]:
    """Returns the walk over the last iteration of each rank; ranks wait for each other."""
    if traces is not None:
        overheads = merged(given) if given else trace_overheads(traces, paths)
        ranks = [walked_operators(iterations[-1]) for iterations in traces.ranks]
    elif given:
        overheads = merged(given)
        times = KernelTimes(get_device(labels[0]))
        ranks = [walked_iteration(dlrm_iteration(load_dlrm(paths[0])), times)]
    else:
        raise UsageError(
            "a training preset has no host overheads; expected --overheads FILE, from: cdmpp "
            "replay TRACE --save-overheads FILE"
        )
    return [walk(operators, overheads, options=options) for operators in ranks]


def _walked_execution(
    paths: list[Path],
    labels: list[str],
    given: Sequence[HostOverheads],
    options: WalkOptions,
    notes: list[str],
) -> Walk:
    """Returns the walk over an execution trace, with predicted kernel times for one GPU."""
    _check_one_gpu(labels, "the walk of an execution trace")
    if len(paths) > 1 or not given:
        raise UsageError(
            "the walk of an execution trace takes only this file and host overheads; give "
            "--overheads FILE, from: cdmpp replay PROFILE --save-overheads FILE"
        )
    if get_device(labels[0]).kind != "gpu":
        raise UsageError(
            f"--walk: expected a GPU, on which the host launches kernels, got {labels[0]}"
        )
    graph, overheads = read_execution_trace(paths[0]), merged(given)
    gathered = costs_of_graph(graph, Links(), device=labels[0])
    is_mixed = any(one.device != HOST for one in graph.operators)
    costs = {
        one.id: cost
        for one, cost in zip(graph.operators, gathered.costs, strict=True)
        if one.device != HOST or not is_mixed
    }
    operators, assumed = walked_calls(read_calls(paths[0]), costs, overheads)
    if assumed:
        notes.append(f"one launch per kernel is assumed for: {', '.join(assumed)}")
    bounds = dict.fromkeys(one.label for one, _ in gathered.uncovered if one.id in costs)
    if bounds:
        notes.append(f"roofline estimates for operators without a model: {', '.join(bounds)}")
    return walk(operators, overheads, options=options)


def _assumed(labels: list[str]) -> tuple[str, ...]:
    note = rates_of(get_device(labels[0])).assumption
    return (note,) if note else ()


def _graph(
    paths: list[Path],
    kind: FileKind,
    traces: TraceInput | None,
    labels: list[str],
    notes: list[str],
) -> tuple[OperatorGraph, Links]:
    if traces is not None:
        return trace_graph(traces, paths), Links()
    if kind == "execution":
        return execution_graph(paths, on_note=notes.append), Links()
    if kind == "graph":
        file = read_graph(paths[0])
        return file.graph, file.links
    preset, times = load_dlrm(paths[0]), KernelTimes(get_device(labels[0]))
    graph = iteration_graph(dlrm_iteration(preset), times, name=preset.name, device=labels[0])
    return graph, Links()
