"""Tasks of a campaign: sampled ones, replayed Tenset records, networks, another campaign."""

from __future__ import annotations

import hashlib
import heapq
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cdmpp.datasets.tenset.flops import flop_count
from cdmpp.datasets.tenset.operator_name import operator_name
from cdmpp.errors import DataError
from cdmpp.files.atomic import write_json
from cdmpp.networks.onnx_files.sizes import InputSizes
from cdmpp.programs.ansor.json_graph import JsonGraph
from cdmpp.records import MeasureRecord, Source, program_id_of_text
from tvm_helper.drawn.task_names import drawn_names
from tvm_helper.measure.options import MeasureOptions

#: Fixed task, so that all campaigns on all machines have the same reference.
REFERENCE_TASK = "matmul:m=192,n=192,k=192"
_KEY_LENGTH = 16


@dataclass(frozen=True)
class MeasuredTask:
    """A task of a campaign.

    Attributes:
        name: display name.
        source: `metaschedule` (its programs are drawn) or `tenset` (its programs are replayed).
        workload_key: as in the dataset.
        operator: as in the dataset.
        flop_count: as in the dataset.
        networks: (name, weight) pairs.
        content: `module` = JSON of the unscheduled module, or `dag` = Tenset's computation;
            `indices` = number of an index argument -> exclusive upper bound of its values.
        programs: (program id, steps) of replayed records; None = to be drawn.
    """

    name: str
    source: Source
    workload_key: str
    operator: str
    flop_count: float | None
    networks: tuple[tuple[str, int], ...]
    content: dict[str, Any] = field(repr=False)
    programs: tuple[tuple[str, Any], ...] | None = field(default=None, repr=False)

    @property
    def key(self) -> str:
        """Short name of the task in the campaign's files."""
        text = f"{self.source}|{self.workload_key}"
        return hashlib.sha256(text.encode()).hexdigest()[:_KEY_LENGTH]

    def save(self, folder: Path) -> None:
        """Writes the task's file (`KEY.json`) unless it exists.

        Raises:
            DataError: the file cannot be written.
        """
        path = folder / f"{self.key}.json"
        if not path.is_file():
            write_json(
                path,
                {
                    "name": self.name, "source": self.source, "workload_key": self.workload_key,
                    "operator": self.operator, "flop_count": self.flop_count,
                    "networks": [list(pair) for pair in self.networks], **self.content,
                },
            )  # fmt: skip


def reference_task() -> MeasuredTask:
    """Returns the task of the reference program, which is timed before every batch."""
    return campaign_tasks(MeasureOptions(sample=(REFERENCE_TASK,)), None)[0]


def campaign_tasks(
    options: MeasureOptions, target: Any, on_network: Callable[[int, int], None] | None = None
) -> list[MeasuredTask]:
    """Returns the tasks of a campaign, each once, in the order of the options.

    Args:
        target: target of networks and replayed records.
        on_network: called with (networks read, all networks) after each network.

    Raises:
        UsageError: an unknown task name.
        DataError: a file cannot be read or has no task.
    """
    found: dict[str, MeasuredTask] = {}
    drawn = drawn_names(options.sample_random, options.seed, held_out=options.held_out)
    for name in (*options.sample, *drawn):
        for task in _sampled(name):
            found.setdefault(task.key, task)
    for number, name in enumerate(options.network, start=1):
        for task in _of_network(Path(name), options.network_sizes, target):
            same = found.get(task.key)
            if same is not None:  # in two networks, or in a network and in the sample
                networks = sorted({*same.networks, *task.networks})
                task = replace(same, networks=tuple(networks))
            found[task.key] = task
        if on_network is not None:
            on_network(number, len(options.network))
    for name in options.replay:
        for task in _replayed(Path(name), options, str(target.kind.name)):
            found.setdefault(task.key, task)
    for name in options.tasks_of:
        for task in _of_campaign(Path(name)):
            found.setdefault(task.key, task)
    return _bounded(list(found.values()), options)


def _bounded(tasks: list[MeasuredTask], options: MeasureOptions) -> list[MeasuredTask]:
    """Returns at most `most_tasks` tasks with at least `least_flops`, in the same order."""
    from cdmpp.datasets.splits import uniform_draw

    if options.least_flops > 0:
        tasks = [task for task in tasks if (task.flop_count or 0.0) >= options.least_flops]
        if not tasks:
            raise DataError(
                f"no task has {options.least_flops:g} floating point operations; reduce least_flops"
            )
    if not options.most_tasks:
        return tasks
    draws = sorted(tasks, key=lambda task: uniform_draw(task.key, options.seed))
    kept = {task.key for task in draws[: options.most_tasks]}
    return [task for task in tasks if task.key in kept]


def _sampled(name: str) -> Iterator[MeasuredTask]:
    if name.endswith(".py"):
        from tvm_helper.tasks.program_file import read_programs

        for program in read_programs(Path(name)):
            if program.fault:
                raise DataError(program.fault)
            yield module_task(f"{Path(name).name}:{program.name}", program.module)
        return
    from tvm_helper.compat import tvm
    from tvm_helper.measure.tasks import OPERATOR_OF_KIND, index_bounds, named_function

    full_name, function = named_function(name)
    operator = OPERATOR_OF_KIND.get(full_name.partition(":")[0])
    task = module_task(full_name, tvm.IRModule({"main": function}), operator=operator)
    bounds = index_bounds(name)
    yield replace(task, content={**task.content, "indices": bounds}) if bounds else task


def _of_network(path: Path, sizes: InputSizes | None, target: Any) -> Iterator[MeasuredTask]:
    from tvm_helper.tasks.network_tasks import load_network, network_tasks

    for task in network_tasks(load_network(path, sizes), target).tasks:
        networks = ((path.stem, task.weight),)
        yield module_task(f"{path.stem}:{task.name}", task.module, networks=networks)


def _of_campaign(folder: Path) -> Iterator[MeasuredTask]:
    from cdmpp.processes.campaign import read_campaign
    from tvm_helper.measure.journal import COMMAND, read_journal
    from tvm_helper.measure.tables import read_task

    read_campaign(folder, COMMAND)  # raises if the folder has no campaign
    drawn = dict.fromkeys(e["task"] for e in read_journal(folder) if e["kind"] == "drawn")
    for key in drawn:
        task = read_task(folder, key)
        if task["source"] == "metaschedule":
            yield MeasuredTask(
                name=task["name"], source="metaschedule", workload_key=task["workload_key"],
                operator=task["operator"], flop_count=task["flop_count"],
                networks=tuple((name, weight) for name, weight in task["networks"]),
                content={name: task[name] for name in ("module", "indices") if name in task},
            )  # fmt: skip


def module_task(
    name: str,
    module: Any,
    *,
    networks: tuple[tuple[str, int], ...] = (),
    operator: str | None = None,
) -> MeasuredTask:
    """Returns the task of an unscheduled module; its key is that of a MetaSchedule database.

    Args:
        operator: operator name; None = derived from the names of the module's blocks.
    """
    from tvm_helper.compat import s_tir, tvm
    from tvm_helper.tasks.operator_name import operator_of

    try:
        flops: float | None = float(s_tir.analysis.estimate_tir_flops(module))
    except Exception:  # TVM cannot count every expression
        flops = None
    return MeasuredTask(
        name=name,
        source="metaschedule",
        workload_key=json.dumps([workload_hash(module)]),
        operator=operator or operator_of(module),
        flop_count=flops,
        networks=networks,
        content={"module": str(tvm.ir.save_json(module))},
    )


def workload_hash(module: Any) -> str:
    """Returns the hash of a module in a MetaSchedule database."""
    from tvm_helper.compat import meta_schedule

    return str(meta_schedule.database.Workload(module).as_json()[0])


def _replayed(folder: Path, options: MeasureOptions, target_kind: str) -> Iterator[MeasuredTask]:
    """Yields the tasks of a Tenset folder, with programs drawn by hash."""
    from cdmpp.datasets.tenset.folder import find_device_files, find_devices
    from cdmpp.datasets.tenset.task_index import load_tasks

    devices = options.replay_devices or find_devices(folder)
    index = load_tasks(folder / "network_info")
    drawn: dict[str, dict[str, tuple[float, MeasureRecord]]] = {}
    for device in devices:
        for path in find_device_files(folder, device):
            _draw_records(path, device, target_kind, options, drawn)
    if not drawn:
        raise DataError(
            f"{folder}: no record of target kind {target_kind!r} to replay; expected records of "
            "the kind that the device runs"
        )
    for workload_key in sorted(drawn):
        task = index.find(workload_key, target_kind)
        if task is None:
            raise DataError(
                f"{folder}: task {workload_key} is not in network_info; give the folder of the "
                "same Tenset release"
            )
        chosen = sorted(drawn[workload_key].items(), key=lambda item: item[1][0])
        graph = JsonGraph(task.dag_json)
        operator = operator_name(graph)
        yield MeasuredTask(
            name=f"{operator} {workload_key}"[:120],
            source="tenset",
            workload_key=workload_key,
            operator=operator,
            flop_count=flop_count(graph),
            networks=tuple(index.networks_of(workload_key, target_kind)),
            content={
                "dag": task.dag_json, "target": task.target, "target_kind": task.target_kind,
                "hardware_params": list(task.hardware_params),
            },
            programs=tuple((identity, list(record.steps)) for identity, (_, record) in chosen),
        )  # fmt: skip


def _draw_records(
    path: Path,
    device: str,
    target_kind: str,
    options: MeasureOptions,
    drawn: dict[str, dict[str, tuple[float, MeasureRecord]]],
) -> None:
    """Adds a file's records to `drawn`; keeps the first programs of each task by seeded hash."""
    from cdmpp.datasets.read_report import ReadReport
    from cdmpp.datasets.splits import uniform_draw
    from cdmpp.datasets.tenset.record_file import read_records

    for record in read_records(path, ReadReport(), device=device):
        if record.target_kind != target_kind:
            continue
        identity = program_id_of_text(
            "tenset", record.workload_key, record.schedule, record.target_kind
        )
        kept = drawn.setdefault(record.workload_key, {})
        kept[identity] = (uniform_draw(identity, options.seed), record)
        if len(kept) > 2 * options.per_task:
            best = heapq.nsmallest(options.per_task, kept.items(), key=lambda item: item[1][0])
            drawn[record.workload_key] = dict(best)
    for key, kept in drawn.items():
        best = heapq.nsmallest(options.per_task, kept.items(), key=lambda item: item[1][0])
        drawn[key] = dict(best)
