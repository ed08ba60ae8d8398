"""The arrays of a training cache: programs once, repeated measurements pooled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from cdmpp.datasets import cache
from cdmpp.datasets.cache import load_samples
from cdmpp.datasets.extraction.extracted import MANIFEST
from cdmpp.datasets.extraction.schema import measurements_schema, programs_schema, schema_versions
from cdmpp.datasets.extraction.shard import table_note

Row = dict[str, Any]
DEVICES = ("xeon-avx2-1c", "epyc-avx2-1c")


def _extracted(
    folder: Path, programs: list[Row], measurements: list[Row], data_hash: str = "0" * 64
) -> Path:
    tables = (("programs", programs, programs_schema()), ("measurements", measurements, None))
    shard = {}
    for name, rows, schema in tables:
        path = folder / f"{name}-00000.parquet"
        table = pa.Table.from_pylist(rows, schema=schema or measurements_schema())
        parquet.write_table(table, path, row_group_size=3)
        shard[name] = table_note(path, len(rows))
    manifest = {
        "schema": schema_versions(), "data_hash": data_hash, "shards": [shard],
        "leaf_extra_count": 0,
    }  # fmt: skip
    (folder / MANIFEST).write_text(json.dumps(manifest))
    return folder


def _program(identity: str, task: str, leaves: int) -> Row:
    return {
        "program_id": identity, "source": "tenset", "workload_key": task, "operator": f"op-{task}",
        "target_kind": "llvm", "networks": [], "flop_count": None, "valid": True,
        "leaf_features": [float(len(identity))] * (164 * leaves), "leaf_extra": [],
        "leaf_position": list(range(leaves)), "tree": [leaves], "schedule": identity,
    }  # fmt: skip


def test_programs_are_taken_once_and_repeats_pooled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_CHUNK", 2)
    programs = [
        _program("cc", "t", 2), _program("none", "t", 0), _program("a", "t", 1),
        _program("cc", "t", 2), _program("bbb", "u", 3),
    ]  # fmt: skip
    rng = np.random.default_rng(0)
    costs: dict[tuple[str, str], list[float]] = {}
    measurements = []
    for number in range(40):
        identity = ("bbb", "a", "cc", "none", "nobody")[number % 5]
        device = DEVICES[number % 2]
        own = rng.uniform(1e-3, 2e-3, 1 + number % 9).tolist()
        is_bad = number in (3, 10, 11)
        if number == 10:
            own[0] = float("inf")
        if number == 11:
            own = []
        measurements.append({
            "program_id": identity, "device": device, "costs_s": own,
            "error_code": int(number == 3), "measured_at": number,
        })  # fmt: skip
        if not is_bad and identity not in ("none", "nobody"):
            costs.setdefault((device, identity), []).extend(own)
    samples = load_samples(_extracted(tmp_path, programs, measurements))
    assert samples.programs.program_id.tolist() == ["cc", "a", "bbb"]
    assert samples.programs.operator.tolist() == ["op-t", "op-t", "op-u"]
    assert samples.programs.leaf_offset.tolist() == [0, 2, 3, 6]
    assert samples.programs.leaf_features[:, 0].tolist() == [2, 2, 1, 3, 3, 3]
    assert [samples.programs.schedule_text(row) for row in range(3)] == ["cc", "a", "bbb"]
    assert [spec.name for spec in samples.devices] == sorted(DEVICES)
    found = [
        (samples.devices[device].name, samples.programs.program_id[program])
        for device, program in zip(samples.device, samples.program, strict=True)
    ]
    order = {"cc": 0, "a": 1, "bbb": 2}
    assert found == sorted(costs, key=lambda key: (key[0], order[key[1]]))
    assert samples.latency_s.tolist() == [np.mean(costs[key]) for key in found]
    assert samples.latency_std_s.tolist() == [np.std(costs[key]) for key in found]


def test_datasets_in_one_cache_folder_keep_their_arrays(tmp_path: Path) -> None:
    def load(name: str, data_hash: str) -> set[Path]:
        measured = {
            "program_id": "a", "device": DEVICES[0], "costs_s": [1.0], "error_code": 0,
            "measured_at": 0,
        }  # fmt: skip
        (tmp_path / name).mkdir(exist_ok=True)
        folder = _extracted(tmp_path / name, [_program("a", "t", 1)], [measured], data_hash)
        load_samples(folder, cache_dir=tmp_path / "cache")
        return set((tmp_path / "cache").rglob("cache-v*"))

    one, both = load("one", "1" * 64), load("two", "2" * 64)
    assert one < both
    changed = load("one", "3" * 64)
    assert len(changed) == 2
    assert not one & changed
