"""The tasks of a folder in Tenset's layout (`network_info/`), and their networks."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cdmpp.errors import DataError
from cdmpp.files.restricted_pickle import (
    ComputeDagStub,
    SearchTaskStub,
    StubObject,
    load_restricted,
)
from cdmpp.programs.ansor.json_graph import JsonGraph
from cdmpp.records import GPU_TARGET_KINDS, TensetTask, normalise_workload_key

_HARDWARE_PARAM_NAMES = (
    "num_cores", "vector_unit_bytes", "cache_line_bytes", "max_shared_memory_per_block",
    "max_local_memory_per_block", "max_threads_per_block", "max_vthread_extent", "warp_size",
)  # fmt: skip
_ALL_TASKS = re.compile(r"^all_tasks\.pkl(\.gz)?$")
_NETWORK_TASKS = re.compile(r"^\(\((?P<network>.*)\),(?P<kind>[a-z]+)\)\.task\.pkl(\.gz)?$")

TaskKey = tuple[str, str]


@dataclass
class TaskIndex:
    """Tasks and their networks.

    Attributes:
        tasks: (normalised workload key, target kind) -> task.
        networks: same key -> (network name, weight) pairs, sorted by name. The name is Tenset's,
            e.g. `resnet_50,[(1,3,224,224)]`; the weight is the number of calls in the network.
    """

    tasks: dict[TaskKey, TensetTask] = field(default_factory=dict)
    networks: dict[TaskKey, list[tuple[str, int]]] = field(default_factory=dict)

    def find(self, workload_key: str, target_kind: str) -> TensetTask | None:
        """Returns the task; None if there is none.

        A GPU kind without the task gets the computation of the same key for another GPU kind, never
        for a CPU, whose layouts differ.
        """
        key = normalise_workload_key(workload_key)
        task = self.tasks.get((key, target_kind))
        if task is not None or target_kind not in GPU_TARGET_KINDS:
            return task
        for other in sorted(GPU_TARGET_KINDS):
            if (key, other) in self.tasks:
                found = self.tasks[key, other]
                return replace(found, target=target_kind, target_kind=target_kind)
        return None

    def networks_of(self, workload_key: str, target_kind: str) -> list[tuple[str, int]]:
        """Returns the (network, weight) pairs of a task; empty if it is in no network."""
        return self.networks.get((normalise_workload_key(workload_key), target_kind), [])

    def network_tasks(self) -> dict[str, list[tuple[str, str, int]]]:
        """Returns network -> list of (workload key, target kind, weight) of its tasks."""
        result: dict[str, list[tuple[str, str, int]]] = {}
        for (key, kind), pairs in self.networks.items():
            for network, weight in pairs:
                result.setdefault(network, []).append((key, kind, weight))
        return dict(sorted(result.items()))


def load_tasks(network_info_dir: Path) -> TaskIndex:
    """Reads `all_tasks.pkl` and every `((network),kind).task.pkl` (or `.pkl.gz`) of a folder.

    Raises:
        DataError: the folder is missing, has no task file, or a file is malformed or rejected.
    """
    network_info_dir = Path(network_info_dir)
    try:
        paths = sorted(network_info_dir.iterdir())
    except OSError as error:
        raise DataError(
            f"{network_info_dir}: cannot read the folder of tasks ({error.strerror or error}); "
            "expected Tenset's network_info/ with all_tasks.pkl and *.task.pkl, give it with "
            "--network-info DIR"
        ) from None
    index = TaskIndex()
    found = False
    for path in paths:
        network = _NETWORK_TASKS.match(path.name)
        if network:
            found = True
            _add_network(index, path, network.group("network"))
        elif _ALL_TASKS.match(path.name):
            found = True
            for task in _search_tasks(load_restricted(path), path):
                index.tasks.setdefault((task.workload_key, task.target_kind), task)
    if not found:
        raise DataError(
            f"{network_info_dir}: no task files; expected all_tasks.pkl[.gz] or "
            "((NETWORK),KIND).task.pkl[.gz] as in Tenset's network_info/"
        )
    return index


def _add_network(index: TaskIndex, path: Path, network: str) -> None:
    value = load_restricted(path)
    if not (isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], list)):
        raise DataError(f"{path}: expected a pair (tasks, weights), got {type(value).__name__}")
    tasks = _search_tasks(value[0], path)
    weights = value[1]
    if len(weights) != len(tasks) or not all(isinstance(weight, int) for weight in weights):
        raise DataError(f"{path}: expected {len(tasks)} integer weights, got {len(weights)}")
    for task, weight in zip(tasks, weights, strict=True):
        key = (task.workload_key, task.target_kind)
        index.tasks.setdefault(key, task)
        merged = dict(index.networks.get(key, []))
        merged[network] = merged.get(network, 0) + weight
        index.networks[key] = sorted(merged.items())


def _search_tasks(value: Any, path: Path) -> list[TensetTask]:
    if not (isinstance(value, list) and all(isinstance(item, SearchTaskStub) for item in value)):
        raise DataError(f"{path}: expected a list of search tasks, got {type(value).__name__}")
    try:
        return [_to_task(stub) for stub in value]
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    except (LookupError, TypeError, ValueError, RecursionError) as error:
        raise DataError(
            f"{path}: damaged search task ({error!r}); unpack network_info again"
        ) from None


def _to_task(stub: SearchTaskStub) -> TensetTask:
    dag = stub.get("compute_dag")
    dag_json = dag.get("tensors") if isinstance(dag, ComputeDagStub) else None
    workload_key = stub.get("workload_key")
    if not (isinstance(dag_json, str) and isinstance(workload_key, str)):
        raise DataError("a search task without computation or workload key")
    target, kind = _target(stub.get("target"))
    layout = stub.get("layout_rewrite_option")
    names = stub.get("task_input_names")
    return TensetTask(
        workload_key=normalise_workload_key(str(workload_key)),
        target=target,
        target_kind=kind,
        dag_json=str(dag_json),
        hardware_params=_hardware_params(stub.get("hardware_params")),
        layout_rewrite_option=layout if isinstance(layout, int) else 0,
        task_input_names=_names(names),
    )


def _graph(value: Any, what: str) -> JsonGraph:
    handle = value.get("handle") if isinstance(value, StubObject) else None
    if not isinstance(handle, str):
        raise DataError(f"a search task without {what}")
    return JsonGraph(handle)


def _target(value: Any) -> tuple[str, str]:
    """Returns (target string, target kind)."""
    graph = _graph(value, "target")
    root = graph.root
    kind = graph.text(graph.reference(graph.reference(root, "kind"), "name"))
    keys = [graph.text(number) for number in graph.items(graph.reference(root, "keys"))]
    words = [kind, "-keys=" + ",".join(keys)] if keys else [kind]
    for name, number in sorted(graph.mapping(graph.reference(root, "attrs")).items()):
        words.append(f"-{name}={_attribute_text(graph, number)}")
    return " ".join(words), kind


def _attribute_text(graph: JsonGraph, number: int) -> str:
    if graph.type_key(number) == "Array":
        return ",".join(_attribute_text(graph, item) for item in graph.items(number))
    integer = graph.integer(number)
    return graph.text(number) if integer is None else str(integer)


def _hardware_params(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    graph = _graph(value, "hardware parameters")
    return tuple(int(graph.attribute(graph.root, name) or 0) for name in _HARDWARE_PARAM_NAMES)


def _names(value: Any) -> tuple[str, ...]:
    if isinstance(value, (list, tuple)):
        return tuple(str(item) for item in value)
    if isinstance(value, StubObject) and isinstance(value.get("handle"), str):
        graph = JsonGraph(value.get("handle"))
        return tuple(graph.text(number) for number in graph.items(graph.root))
    return ()
