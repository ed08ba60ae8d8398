"""Replay of networks from predicted kernels, optionally compared with the measured network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DataError, UsageError
from cdmpp.networks.onnx_files.sizes import InputSizes
from cdmpp.predict.cpu_rules import erf_note
from cdmpp.predict.cut_costs import CutCosts
from cdmpp.predict.prediction import Prediction
from cdmpp.processes.native_stderr import hidden_native_stderr
from cdmpp.replay.calibration import fitted_gap_s, write_gap
from cdmpp.replay.costs import GivenTimes, GraphCosts, gather_costs
from cdmpp.replay.engine import ReplayOptions, replay
from cdmpp.replay.summary import ReplayOutcome, replay_costs
from tvm_helper.measure.target import check_machine
from tvm_helper.predict.predictor import Predictor
from tvm_helper.replay.costs import (
    ChosenSchedule,
    ProgramCosts,
    ScheduleChoice,
    choose_schedules,
)
from tvm_helper.replay.graph import DEVICE, KernelGraph, network_graph
from tvm_helper.replay.measure import MeasuredNetwork, measure_network
from tvm_helper.tasks.network_tasks import load_network
from tvm_helper.tasks.target import device_target


def replay_network(
    path: Path,
    predictor: Predictor,
    choice: ScheduleChoice,
    options: ReplayOptions,
    *,
    times: Mapping[str, float] | None = None,
    scales: Mapping[str, float] | None = None,
    is_measured: bool = False,
    is_forced: bool = False,
    gap_file: Path | None = None,
    sizes: InputSizes | None = None,
) -> list[ReplayOutcome]:
    """Returns the replay of a network on each device of a predictor.

    Args:
        path: ONNX file, or a saved `torch.export` program.
        choice: schedules of the kernels.
        times: seconds of operators by id, name, task or kind; they override the model.
        scales: factors, see `replay_costs`.
        is_measured: whether to compile and time the network on this machine too.
        is_forced: whether to measure on devices whose description does not match this machine.
        gap_file: file for the gap with which the replay of measured operators matches the measured
            network; None = not written.
        sizes: see `load_network`.

    Raises:
        DataError: the network or a database of schedules cannot be read.
        UsageError: a time or factor matches no operator, or `gap_file` with several devices.
        DeviceError: the network should be measured on a device that is not this machine.
    """
    if gap_file is not None and len(predictor.devices) > 1:
        raise UsageError("--calibrate-gap writes the gap of one device; give one --device")
    for device in predictor.devices if is_measured else ():
        check_machine(device.name, device_target(device), device, is_forced=is_forced)
    module = load_network(path, sizes)
    found = []
    for device in predictor.devices:
        known = network_costs(
            module, device, predictor, choice, name=path.stem, source=str(path), times=times
        )
        outcome = replay_costs(
            known.costs, options, device=device.name, schedule=known.schedule, scales=scales,
            notes=known.notes(),
        )  # fmt: skip
        if is_measured and known.network.cut:
            kinds = ", ".join(sorted({one.kind for one in known.network.cut.values()}))
            raise DataError(f"{path}: TVM cannot compile {kinds}; leave --measure out")
        if is_measured:
            timed = measure_network(known.network, known.chosen, device_target(device))
            outcome = replace(outcome, measured=measured_values(outcome, timed))
            if gap_file is not None:
                _calibrate(gap_file, outcome, timed)
        found.append(outcome)
    return found


@dataclass(frozen=True)
class NetworkCosts:
    """Costs of a network's kernels on a device.

    Attributes:
        schedule: choice of the schedules, in words.
        predictions: task key -> prediction of its program alone.
    """

    network: KernelGraph
    chosen: Mapping[str, ChosenSchedule]
    costs: GraphCosts
    schedule: str
    predictions: Mapping[str, Prediction]

    def notes(self) -> tuple[str, ...]:
        """Returns what the predictions do not cover, one sentence each."""
        asked = [self.predictions.get(one.task) for one in self.costs.graph.operators]
        found = [one for one in asked if one is not None]
        whole_s = sum(one.latency_s or 0.0 for one in found)
        note = erf_note(sum(one.erf_s for one in found), whole_s)
        return (note,) if note else ()


@hidden_native_stderr()
def network_costs(
    module: Any,
    device: DeviceSpec,
    predictor: Predictor,
    choice: ScheduleChoice,
    *,
    name: str,
    source: str = "",
    times: Mapping[str, float] | None = None,
) -> NetworkCosts:
    """Returns the costs of a relax module's kernels; for arguments see `replay_network`."""
    target = device_target(device)
    network = network_graph(module, target, name=name, source=source, device=device.name)
    chosen = choose_schedules(network, target, choice)
    programs = ProgramCosts(predictor, network, chosen, device)
    sources = [GivenTimes(times), programs, CutCosts(network.cut, device)]
    costs = gather_costs(network.graph, sources, {DEVICE: device})
    is_compiled = predictor.reads_code_of(device, of_fastest=choice.kind == "database")
    schedule = choice.text + (", compiled" if is_compiled else "")
    return NetworkCosts(network, chosen, costs, schedule, programs.predictions)


def measured_values(outcome: ReplayOutcome, timed: MeasuredNetwork) -> dict[str, Any]:
    """Returns predicted and measured values as JSON values."""
    graph, costs = outcome.costs.graph, outcome.costs
    measured_s = measured_times(costs, timed)
    replayed = replay(graph, measured_s, options=outcome.expected.options)
    total, predicted = timed.latency_s, outcome.expected.total_s
    bare = replay(graph, measured_s, options=replace(outcome.expected.options, gap_s=0.0))
    return {
        "total_s": total, "costs_s": list(timed.costs_s), "predicted_s": predicted,
        "error": predicted / total - 1, "predicted_sum_s": outcome.expected.sum_s,
        "predicted_sum_error": outcome.expected.sum_s / total - 1,
        "is_in_interval": None
        if outcome.low_s is None or outcome.high_s is None
        else outcome.low_s <= total <= outcome.high_s,
        "replayed_s": replayed.total_s, "replay_error": replayed.total_s / total - 1,
        "unmeasured": sum(one.task not in timed.kernel_s for one in graph.operators),
        "without_gaps_s": bare.total_s, "breakdown": _breakdown(costs, timed),
    }  # fmt: skip


def measured_times(costs: GraphCosts, timed: MeasuredNetwork) -> list[float]:
    """Returns the seconds of each operator: measured, or predicted if there is no measurement."""
    return [
        timed.kernel_s.get(one.task, cost.latency_s)
        for one, cost in zip(costs.graph.operators, costs.costs, strict=True)
    ]


def _breakdown(costs: GraphCosts, timed: MeasuredNetwork) -> list[dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for one, cost in zip(costs.graph.operators, costs.costs, strict=True):
        seconds = timed.kernel_s.get(one.task)
        row = rows.setdefault(
            one.task or one.name,
            {"name": one.name, "kind": one.kind, "calls": 0, "predicted_s": cost.latency_s,
             "low_s": cost.ends_s[0], "high_s": cost.ends_s[1], "source": cost.source,
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


def _calibrate(path: Path, outcome: ReplayOutcome, timed: MeasuredNetwork) -> None:
    graph = outcome.costs.graph
    options = replace(outcome.expected.options, gap_s=0.0)
    run = replay(graph, measured_times(outcome.costs, timed), options=options)
    write_gap(
        path, fitted_gap_s(run, timed.latency_s),
        {"network": graph.name, "device": outcome.device, "operators": len(graph.operators),
         "measured_s": timed.latency_s, "operators_s": run.total_s},
    )  # fmt: skip
