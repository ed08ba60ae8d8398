"""Exported files hold the six columns of the original's, without a pickle."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cdmpp.cli.main import main
from cdmpp.datasets.export import export
from cdmpp.datasets.extraction.extract import extract
from cdmpp.datasets.extraction.extracted import read_table
from cdmpp.datasets.extraction.merge import merge
from cdmpp.datasets.tenset.source import TensetRecords
from cdmpp.errors import DataError, ReplayError, UsageError
from cdmpp.programs.compact_ast import CompactAst
from tests.paths import ROOT

Featurise = Callable[..., list[CompactAst | ReplayError]]
DOCS = ROOT / "docs" / "reference" / "formats.md"


@pytest.fixture
def extracted(tiny_dataset: Path, tmp_path: Path, featurise: Featurise) -> Path:
    extract(
        TensetRecords(tiny_dataset, None, featurise, shard_bytes=1), tmp_path / "extracted", jobs=1
    )
    return tmp_path / "extracted"


def rows(folder: Path, table: str, columns: list[str]) -> list[dict[str, Any]]:
    return [row for part in read_table(folder, table, columns) for row in part.to_pylist()]


def samples_of(path: Path) -> list[dict[str, Any]]:
    """The samples of a file, one dict each; refuses pickles."""
    with np.load(path, allow_pickle=False) as file:
        leaf, tree = file["leaf_offset"], file["tree_offset"]
        return [
            {
                "program_id": file["program_id"][n].decode(),
                "avg": file["avg"][n],
                "std": file["std"][n],
                "flops": file["flops"][n],
                "leaf_features": file["leaf_features"][leaf[n] : leaf[n + 1]],
                "node_ids": file["node_ids"][leaf[n] : leaf[n + 1]],
                "tree": file["serialized_tree"][tree[n] : tree[n + 1]],
            }
            for n in range(len(file["avg"]))
        ]


def test_every_measurement_is_a_sample(extracted: Path, tmp_path: Path) -> None:
    report = export(extracted, tmp_path / "out")
    assert report.samples == {"epyc-avx2-1c": 18, "xeon-avx2-1c": 18}
    with pytest.raises(UsageError, match="has an export already"):
        export(extracted, tmp_path / "out")  # tasks of another dataset would be mixed in
    programs = {
        row["program_id"]: row
        for row in rows(
            extracted,
            "programs",
            ["program_id", "workload_key", "flop_count", "leaf_features", "leaf_position", "tree"],
        )
    }
    tasks = json.loads((tmp_path / "out" / "tasks.json").read_text())
    assert [task["flop_count"] for task in tasks] == sorted(task["flop_count"] for task in tasks)
    columns = ["program_id", "device", "latency_s", "latency_std_s"]
    measured = {
        (row["device"], row["program_id"]): row for row in rows(extracted, "measurements", columns)
    }
    seen = 0
    for label, count in report.files.items():
        paths = list((tmp_path / "out" / label).iterdir())
        assert len(paths) == count == 6
        for path in paths:
            task = tasks[int(path.stem)]
            for sample in samples_of(path):
                row = measured[label, sample["program_id"]]
                program = programs[sample["program_id"]]
                assert program["workload_key"] == task["workload_key"]
                assert (sample["avg"], sample["std"]) == (row["latency_s"], row["latency_std_s"])
                assert sample["flops"] == (program["flop_count"] or -1)
                features = np.array(program["leaf_features"], np.float32).reshape(-1, 164)
                assert np.array_equal(sample["leaf_features"], features)
                assert sample["tree"].tolist() == program["tree"]
                expected = [program["tree"][place] for place in program["leaf_position"]]
                assert sample["node_ids"].tolist() == expected
                seen += 1
    assert seen == 36
    assert "feature_type: ast_ansor" in (tmp_path / "out" / "cfg.yaml").read_text()


def test_a_merged_dataset_exports_the_same(
    tiny_dataset: Path, extracted: Path, tmp_path: Path, featurise: Featurise
) -> None:
    """There a program and its measurements are in different shards."""
    labels = ("epyc-avx2-1c", "xeon-avx2-1c")
    for label in labels:
        extract(
            TensetRecords(tiny_dataset, [label], featurise, shard_bytes=1), tmp_path / label, jobs=1
        )
    merge([tmp_path / label for label in labels], tmp_path / "merged")
    export(extracted, tmp_path / "one")
    export(tmp_path / "merged", tmp_path / "two")
    names = [path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*.*")]
    assert len(names) == 14
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_devices_and_small_tasks_can_be_left_out(extracted: Path, tmp_path: Path) -> None:
    report = export(extracted, tmp_path / "out", devices=["xeon-avx2-1c"], min_samples=4)
    assert report.files == {"xeon-avx2-1c": 0}
    assert report.left_out == 6
    assert "6 files left out" in report.summary()
    with pytest.raises(DataError, match="devices found: epyc-avx2-1c, xeon-avx2-1c"):
        export(extracted, tmp_path / "out", devices=["t4"])
    with pytest.raises(UsageError, match="unknown format"):
        export(extracted, tmp_path / "out", format="npy")  # type: ignore[arg-type]
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot write the exported dataset"):
        export(extracted, tmp_path / "file" / "out")


def test_the_documented_conversion_gives_the_original_rows(
    extracted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export(extracted, tmp_path / "out")
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    (code,) = (block for block in blocks if "original_rows" in block)
    scope: dict[str, Any] = {}
    exec(code, scope)
    path = sorted((tmp_path / "out" / "xeon-avx2-1c").iterdir())[0]
    table = scope["original_rows"](path)
    assert table.shape == (3, 6)
    assert table.dtype == object
    for row, sample in zip(table, samples_of(path), strict=True):
        assert row[:3].tolist() == [sample["avg"], sample["std"], sample["flops"]]
        assert np.array_equal(row[3], sample["leaf_features"])
        assert row[4].tolist() == sample["node_ids"].tolist()
        assert row[5].tolist() == sample["tree"].tolist()


def test_the_command(extracted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["dataset", "export", str(extracted), "--out", str(tmp_path / "out")]
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["samples"]["xeon-avx2-1c"] == 18
    arguments[-1] = str(tmp_path / "xeon")
    assert main([*arguments, "--format", "cdmpp6", "--device", "xeon-avx2-1c"]) == 0
    assert "18 samples of 6 tasks" in capsys.readouterr().out
