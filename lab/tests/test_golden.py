"""Fidelity to the original TVM, and the golden command on good and bad input."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from cdmpp.datasets.read_report import ReadReport
from cdmpp.datasets.tenset.folder import default_dataset_dir, load_tasks, read_records
from cdmpp.errors import DataError
from cdmpp.programs.ansor.dag import parse_dag
from cdmpp.programs.loops.loop_tree import Loop, stores_with_path
from cdmpp.programs.schema import LEAF_FEATURE_NAMES
from lab.experiments.golden import COUNTS, compare_golden, page
from tests.paths import shared
from tests.programs.reference.lower import lower_record
from tests.programs.reference.operations import op_counts


@pytest.mark.slow
@pytest.mark.parametrize("every", [15, pytest.param(1, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(
    ("name", "folder", "int_share"),
    [("llvm", "tenset-cpu", 0.999), ("cuda", "tenset-cuda", 0.97), ("gpu", "ansor-gpu", 0.98)],
)
def test_replay_equals_the_original(
    name: str, folder: str, int_share: float, every: int, tmp_path: Path
) -> None:
    path = tmp_path / "lines.jsonl"
    with gzip.open(shared(f"golden/golden_{name}.jsonl.gz"), "rt") as stream:
        path.write_text("".join(itertools.islice(stream, 0, None, every)))
    report = compare_golden([path], [shared(f"{folder}/network_info")])
    counts = report.counts
    assert counts["lines"] > 900 // every
    assert f"replayed, lines | {counts['lines']:,} of {counts['lines']:,} |" in page({name: report})
    assert counts["replayed"] == counts["structure_equal"] == counts["lines"]
    assert counts["float_ops_equal"] == counts["stores_matched"] > 3000 // every
    few = 2 if every > 1 else 0  # a sample may have more than its share
    assert counts["int_ops_equal"] + few >= int_share * counts["stores_matched"]
    assert counts["compute_cells_equal"] >= 0.999 * counts["compute_cells"] > 0
    assert counts["buffer_cells_close"] >= 0.999 * counts["buffer_cells"] > 0
    assert counts["other_cells_close"] == counts["other_cells"] > 0
    assert counts["invalid_agree"] == counts["invalid_expected"]
    assert counts["valid_agree"] == counts["valid_expected"]


def test_column_names_are_the_original_ones() -> None:
    with gzip.open(shared("golden/golden_llvm.jsonl.gz"), "rt") as stream:
        header = json.loads(next(stream))
    assert tuple(header["feature_names"]) == LEAF_FEATURE_NAMES


@pytest.fixture(scope="module")
def shipped_line() -> dict[str, Any]:
    """A golden line made of our results for a record of the shipped dataset."""
    folder = default_dataset_dir()
    path = next(p for p in sorted((folder / "measure_records" / "xeon-avx2-2c").iterdir()))
    record = next(iter(read_records(path, ReadReport())))
    task = load_tasks(folder / "network_info").find(record.workload_key, "llvm")
    assert task is not None
    tree = lower_record(parse_dag(task.dag_json), record.steps, is_gpu=False)
    ids: dict[object, int] = {}
    stores = [
        {
            "buffer": store.buffer.name,
            "buf_id": ids.setdefault(store.buffer, len(ids)),
            "loops": [[n.extent, n.kind, n.var, 0] for n in nodes if isinstance(n, Loop)],
            "ops": op_counts(store.value),
        }
        for store, nodes in stores_with_path(tree)
    ]
    state = [[], list(record.steps)]
    text = {"i": [[record.workload_key, record.target], state], "r": [[0], 0, 0, 1], "v": "v0.6"}
    return {"record": json.dumps(text), "stores": stores}


def compare(tmp_path: Path, lines: list[dict[str, Any]]) -> dict[str, int]:
    path = tmp_path / "lines.jsonl.gz"
    with gzip.open(path, "wt") as stream:
        for line in [{"header": 1}, *lines]:
            stream.write(json.dumps(line) + "\n")
    return compare_golden([path], [default_dataset_dir() / "network_info"]).as_json()


def test_counts(tmp_path: Path, shipped_line: dict[str, Any]) -> None:
    wrong_loop = json.loads(json.dumps(shipped_line))
    wrong_loop["stores"][-1]["loops"].append([7, "serial", "extra", 0])
    wrong_ops = json.loads(json.dumps(shipped_line))
    wrong_ops["stores"][-1]["ops"] = {"float_addsub": 99, "int_mul": 99}
    rejected = {**shipped_line, "feature_error": "too large"}
    text = json.loads(shipped_line["record"])
    text["i"][0][0] = '["0123456789abcdef", 1, 2]'
    unknown = {**shipped_line, "record": json.dumps(text)}
    counts = compare(tmp_path, [shipped_line, wrong_loop, wrong_ops, rejected, unknown])
    stores = len(shipped_line["stores"])
    assert tuple(counts) == COUNTS
    assert counts == {
        "lines": 5, "replayed": 4, "structure_equal": 3, "stores_matched": 4 * stores - 1,
        "float_ops_equal": 4 * stores - 2, "int_ops_equal": 4 * stores - 2,
        "invalid_expected": 1, "invalid_agree": 0, "valid_expected": 4, "valid_agree": 3,
        "rows_compared": 0, "compute_cells": 0, "compute_cells_equal": 0, "buffer_cells": 0,
        "buffer_cells_close": 0, "other_cells": 0, "other_cells_close": 0,
    }  # fmt: skip


def test_swapped_buffers_are_noticed(tmp_path: Path, shipped_line: dict[str, Any]) -> None:
    merged = json.loads(json.dumps(shipped_line))
    for store in merged["stores"]:
        store["buf_id"] = 0
    several = len({store["buf_id"] for store in shipped_line["stores"]}) > 1
    assert compare(tmp_path, [merged])["structure_equal"] == (0 if several else 1)


def test_unreadable_files_are_one_sentence(tmp_path: Path) -> None:
    folder = [default_dataset_dir() / "network_info"]
    garbage = tmp_path / "garbage.jsonl"
    garbage.write_bytes(b"\x00\xff not json")
    for path in (tmp_path / "absent.jsonl.gz", garbage):
        with pytest.raises(DataError, match="cannot be read as golden file"):
            compare_golden([path], folder)
