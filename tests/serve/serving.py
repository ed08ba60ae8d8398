"""Servers for tests: a roofline as the model, a reader without TVM that does what texts say."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.datasets.samples import Samples
from cdmpp.models.assemble import AskedProgram, assemble_samples
from cdmpp.models.roofline import RooflineCostModel
from cdmpp.predict.saved_model import ModelCard, save_model, task_digests
from cdmpp.programs.compact_ast import LEAF_EXTRA_COUNT, CompactAst
from cdmpp.serve.leaf_table import encode_asts
from cdmpp.testing.synthetic import DEVICES, make_samples
from tests.paths import ROOT

DEVICE = DEVICES[0].name


def programs(count: int, *, seed: int = 0) -> list[CompactAst]:
    """Returns different programs."""
    arrays = make_samples(count, 1, seed=seed).programs
    found = []
    for row in range(count):
        leaves = slice(*arrays.leaf_offset[row : row + 2])
        nodes = slice(*arrays.tree_offset[row : row + 2])
        features = arrays.leaf_features[leaves]
        extra = np.zeros((len(features), LEAF_EXTRA_COUNT), np.float32)
        found.append(CompactAst(features, extra, arrays.leaf_position[leaves], arrays.tree[nodes]))
    return found


def samples_of(asts: Sequence[CompactAst]) -> Samples:
    """Returns one sample a program, measured at a made-up latency."""
    return assemble_samples([
        AskedProgram(str(n), "task|llvm", ast, DEVICES[0], measured_s=1e-3 * (n + 1))
        for n, ast in enumerate(asts)
    ])  # fmt: skip


def write_model(folder: Path, *, seed: int = 0) -> RooflineCostModel:
    """Writes a run folder; another seed gives another model."""
    samples = samples_of(programs(6, seed=seed))
    model = RooflineCostModel()
    model.fit(samples, samples, seed=0)
    card = ModelCard(
        kind=model.kind, feature_schema=samples.programs.feature_schema, data_hash=str(seed),
        split={}, devices=samples.devices, training_tasks=task_digests(samples), versions={},
    )  # fmt: skip
    folder.mkdir(exist_ok=True)
    save_model(model, folder, card)
    return model


def leaves(count: int, *, seed: int = 0) -> dict[str, Any]:
    """Returns an entry of a request with that many programs."""
    return {"leaves": encode_asts(programs(count, seed=seed))}


@contextlib.contextmanager
def server(model: Path, **options: Any) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Runs a server as a process of its own; gives its URL and the process."""
    facts = {"models": [str(model)], "port": 0, **options}
    with running([sys.executable, "-m", "tests.serve.serve_child", json.dumps(facts)]) as found:
        yield found


@contextlib.contextmanager
def running(command: Sequence[str]) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Runs a server; gives the first line that it prints and the process."""
    with subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline().strip()
            assert line, "the server did not start, see its error above"
            yield line, process
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def connect(url: str, *, timeout_s: float = 20) -> socket.socket:
    """Returns a bare connection to a server."""
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=timeout_s)


def said(connection: socket.socket) -> bytes:
    """Returns all that a server says until it closes the connection or a whole answer is there."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(65536):
            data += part
            head, _, body = data.partition(b"\r\n\r\n")
            sizes = [line for line in head.lower().split(b"\r\n") if b"content-length" in line]
            if sizes and len(body) >= int(sizes[0].split(b":")[1]):
                break
    return data
