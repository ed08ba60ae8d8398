"""Costs and outcomes of `cdmpp replay` for networks, Tenset tasks, graphs and execution traces."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cdmpp.devices.spec import DeviceSpec
    from cdmpp.replay.costs import GraphCosts
    from cdmpp.replay.graph import OperatorGraph
    from cdmpp.replay.summary import Outcome
    from cdmpp.replay.transfers import Links
    from tvm_helper.replay.costs import ScheduleChoice

Found = list[tuple["Outcome", dict[str, Any] | None]]


def outcomes_of(args: argparse.Namespace, kind: str) -> Found:
    """Returns (outcome, what was measured), one a device."""
    if kind == "network":
        return _network(args)
    if kind == "tenset":
        return _tenset(args)
    from cdmpp.cli.replay.inputs import execution_graph, graph_file
    from cdmpp.replay.transfers import Links

    graph, links = (
        (execution_graph(args.files), Links()) if kind == "execution" else graph_file(args.files[0])
    )
    return graph_outcomes(args, graph, links)


def graph_outcomes(
    args: argparse.Namespace, graph: OperatorGraph, links: Links, *, is_analytic: bool = False
) -> Found:
    """Returns the outcomes of a graph with its own devices, or with each of --device.

    Args:
        is_analytic: whether the graph's times are those of analytic models.
    """
    from cdmpp.cli.replay.command import engine_options, scales_of
    from cdmpp.devices.registry import get_device
    from cdmpp.errors import UsageError
    from cdmpp.replay.costs import CostSource, GivenTimes, LinkTimes, gather_costs
    from cdmpp.replay.summary import replay_costs

    if args.schedule:
        raise UsageError(
            f"--schedule {args.schedule}: the operators of {graph.source} are no tensor programs; "
            "leave it out"
        )
    found: Found = []
    places = {name for one in graph.operators for name in one.devices or (one.device,)}
    for label in labels(args) or [""]:
        named = dict.fromkeys(places, label) if label else dict(graph.devices)
        specs = {place: get_device(name) for place, name in named.items() if name}
        given = GivenTimes(given_times(args), graph_source="analytic" if is_analytic else "given")
        sources: list[CostSource] = [given, LinkTimes(links)]
        gpus = {place: spec.name for place, spec in specs.items() if spec.kind == "gpu"}
        if gpus and any(one.time_s is None for one in graph.operators):
            from cdmpp.replay.kernels import KernelCosts

            sources.append(KernelCosts(gpus))
        costs = gather_costs(graph, sources, specs)
        outcome = replay_costs(costs, engine_options(args), device=label, scales=scales_of(args))
        found.append((outcome, None))
    return found


def given_times(args: argparse.Namespace) -> dict[str, float]:
    """Returns the times of --times.

    Raises:
        DataError: unreadable, or not a mapping of names to seconds.
    """
    from cdmpp.errors import DataError

    if args.times is None:
        return {}
    what = 'expected JSON such as {"conv2d": 0.0012}, seconds'
    try:
        value = json.loads(args.times.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(
            f"{args.times}: cannot read the times ({getattr(error, 'strerror', None) or error}); "
            f"{what}"
        ) from None
    if not isinstance(value, dict) or not all(
        isinstance(one, int | float) and not isinstance(one, bool) and 0 <= one < math.inf
        for one in value.values()
    ):
        raise DataError(f"{args.times}: a time is no number from 0 up; {what}")
    return {name: float(one) for name, one in value.items()}


def labels(args: argparse.Namespace) -> list[str]:
    """Returns the labels of --device."""
    return list(
        dict.fromkeys(
            label for given in args.device or () for label in given.split(",") if label
        )
    )  # fmt: skip


def _network(args: argparse.Namespace) -> Found:
    from cdmpp.cli.replay.command import engine_options, scales_of
    from cdmpp.replay.costs import GivenTimes, gather_costs
    from cdmpp.replay.summary import replay_costs
    from tvm_helper.predict.predictor import new_predictor
    from tvm_helper.programs.network_tasks import load_network
    from tvm_helper.programs.target import device_target
    from tvm_helper.replay.costs import ProgramCosts, choose_schedules
    from tvm_helper.replay.graph import DEVICE, network_graph

    choice = _schedule_choice(args)
    options, scales, times = engine_options(args), scales_of(args), given_times(args)
    predictor = new_predictor(
        args.model, labels(args), args.device_spec or (), compiles=not args.no_machine_code
    )
    path: Path = args.files[0]
    module = load_network(path)
    found: Found = []
    for device in predictor.devices:
        target = device_target(device)
        network = network_graph(
            module, target, name=path.stem, source=str(path), device=device.name
        )
        chosen = choose_schedules(network, target, choice)
        programs = ProgramCosts(predictor, network, chosen, device)
        costs = gather_costs(network.graph, [GivenTimes(times), programs], {DEVICE: device})
        is_compiled = predictor.reads_code_of(device, of_fastest=choice.kind == "database")
        schedule = choice.text + (", compiled" if is_compiled else "")
        outcome = replay_costs(costs, options, device=device.name, schedule=schedule, scales=scales)
        measured = None
        if args.measure:
            from tvm_helper.replay.measure import measure_network

            timed = measure_network(network, chosen, target)
            measured = measured_values(outcome, timed)
            if args.calibrate_gap:
                _calibrate(args, outcome, timed)
        found.append((outcome, measured))
    return found


def measured_values(outcome: Outcome, timed: Any) -> dict[str, Any]:
    """Returns predicted beside measured as plain values.

    Args:
        timed: a `MeasuredNetwork`.
    """
    from cdmpp.replay.engine import replay

    graph, costs = outcome.costs.graph, outcome.costs
    measured_s = measured_times(costs, timed)
    replayed = replay(graph, measured_s, options=outcome.expected.options)
    total, predicted = timed.latency_s, outcome.expected.total_s
    bare = replay(graph, measured_s, options=replace(outcome.expected.options, gap_s=0.0))
    return {
        "total_s": total, "costs_s": list(timed.costs_s), "predicted_s": predicted,
        "error": predicted / total - 1, "predicted_sum_s": outcome.expected.sum_s,
        "predicted_sum_error": outcome.expected.sum_s / total - 1,
        "is_in_interval": outcome.low_s <= total <= outcome.high_s,
        "replayed_s": replayed.total_s, "replay_error": replayed.total_s / total - 1,
        "unmeasured": sum(one.task not in timed.kernel_s for one in graph.operators),
        "without_gaps_s": bare.total_s, "breakdown": _breakdown(costs, timed),
    }  # fmt: skip


def measured_times(costs: GraphCosts, timed: Any) -> list[float]:
    """Returns seconds an operator: its kernel's measured time, the predicted one where it has none.

    Args:
        timed: a `MeasuredNetwork`.
    """
    return [
        timed.kernel_s.get(one.task, cost.latency_s)
        for one, cost in zip(costs.graph.operators, costs.costs, strict=True)
    ]


def _breakdown(costs: GraphCosts, timed: Any) -> list[dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for one, cost in zip(costs.graph.operators, costs.costs, strict=True):
        seconds = timed.kernel_s.get(one.task)
        row = rows.setdefault(
            one.task or one.name,
            {"name": one.name, "kind": one.kind, "calls": 0, "predicted_s": cost.latency_s,
             "low_s": cost.low_s, "high_s": cost.high_s, "source": cost.source,
             "measured_s": seconds,
             "error": None if seconds is None else cost.latency_s / seconds - 1,
             "reason": timed.unmeasured.get(one.task)
             or ("no tensor program" if seconds is None else None)},
        )  # fmt: skip
        row["calls"] += 1
    return sorted(
        rows.values(),
        key=lambda row: -row["calls"] * max(row["measured_s"] or 0.0, row["predicted_s"]),
    )


def _calibrate(args: argparse.Namespace, outcome: Outcome, timed: Any) -> None:
    from cdmpp.replay.calibration import fitted_gap_s, write_gap
    from cdmpp.replay.engine import replay

    graph = outcome.costs.graph
    options = replace(outcome.expected.options, gap_s=0.0)
    run = replay(graph, measured_times(outcome.costs, timed), options=options)
    gap_s = fitted_gap_s(run, timed.latency_s)
    write_gap(
        args.calibrate_gap, gap_s,
        {"network": graph.name, "device": outcome.device, "operators": len(graph.operators),
         "measured_s": timed.latency_s, "operators_s": run.total_s},
    )  # fmt: skip


def _schedule_choice(args: argparse.Namespace) -> ScheduleChoice:
    """Returns the schedules of --schedule.

    Raises:
        UsageError: none of the known ones.
    """
    from cdmpp.errors import UsageError
    from tvm_helper.replay.costs import ScheduleChoice

    text = args.schedule or "first-valid"
    name, separator, value = text.partition(":")
    if text == "first-valid":
        return ScheduleChoice(seed=args.seed)
    if name == "database" and separator and value:
        return ScheduleChoice("database", args.seed, Path(value))
    if name == "draws" and value.isdigit() and int(value):
        return ScheduleChoice("draws", args.seed, draws=int(value))
    raise UsageError(
        f"--schedule {text!r}: expected first-valid, database:DIR or draws:N for a network"
    )


def _tenset(args: argparse.Namespace) -> Found:
    from cdmpp.cli.replay.command import engine_options, scales_of
    from cdmpp.errors import UsageError
    from cdmpp.pretrained import model_folder
    from cdmpp.replay.costs import GivenTimes, gather_costs
    from cdmpp.replay.summary import replay_costs
    from cdmpp.replay.tenset_network import DEVICE, read_tenset_network
    from cdmpp.training.estimates import load_trained
    from tvm_helper.replay.record_costs import RecordChoice, RecordCosts

    text = args.schedule or "best"
    name, _, value = text.partition(":")
    if text != "best" and not (name == "draws" and value.isdigit() and int(value)):
        raise UsageError(f"--schedule {text!r}: expected best or draws:N for Tenset's tasks")
    choice = RecordChoice("best" if text == "best" else "draws", args.seed, int(value or 1))
    named = labels(args)
    if not named:
        raise UsageError("choose a device with --device LABEL, such as epyc-avx2-2c")
    network = read_tenset_network(args.files[0])
    trained = None if args.recorded else load_trained(model_folder(args.model))
    dataset: Path = args.dataset or network.folder.parent
    found: Found = []
    for label in named:
        spec = _spec(label, trained)
        records = RecordCosts(
            dataset, args.records_of or label, network.tasks, choice, trained=trained, device=spec
        )
        sources = [GivenTimes(given_times(args)), records]
        costs = gather_costs(network.graph, sources, {DEVICE: spec})
        schedule = f"{choice.text} on {args.records_of or label}" + (
            ", recorded times" if args.recorded else ""
        )
        outcome = replay_costs(
            costs, engine_options(args), device=label, schedule=schedule, scales=scales_of(args)
        )
        found.append((outcome, None))
    return found


def _spec(label: str, trained: Any) -> DeviceSpec:
    from cdmpp.devices.registry import get_device
    from cdmpp.training.asked_device import asked_device

    return get_device(label) if trained is None else asked_device(label, trained.card)
