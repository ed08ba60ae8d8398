"""Tenset's `network_info`: the tasks of a network with their weights, without edges."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from cdmpp.datasets.tenset.flops import flop_count
from cdmpp.datasets.tenset.operator_name import operator_name
from cdmpp.datasets.tenset.task_index import load_tasks
from cdmpp.errors import DataError
from cdmpp.programs.ansor.json_graph import JsonGraph
from cdmpp.records import TensetTask
from cdmpp.replay.graph import Operator, OperatorGraph

_NAME = re.compile(r"^\(\((?P<network>.*)\),(?P<kind>[a-z]+)\)\.task\.pkl(\.gz)?$")
DEVICE = "device"


@dataclass(frozen=True)
class TensetNetwork:
    """A network of Tenset.

    Attributes:
        graph: one operator per call; its task is the workload key.
        tasks: workload key -> task.
        network: Tenset's name of it.
        folder: its `network_info` folder.
    """

    graph: OperatorGraph
    tasks: dict[str, TensetTask]
    network: str
    folder: Path


def is_tenset_network(path: Path) -> bool:
    """Whether a file name has Tenset's form for the tasks of a network."""
    return _NAME.match(path.name) is not None


def read_tenset_network(path: Path, *, device: str = "") -> TensetNetwork:
    """Reads `((NETWORK),KIND).task.pkl[.gz]`.

    The calls have no edges and run one after the other in one queue.

    Args:
        device: name of the DeviceSpec of the graph; empty = none.

    Raises:
        DataError: unreadable, another name, or a network without tasks.
    """
    path = Path(path)
    match = _NAME.match(path.name)
    if match is None:
        raise DataError(f"{path}: expected ((NETWORK),KIND).task.pkl[.gz] of Tenset's network_info")
    if not path.is_file():
        raise DataError(f"{path}: no such file; expected one of Tenset's network_info")
    index = load_tasks(path.parent)
    network, kind = match.group("network"), match.group("kind")
    members = [
        (key, weight) for key, own, weight in index.network_tasks().get(network, ()) if own == kind
    ]
    if not members:
        raise DataError(
            f"{path}: no tasks in it; expected at least one (Tenset's extraction of this network "
            "failed), choose another network"
        )
    operators = []
    tasks: dict[str, TensetTask] = {}
    for number, (key, weight) in enumerate(members, start=1):
        task = tasks[key] = index.tasks[key, kind]
        computation = JsonGraph(task.dag_json)
        name, flop = operator_name(computation), flop_count(computation)
        operators += [
            Operator(
                id=f"{number}#{call}", name=f"task {number}: {name}", kind=name, task=key,
                device=DEVICE, flop=flop,
            )
            for call in range(1, weight + 1)
        ]  # fmt: skip
    graph = OperatorGraph(
        name=network, operators=tuple(operators), devices={DEVICE: device} if device else {},
        source=str(path), has_edges=False,
    )  # fmt: skip
    return TensetNetwork(graph, tasks, network, path.parent)
