"""A tiny dataset in Tenset's layout, cut from the shipped one, and made-up samples."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path

import numpy as np

from cdmpp.datasets.read_report import ReadReport
from cdmpp.datasets.samples import ProgramArrays, Samples
from cdmpp.datasets.tenset.folder import load_tasks, read_records
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import ReplayError
from cdmpp.programs.compact_ast import CompactAst
from cdmpp.records import MeasureRecord, TensetTask
from tests.paths import ROOT

SHIPPED = ROOT / "data" / "tenset-cpu"
NETWORKS = ("bert_tiny,[(1,128)]", "dcgan,[(1,3,64,64)]", "bert_base,[(1,64)]")
TINY_DEVICES = ("epyc-avx2-1c", "xeon-avx2-1c")


def write_tiny_dataset(root: Path) -> Path:
    """Writes six tasks of three networks, three programs each, on two devices; text, no errors."""
    network_info = root / "network_info"
    network_info.mkdir(parents=True)
    for network in NETWORKS:
        name = f"(({network}),llvm).task.pkl.gz"
        (network_info / name).write_bytes((SHIPPED / "network_info" / name).read_bytes())
    keys = {key for key, _ in load_tasks(network_info).tasks}
    files = [
        path
        for path in sorted((SHIPPED / "measure_records" / TINY_DEVICES[0]).iterdir())
        if _file_key(path) in keys
    ][:6]
    for path in files:
        lines = [
            _good_lines(SHIPPED / "measure_records" / label / path.name) for label in TINY_DEVICES
        ]
        programs = [steps for steps in lines[0] if steps in lines[1]][:3]
        for label, chosen in zip(TINY_DEVICES, lines, strict=True):
            folder = root / "measure_records" / label
            folder.mkdir(parents=True, exist_ok=True)
            text = "".join(chosen[steps] + "\n" for steps in programs)
            (folder / path.name.removesuffix(".gz")).write_text(text)
    return root


def _good_lines(path: Path) -> dict[str, str]:
    """Steps -> line, of the measurements without error."""
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    values = [(json.loads(line), line) for line in lines]
    return {json.dumps(value["i"][1]): line for value, line in values if value["r"][1] == 0}


def _file_key(path: Path) -> str:
    return next(read_records(path, ReadReport())).workload_key


def fake_ast(record: MeasureRecord) -> CompactAst:
    """Features that follow from the steps only, 1 to 6 leaves."""
    seed = zlib.crc32(repr(record.steps).encode())
    count = 1 + seed % 6
    nodes = list(range(count + 1))
    return CompactAst(
        leaf_features=np.random.default_rng(seed).random((count, 164), dtype=np.float32),
        leaf_extra=np.zeros((count, 0), np.float32),
        leaf_position=np.array(nodes[1:], np.int32),
        tree=np.array([*nodes, *[-1] * len(nodes)], np.int32),
    )


def fake_featurise(
    task: TensetTask, records: list[MeasureRecord]
) -> list[CompactAst | ReplayError]:
    """A stand-in for the real featuriser that needs no compiler."""
    return [fake_ast(record) for record in records]


def build_samples(
    networks: list[list[tuple[str, int]]],
    *,
    programs_per_task: int = 2,
    devices: tuple[str, ...] = ("a", "b"),
) -> Samples:
    """Returns samples with one leaf a program; task t is in the networks of entry t."""
    tasks = [f'["key{task}", {task}]|llvm' for task in range(len(networks))]
    task_id = np.repeat(np.arange(len(tasks)), programs_per_task)
    count = len(task_id)
    programs = ProgramArrays(
        program_id=np.array([f"{number:064x}" for number in range(count)], dtype=object),
        task_id=task_id,
        tasks=np.array(tasks, dtype=object),
        operator=np.array(["conv2d"] * count, dtype=object),
        networks=networks,
        flop_count=np.full(count, 1e9),
        leaf_offset=np.arange(count + 1),
        leaf_features=np.zeros((count, 164), np.float32),
        leaf_extra=np.zeros((count, 0), np.float32),
        leaf_position=np.ones(count, np.int32),
        data_hash="0" * 64,
        feature_schema={"leaf": 1, "leaf_extra": 0},
        tree_offset=np.zeros(count + 1, np.int64),
        tree=np.zeros(0, np.int32),
        schedule_offset=np.zeros(count + 1, np.int64),
        schedule=np.zeros(0, np.uint8),
    )
    return Samples(
        programs=programs,
        devices=tuple(DeviceSpec(name=label, kind="cpu") for label in devices),
        program=np.tile(np.arange(count), len(devices)),
        device=np.repeat(np.arange(len(devices)), count),
        latency_s=np.full(count * len(devices), 1e-3),
        latency_std_s=np.full(count * len(devices), 1e-5),
    )
