"""Kernels of searched networks, timed in their network.

A search runs a kernel repeatedly, so that its arguments are in the caches. Here the fastest
program of each task is called in the network's order, as in `cdmpp replay --measure`.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from cdmpp.devices.registry import get_device
from cdmpp.predict.machine_code.cold_memory import (
    KernelInNetwork,
    read_in_network,
    write_in_network,
)
from tvm_helper.measure.sources import module_task
from tvm_helper.replay.costs import ScheduleChoice, choose_schedules
from tvm_helper.replay.graph import network_graph
from tvm_helper.replay.measure import measure_network
from tvm_helper.search.folder_files import SEARCH_FILE
from tvm_helper.tasks.network_tasks import load_network
from tvm_helper.tasks.target import device_target

_TURNS = 3


def experiment(device: str, networks: Path, searches: Path, rounds: int = 3) -> None:
    """Writes `in_network.json` into the folder of each search that lacks it.

    Args:
        device: label of this machine's CPU.
        networks: folder with the networks.
        searches: folder with one search folder per network.
        rounds: measurements per network, because other tenants disturb the machine for minutes.
    """
    folders = sorted(path.parent for path in searches.glob(f"*/{SEARCH_FILE}"))
    found = {folder: read_in_network(folder) for folder in folders}
    for number in range(rounds):
        for folder in folders:
            counts = Counter(one.workload_key for one in found[folder])
            if max(counts.values(), default=0) <= number:
                kernels = _measured(networks / f"{folder.name}.pt2", folder, device)
                found[folder] += kernels
                write_in_network(folder, found[folder])
                print(f"{folder.name}: {len(kernels)} kernels", flush=True)


def _measured(path: Path, search: Path, label: str) -> list[KernelInNetwork]:
    """Returns the timings of a network's kernels for the fastest programs of its search."""
    device = get_device(label)
    target = device_target(device)
    network = network_graph(
        load_network(path), target, name=path.stem, source=str(path), device=device.name
    )
    chosen = choose_schedules(network, target, ScheduleChoice("database", database=search))
    timed = measure_network(network, chosen, target, turns=_TURNS)
    sizes = {one.task: one.bytes or 0 for one in network.graph.operators}
    return [
        KernelInNetwork(
            module_task(task.name, task.module).workload_key, sizes[task.workload_key],
            timed.kernel_s[task.workload_key],
        )
        for task in network.tasks.tasks
        if task.workload_key in timed.kernel_s and not chosen[task.workload_key].remark
    ]  # fmt: skip
