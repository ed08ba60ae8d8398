"""Load test of `cdmpp serve` on this machine: throughput against local scoring.

Clients are threads of this process; each repeats one request over its own connection. Local scoring
is `predict` of the same batch in this process, just before each load while the server idles. If
clients and server share two cores, CPU time per program is more informative than wall time.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil

from cdmpp.datasets.read_report import ReadReport
from cdmpp.datasets.tenset.folder import default_dataset_dir, find_device_files, load_tasks
from cdmpp.datasets.tenset.record_file import read_records
from cdmpp.devices.registry import load_registry
from cdmpp.models.assemble import AskedProgram, assemble_samples
from cdmpp.predict.estimates import load_trained
from cdmpp.predict.records import record_programs
from cdmpp.pretrained import PRETRAINED, find_pretrained
from cdmpp.serve.client import Client
from cdmpp.serve.leaf_table import encode_asts
from cdmpp.text import markdown_table
from lab import stamp as stamps
from lab.pages import sections, write_page
from lab.paths import ROOT

DEVICE = "epyc-avx2-2c"
CLIENTS = (1, 8, 64)
#: Programs per request: one kernel of a user, a batch of a search.
PROGRAMS = (1, 64)


@dataclass(frozen=True)
class Load:
    """Result of one load.

    Attributes:
        clients: number of concurrent clients.
        programs: per request.
        per_s: predicted programs per second.
        cpu_ms: CPU milliseconds of the server per program.
        p50_s: median latency of a request.
        p99_s: 99th percentile.
        statuses: status -> number of responses.
        memory_mib: of the server: before, after each quarter of the load, and afterwards.
    """

    clients: int
    programs: int
    per_s: float
    cpu_ms: float
    p50_s: float
    p99_s: float
    statuses: dict[int, int]
    memory_mib: list[float]


@contextlib.contextmanager
def whole_server() -> Iterator[tuple[str, psutil.Process]]:
    """Runs `cdmpp serve` with the shipped model; yields its URL and process."""
    command = [sys.executable, "-m", "cdmpp.cli.main", "serve", "--port", "0", "--json", "-q",
               "--timeout", "60"]  # fmt: skip
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["url"], psutil.Process(process.pid)
        finally:
            process.terminate()
            process.wait(60)


def memory_mib(process: psutil.Process) -> float:
    """Returns the resident memory of the server's main process."""
    return float(process.memory_info().rss) / 2**20


def asked_programs(count: int) -> list[AskedProgram]:
    """Returns programs of several tasks from the shipped records."""
    spec = load_registry()[DEVICE]
    folder = default_dataset_dir()
    tasks = load_tasks(folder / "network_info")
    found: list[AskedProgram] = []
    for path in find_device_files(folder, DEVICE):
        records = [one for one, _ in zip(read_records(path, ReadReport()), range(16), strict=False)]
        task = tasks.find(records[0].workload_key, records[0].target_kind)
        assert task is not None
        asked = record_programs(task, records, [lambda record: spec])
        found += [one for one in asked if not isinstance(one, str)]
        if len(found) >= count:
            return found[:count]
    raise SystemExit("too few shipped records")


class Local:
    """A model in this process, without a server."""

    def __init__(self) -> None:
        self._model = load_trained(find_pretrained()).model

    def speed(self, asked: list[AskedProgram], seconds: float = 4.0) -> dict[str, float]:
        """Returns programs per second and CPU milliseconds per program for one batch."""
        self._model.predict(assemble_samples(asked))
        done = 0
        began, cpu = time.perf_counter(), time.process_time()
        while time.perf_counter() - began < seconds:
            self._model.predict(assemble_samples(asked))
            done += len(asked)
        elapsed, used = time.perf_counter() - began, time.process_time() - cpu
        return {"per_s": done / elapsed, "cpu_ms": 1e3 * used / done}


def load(url: str, process: psutil.Process, body: bytes, clients: int, programs: int,
         seconds: float) -> Load:  # fmt: skip
    """Sends requests for `seconds` and returns the result."""
    waits: list[float] = []
    statuses: Counter[int] = Counter()
    stop = time.monotonic() + seconds
    memory, cpu = [memory_mib(process)], sum(process.cpu_times()[:2])

    def ask() -> None:
        with Client(url, timeout_s=120, tries=1) as client:
            while time.monotonic() < stop:
                began = time.monotonic()
                status = client._once("POST", "/v1/rank", body)[0]
                waits.append(time.monotonic() - began)
                statuses[status] += 1

    threads = [threading.Thread(target=ask) for _ in range(clients)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for _ in range(4):
        time.sleep(seconds / 4)
        memory.append(memory_mib(process))
    for thread in threads:
        thread.join()
    elapsed = time.monotonic() - began
    answered = statuses[200] * programs
    used = sum(process.cpu_times()[:2]) - cpu
    p50, p99 = np.percentile(waits, [50, 99])
    return Load(
        clients, programs, answered / elapsed, 1e3 * used / max(1, answered), float(p50),
        float(p99), dict(statuses), [*memory, memory_mib(process)],
    )  # fmt: skip


def run(seconds: float) -> dict[str, Any]:
    """Loads a server with every number of clients and size of request."""
    facts: dict[str, Any] = {
        "seconds": seconds, "loads": [],
        "cores": len(psutil.Process().cpu_affinity()), "load_average": psutil.getloadavg()[0],
    }  # fmt: skip
    asked = asked_programs(max(PROGRAMS))
    local = Local()
    bodies = {}
    for count in PROGRAMS:
        entry = {"leaves": encode_asts([one.ast for one in asked[:count]])}
        bodies[count] = json.dumps({"programs": [entry], "device": DEVICE}).encode()
    facts["body_bytes"] = {count: len(body) for count, body in bodies.items()}
    with whole_server() as (url, process):
        load(url, process, bodies[1], 4, 1, 2.0)  # warm-up: triggers lazy imports
        for count, body in bodies.items():
            for clients in CLIENTS:
                here = local.speed(asked[:count])  # just before: the machine may be shared
                one = load(url, process, body, clients, count, seconds)
                facts["loads"].append({**vars(one), "local": here})
                print(_line(one, here), file=sys.stderr, flush=True)
    return facts


def _line(one: Load, local: dict[str, float]) -> str:
    return (
        f"{one.clients} clients x {one.programs} programs: {one.per_s:.0f} programs/s "
        f"({one.per_s / local['per_s']:.2f} of local), {one.cpu_ms:.3f} CPU ms a program "
        f"(local {local['cpu_ms']:.3f}), p50 {1e3 * one.p50_s:.1f} ms, p99 "
        f"{1e3 * one.p99_s:.1f} ms, {one.statuses}, memory "
        f"{[round(value) for value in one.memory_mib]} MiB"
    )


def experiment(seconds: float = 60.0) -> None:
    """Loads a server and writes the page.

    Args:
        seconds: duration of each load.
    """
    facts = run(seconds)
    origin = stamps.stamp("python -m lab run serve", schemas=stamps.PROGRAMS, models=[PRETRAINED])
    print(write_page("serve", sections("serve", table=_load_table(facts)), {"load": facts}, origin))


def _load_table(load: dict[str, Any]) -> str:
    rows = []
    for one in load["loads"]:
        local = one["local"]
        rows.append([
            str(one["clients"]), str(one["programs"]), f"{one['per_s']:.0f}",
            f"{one['per_s'] / local['per_s']:.2f}", f"{one['cpu_ms']:.3f}",
            f"{local['cpu_ms']:.3f}", f"{1e3 * one['p50_s']:.0f}", f"{1e3 * one['p99_s']:.0f}",
        ])  # fmt: skip
    return markdown_table(
        ["clients", "programs a request", "programs/s", "of local", "CPU ms", "local CPU ms",
         "p50 ms", "p99 ms"], rows, "r",
    )  # fmt: skip
