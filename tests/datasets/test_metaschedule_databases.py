"""MetaSchedule databases as plain data: formats, gzip, damage, shards. Needs no TVM."""

from __future__ import annotations

import base64
import gzip
import json
import lzma
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cdmpp.datasets.extraction.extract import extract
from cdmpp.datasets.extraction.extracted import read_table
from cdmpp.datasets.extraction.source import Featurised
from cdmpp.datasets.metaschedule.databases import (
    RECORD_FILE,
    WORKLOAD_FILE,
    is_metaschedule_database,
    read_module_json,
    read_tuning_records,
    read_workloads,
)
from cdmpp.datasets.metaschedule.older import (
    ModuleFormat,
    module_format,
    upgraded_module,
    upgraded_trace,
)
from cdmpp.datasets.metaschedule.source import TuningDatabase
from cdmpp.datasets.read_report import ReadReport
from cdmpp.errors import DataError, ReplayError
from cdmpp.programs.compact_ast import CompactAst
from cdmpp.records import MeasureRecord

TARGET = {
    "kind": "cuda", "arch": "sm_80", "max_shared_memory_per_block": 49152, "max_num_threads": 1024,
    "thread_warp_size": 32,
}  # fmt: skip


def old_module(name: str) -> str:
    """A module as TVM 0.16 writes it, in outline."""
    nodes = [
        {"type_key": ""},
        {"type_key": "IRModule", "attrs": {"functions": "2", "global_var_map_": "3"}},
        {"type_key": "Map", "keys": [], "data": []},
        {"type_key": "Map", "keys": [name], "data": [4]},
        {"type_key": "GlobalVar", "attrs": {"_checked_type_": "0", "name_hint": "5"}},
    ]
    return json.dumps({"root": 1, "nodes": nodes, "attrs": {"tvm_version": "0.16.dev0"}})


def trace(tile: int) -> list[Any]:
    return [[["GetBlock", [], ["a", "main"], ["b0"]], ["Split", ["l1", tile], [1], ["l2"]]], []]


def line(workload: int, tile: int, seconds: list[float] | None = None) -> str:
    return json.dumps([workload, [trace(tile), seconds or [1e-5 * tile], TARGET, []]])


def write(folder: Path, lines: list[str], *, zipped: bool) -> Path:
    folder.mkdir()
    workloads = []
    for number, name in enumerate(("first", "second")):
        module = old_module(name).encode()
        text = base64.b64encode(len(module).to_bytes(8, "little") + module).decode()
        workloads.append(json.dumps([str(number), text]))
    for name, texts in ((WORKLOAD_FILE, workloads), (RECORD_FILE, lines)):
        data = "".join(f"{text}\n" for text in texts).encode()
        if zipped:
            (folder / f"{name}.gz").write_bytes(gzip.compress(data))
        else:
            (folder / name).write_bytes(data)
    return folder


def featurise(module: str, records: list[MeasureRecord]) -> Featurised:
    """A compact AST a program; those of tile 7 cannot be replayed."""
    results: list[CompactAst | ReplayError] = []
    for record in records:
        tile = record.steps[0][1][1][1]
        ast = CompactAst(
            leaf_features=np.full((1, 164), tile, np.float32),
            leaf_extra=np.zeros((1, 2), np.float32),
            leaf_position=np.zeros(1, np.int32),
            tree=np.zeros(3, np.int32),
            valid=True,
        )
        results.append(ReplayError(f"trace cannot be applied: tile {tile}") if tile == 7 else ast)
    return Featurised("metaschedule", "first" if "first" in module else "second", 8.0, results)


def extracted_rows(folder: Path, table: str, columns: list[str]) -> list[dict[str, Any]]:
    return [row for part in read_table(folder, table, columns) for row in part.to_pylist()]


LINES = [line(n % 2, 1 + n % 6) for n in range(20)] + [line(0, 2, [1e10])]


@pytest.mark.parametrize("zipped", [False, True])
def test_both_files_may_be_gzipped(tmp_path: Path, zipped: bool) -> None:
    database = write(tmp_path / "database", LINES, zipped=zipped)
    assert is_metaschedule_database(database)
    workloads = read_workloads(database)
    formats = {module_format(read_module_json(database, one)) for one in workloads}
    assert formats == {ModuleFormat(is_old=True, version="0.16.dev0")}
    assert "second" in read_module_json(database, workloads[1])
    found = list(read_tuning_records(database, workloads, ReadReport(), device="a100"))
    assert len(found) == 21
    assert found[0].record.hardware_params == (-1, 16, 64, 49152, (1 << 31) - 1, 1024, 8, 32)
    only = read_tuning_records(database, workloads, ReadReport(), device="a100", only={3, 21})
    assert [one.record.line for one in only] == [3, 21]


def test_all_measurements_of_a_program_are_in_its_shard(tmp_path: Path) -> None:
    database = write(tmp_path / "database", LINES, zipped=True)
    out = tmp_path / "out"
    report = extract(TuningDatabase(database, "a100", featurise, shard_records=5), out, jobs=1)
    assert report.shards > 1
    assert (report.read.records, report.read.failed, report.measurements) == (21, 1, 21)
    programs = extracted_rows(out, "programs", ["program_id", "operator", "flop_count"])
    measured = extracted_rows(out, "measurements", ["program_id", "device", "error_code"])
    assert report.programs == len(programs) == len({row["program_id"] for row in programs})
    assert {row["program_id"] for row in measured} == {row["program_id"] for row in programs}
    assert {row["operator"] for row in programs} == {"first", "second"}
    assert {row["device"] for row in measured} == {"a100"}
    assert sum(row["error_code"] != 0 for row in measured) == 1
    (out / "shard-00001.json").unlink()
    again = extract(TuningDatabase(database, "a100", featurise, shard_records=5), out, jobs=1)
    assert (again.reused, again.data_hash) == (report.shards - 1, report.data_hash)


def test_a_record_that_does_not_fit_is_rejected_and_the_rest_go_on(tmp_path: Path) -> None:
    lines = [line(0, 3), line(0, 7), line(9, 3), line(0, 4)[:40]]
    database = write(tmp_path / "database", lines, zipped=False)
    report = extract(TuningDatabase(database, "a100", featurise), tmp_path / "out", jobs=1)
    assert report.read.skipped == {"unknown workload": 1, "not JSON": 1}
    assert report.rejected == {"replay: trace cannot be applied": 1}
    reasons = extracted_rows(tmp_path / "out", "programs", ["reject_reason", "valid"])
    assert [row["reject_reason"] for row in reasons] == [
        None, "replay: trace cannot be applied: tile 7",
    ]  # fmt: skip


def test_a_truncated_gzip_keeps_what_comes_before(tmp_path: Path) -> None:
    database = write(tmp_path / "database", LINES, zipped=True)
    path = database / f"{RECORD_FILE}.gz"
    texts = "".join(f"{text}\n" for text in LINES).encode()
    path.write_bytes(gzip.compress(texts, compresslevel=0)[:-600])
    report = extract(TuningDatabase(database, "a100", featurise), tmp_path / "out", jobs=1)
    assert report.read.skipped["truncated or damaged archive"] == 1
    assert 10 < report.measurements < 21
    workloads = database / f"{WORKLOAD_FILE}.gz"
    workloads.write_bytes(workloads.read_bytes()[:-60])
    with pytest.raises(DataError, match=r"database_workload.json.gz: truncated or damaged archive"):
        extract(TuningDatabase(database, "a100", featurise), tmp_path / "other", jobs=1)


def test_a_database_in_xz_is_read(tmp_path: Path) -> None:
    database = write(tmp_path / "database", LINES, zipped=False)
    expected = extract(TuningDatabase(database, "a100", featurise), tmp_path / "plain", jobs=1)
    for name in (RECORD_FILE, WORKLOAD_FILE):
        content = (database / name).read_bytes()
        (database / f"{name}.xz").write_bytes(lzma.compress(content))
        (database / name).unlink()
    found = extract(TuningDatabase(database, "a100", featurise), tmp_path / "packed", jobs=1)
    assert found.measurements == expected.measurements > 0


def test_a_database_of_which_nothing_can_be_replayed_is_one_error(tmp_path: Path) -> None:
    database = write(tmp_path / "database", [line(0, 7), line(1, 7)], zipped=False)
    with pytest.raises(DataError, match=r"none of its 2 programs is usable \(2: replay: trace"):
        extract(TuningDatabase(database, "a100", featurise), tmp_path / "out", jobs=1)


def test_an_old_module_gets_what_later_versions_expect() -> None:
    text = old_module("first")
    graph = json.loads(upgraded_module(text))
    module, variable = graph["nodes"][1], graph["nodes"][4]
    assert graph["nodes"][int(module["attrs"]["global_infos"])] == {"type_key": "Map"}
    assert variable["attrs"]["struct_info_"] == "0"
    assert json.loads(upgraded_module(json.dumps(graph))) == graph


def test_the_format_of_a_module_is_told_by_its_nodes() -> None:
    new = {"root_index": 0, "nodes": [{"type": "None"}], "metadata": {"tvm_version": "0.26.0"}}
    assert module_format(json.dumps(new)) == ModuleFormat(is_old=False, version="0.26.0")
    bare = '{"nodes": [{"type_key": ""}]}'
    assert module_format(bare) == ModuleFormat(is_old=True, version="unknown")
    for text in ("not JSON", "[1]", "{}"):
        assert module_format(text) == ModuleFormat(is_old=False, version="unknown")


def test_a_split_gets_its_second_attribute() -> None:
    old = trace(3)
    new = upgraded_trace(old)
    assert new[0][1] == ["Split", ["l1", 3], [1, False], ["l2"]]
    assert new[0][0] == old[0][0]
    assert old == trace(3)
    assert upgraded_trace(new) == new
    assert upgraded_trace([["odd", ["Split"], 3], []]) == [["odd", ["Split"], 3], []]
