"""Attacks `cdmpp serve` on this machine: fuzzed requests, slow connections, large bodies, kills.

Connects to a server that it starts itself on the loopback interface, and to nothing else.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from cdmpp.machine import versions
from cdmpp.serve.client import Client
from lab.paths import ROOT
from tests.serve.attack import SCRIPT, attack, exchange, slow_connections
from tests.serve.serving import connect, leaves

DEVICE = "epyc-avx2-2c"


@contextlib.contextmanager
def whole_server(*options: str) -> Iterator[tuple[str, psutil.Process]]:
    """Runs `cdmpp serve` with the shipped model and gives its URL and process."""
    command = [sys.executable, "-m", "cdmpp.cli.main", "serve", "--port", "0", "--json", "-q"]
    with subprocess.Popen(
        [*command, *options], cwd=ROOT, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["url"], psutil.Process(process.pid)
        finally:
            process.terminate()
            process.wait(60)


def memory_mib(process: psutil.Process) -> float:
    """Returns the resident memory of a server without its readers."""
    return float(process.memory_info().rss) / 2**20


def run(count: int, seed: int) -> dict[str, Any]:
    """Attacks a server; returns what came of it."""
    from tests.tvm_helper.sampled import sample_schedules
    from tests.tvm_helper.search.fixtures import matmul
    from tvm_helper.compat import tvm

    samples = sample_schedules(matmul(64), "llvm", 4, seed=seed)
    tir_json = [tvm.ir.save_json(schedule.mod) for schedule in samples]
    with whole_server() as (url, process), Client(url, tries=1) as client:
        expected = client.rank([leaves(3)], device=DEVICE, own_batch=True)["latency_s"]

        def still_answers() -> bool:
            found = client.rank([leaves(3), {"tvmscript": SCRIPT}], device=DEVICE)["latency_s"]
            own = client.rank([leaves(3)], device=DEVICE, own_batch=True)["latency_s"]
            return bool(own == expected and len(found) == 4 and found[3] > 0)

        before = memory_mib(process)
        with tempfile.TemporaryDirectory(prefix="cdmpp-attack-") as folder:
            outcome = attack(
                url, count, device=DEVICE, seed=seed, tir_json=tir_json, folder=Path(folder)
            )
        facts: dict[str, Any] = {
            "requests": count, "seed": seed, "wrong": outcome.wrong,
            "statuses": {kind: dict(sorted(one.items())) for kind, one in outcome.statuses.items()},
            "slowest_s": {kind: round(one, 3) for kind, one in outcome.slowest_s.items()},
            "answers_after_fuzzing": still_answers(),
            "memory_mib": {"before": before, "after": memory_mib(process)},
        }  # fmt: skip
        facts["slow_connections"] = _slow(url, still_answers)
        facts["large_bodies"] = [_large(url, size) for size in (10 << 20, 40 << 20)]
        facts["clients_killed"] = _killed_clients(url, still_answers)
        metrics = client._once("GET", "/metrics", None)[2].decode()
        facts["readers_lost"] = next(
            float(line.split()[1]) for line in metrics.splitlines()
            if line.startswith("cdmpp_lost_readers ")
        )  # fmt: skip
        facts["memory_mib"]["end"] = memory_mib(process)
        facts["is_running"] = process.is_running()
    facts["versions"] = versions()
    return facts


def _slow(url: str, still_answers: Any) -> dict[str, Any]:
    """Opens 200 connections that say little, and asks beside them until they are closed."""
    connections = slow_connections(url, 200)
    began = time.monotonic()
    waits = []
    while time.monotonic() - began < 5:
        started = time.monotonic()
        assert still_answers()
        waits.append(time.monotonic() - started)
    for connection in connections:
        connection.settimeout(30)
        while connection.recv(4096):
            pass
        connection.close()
    return {
        "connections": len(connections), "slowest_answer_beside_s": round(max(waits), 3),
        "all_closed_after_s": round(time.monotonic() - began, 1),
    }  # fmt: skip


def _large(url: str, size: int) -> dict[str, Any]:
    body = b'{"programs": [{"tvmscript": "' + b"(" * size + b'"}], "device": "epyc-avx2-2c"}'
    head = (
        "POST /v1/rank HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    began = time.monotonic()
    answer = exchange(url, head.encode() + body, is_whole=True)
    return {
        "bytes": len(body), "answer": answer.split(b"\r\n")[0].decode(),
        "seconds": round(time.monotonic() - began, 2),
    }  # fmt: skip


def _killed_clients(url: str, still_answers: Any) -> dict[str, Any]:
    def drop() -> None:
        body = json.dumps({"programs": [leaves(20)], "device": DEVICE}).encode()
        head = f"POST /v1/rank HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" \
               f"Content-Length: {len(body)}\r\n\r\n"  # fmt: skip
        with connect(url) as connection:
            connection.sendall(head.encode() + body)

    threads = [threading.Thread(target=drop) for _ in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"clients": len(threads), "answers_after": bool(still_answers())}
