"""Replay of a graph with times from the graph, a table, links and kernel models."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from cdmpp.devices.registry import get_devices
from cdmpp.errors import DataError
from cdmpp.files.atomic import read_json
from cdmpp.replay.costs import CostSource, GivenTimes, GraphCosts, LinkTimes, Source, gather_costs
from cdmpp.replay.engine import ReplayOptions
from cdmpp.replay.graph import OperatorGraph
from cdmpp.replay.kernels import KernelCosts
from cdmpp.replay.summary import ReplayOutcome, replay_costs
from cdmpp.replay.transfers import Links


def replay_graph(
    graph: OperatorGraph,
    links: Links,
    options: ReplayOptions,
    *,
    device: str = "",
    times: Mapping[str, float] | None = None,
    scales: Mapping[str, float] | None = None,
    graph_source: Source = "given",
    notes: tuple[str, ...] = (),
) -> ReplayOutcome:
    """Returns the replay of a graph.

    Args:
        device, times, graph_source: see `costs_of_graph`.
        scales: factors, see `replay_costs`.
        notes: assumptions about the graph's times.

    Raises:
        DeviceError: an unknown device.
        UsageError: a time or factor matches no operator.
    """
    costs = costs_of_graph(graph, links, device=device, times=times, graph_source=graph_source)
    return replay_costs(costs, options, device=device, scales=scales, notes=notes)


def costs_of_graph(
    graph: OperatorGraph,
    links: Links,
    *,
    device: str = "",
    times: Mapping[str, float] | None = None,
    graph_source: Source = "given",
) -> GraphCosts:
    """Returns the costs of a graph's operators from the graph, a table, links and kernel models,
    with a roofline estimate for the others.

    Args:
        device: label that replaces all devices of the graph; empty = the graph's own devices.
        times: seconds of operators by id, name, task or kind.
        graph_source: source of the times in the graph.

    Raises:
        DeviceError: an unknown device.
        UsageError: a time matches no operator.
    """
    places = {name for one in graph.operators for name in one.devices or (one.device,)}
    named = dict.fromkeys(places, device) if device else graph.devices
    labels = {place: name for place, name in named.items() if name}
    specs = dict(zip(labels, get_devices(labels.values()), strict=True))
    sources: list[CostSource] = [GivenTimes(times, graph_source=graph_source), LinkTimes(links)]
    gpus = {place: spec.name for place, spec in specs.items() if spec.kind == "gpu"}
    if gpus and any(one.time_s is None for one in graph.operators):
        sources.append(KernelCosts(gpus))
    return gather_costs(graph, sources, specs)


def read_times(path: Path) -> dict[str, float]:
    """Returns the seconds of operators in a JSON file.

    Raises:
        DataError: unreadable, or not a mapping of names to seconds.
    """
    what = 'expected JSON such as {"conv2d": 0.0012}, seconds'
    value = read_json(path, what="file of times", hint=what)
    if not isinstance(value, dict) or not all(
        isinstance(one, int | float) and not isinstance(one, bool) and 0 <= one < math.inf
        for one in value.values()
    ):
        raise DataError(f"{path}: a time is not a number from 0 up; {what}")
    return {name: float(one) for name, one in value.items()}
