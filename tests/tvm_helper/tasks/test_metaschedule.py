"""MetaSchedule databases: made here, imported, exported, and read again by TVM."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm", reason="apache-tvm is not installed")

from cdmpp.cli.main import main
from cdmpp.datasets.cache import load_samples
from cdmpp.datasets.extraction.extract import extract
from cdmpp.datasets.extraction.extracted import read_table
from cdmpp.datasets.metaschedule.databases import (
    RECORD_FILE,
    WORKLOAD_FILE,
    is_metaschedule_database,
    read_tuning_records,
    read_workloads,
)
from cdmpp.datasets.metaschedule.export import export_databases
from cdmpp.datasets.metaschedule.source import TuningDatabase
from cdmpp.datasets.read_report import ReadReport
from cdmpp.errors import DataError, UsageError
from tests.programs.reference.tree import compact_ast
from tvm_helper.compat import Target, llvm_target, s_tir, te, tvm
from tvm_helper.tasks.metaschedule import featurise_traces
from tvm_helper.tir.loop_tree import loop_tree_from_tir

pytestmark = pytest.mark.tvm

LLVM = llvm_target(num_cores=2)
CUDA = {
    "kind": "cuda", "arch": "sm_75", "max_shared_memory_per_block": 49152,
    "max_threads_per_block": 64, "thread_warp_size": 32,
}  # fmt: skip


def matmul_relu(size: int) -> Any:
    """A module of two blocks."""
    a = te.placeholder((size, 32), name="A")
    b = te.placeholder((32, 48), name="B")
    k = te.reduce_axis((0, 32), name="k")
    c = te.compute((size, 48), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="matmul")
    d = te.compute((size, 48), lambda i, j: te.max(c[i, j], 0.0), name="T_relu")
    return tvm.IRModule({"main": te.create_prim_func([a, b, d])})


def tiled(module: Any, seed: int) -> Any:
    """A random schedule for a CPU."""
    schedule = s_tir.Schedule(module, seed=seed, debug_mask="none")
    i, j, k = schedule.get_loops(schedule.get_sblock("matmul"))
    outer_i, inner_i = schedule.split(i, schedule.sample_perfect_tile(i, n=2))
    outer_j, inner_j = schedule.split(j, schedule.sample_perfect_tile(j, n=2))
    schedule.reorder(outer_i, outer_j, k, inner_i, inner_j)
    schedule.parallel(outer_i)
    schedule.vectorize(inner_j)
    return schedule


def bound(module: Any, threads: int) -> Any:
    """A schedule for a GPU with so many threads."""
    schedule = s_tir.Schedule(module, debug_mask="none")
    for name in ("matmul", "T_relu"):
        i, j = schedule.get_loops(schedule.get_sblock(name))[:2]
        block, thread = schedule.split(schedule.fuse(i, j), [None, threads])
        schedule.bind(block, "blockIdx.x")
        schedule.bind(thread, "threadIdx.x")
    return schedule


class Database:
    """A `JSONDatabase` that is being made."""

    def __init__(self, folder: Path) -> None:
        from tvm.s_tir import meta_schedule

        folder.mkdir()
        self._ms = meta_schedule
        self._database = meta_schedule.database.JSONDatabase(work_dir=str(folder))

    def add(self, schedule: Any, module: Any, seconds: list[float] | None, target: Any) -> None:
        database = self._ms.database
        workload = self._database.commit_workload(module)
        info = self._ms.arg_info.ArgInfo.from_entry_func(module, remove_preproc=True)
        record = database.TuningRecord(schedule.trace, workload, seconds, target, info)
        self._database.commit_tuning_record(record)


@pytest.fixture(scope="module")
def schedules() -> list[tuple[Any, Any, list[float] | None]]:
    """(schedule, module, seconds) of five records, the third failed, the last not measured."""
    small, large = matmul_relu(16), matmul_relu(64)
    return [
        (tiled(small, 1), small, [1e-3, 1.5e-3]),
        (tiled(large, 1), large, [2e-3]),
        (tiled(large, 2), large, [1e10]),
        (tiled(large, 3), large, [3e-3, 3e-3]),
        (tiled(small, 4), small, None),
    ]


@pytest.fixture
def database(tmp_path: Path, schedules: list[tuple[Any, Any, list[float] | None]]) -> Path:
    made = Database(tmp_path / "database")
    for schedule, module, seconds in schedules:
        made.add(schedule, module, seconds, LLVM)
    return tmp_path / "database"


def rows(folder: Path, table: str, columns: list[str]) -> list[dict[str, Any]]:
    return [row for part in read_table(folder, table, columns) for row in part.to_pylist()]


def test_records_become_programs_and_measurements(
    database: Path, tmp_path: Path, schedules: list[tuple[Any, Any, list[float] | None]]
) -> None:
    assert is_metaschedule_database(database)
    report = extract(
        TuningDatabase(database, "epyc-avx2-1c", featurise_traces), tmp_path / "out", jobs=1
    )
    assert (report.programs, report.valid, report.measurements) == (4, 4, 4)
    assert report.read.failed == 1
    assert report.read.skipped == {"not measured": 1}
    columns = ["program_id", "source", "operator", "target_kind", "flop_count", "leaf_features",
               "tree", "workload_key"]  # fmt: skip
    programs = rows(tmp_path / "out", "programs", columns)
    measured = rows(
        tmp_path / "out", "measurements", ["program_id", "latency_s", "costs_s", "error_code"]
    )
    assert [row["program_id"] for row in programs] == [row["program_id"] for row in measured]
    assert [row["error_code"] for row in measured] == [0, 0, 8, 0]
    assert [row["latency_s"] for row in measured] == [1.25e-3, 2e-3, None, 3e-3]
    assert len({row["workload_key"] for row in programs}) == 2
    for row, (schedule, _, _) in zip(programs, schedules, strict=False):
        expected = compact_ast(loop_tree_from_tir(schedule.mod))
        features = np.array(row["leaf_features"], np.float32).reshape(-1, 164)
        assert np.array_equal(features, expected.leaf_features)
        assert row["tree"] == expected.tree.tolist()
        assert (row["source"], row["operator"]) == ("metaschedule", "dense+relu")
        assert row["target_kind"] == "llvm"
    assert programs[0]["flop_count"] == 16 * 48 * (32 * 2 + 1)
    samples = load_samples(tmp_path / "out")
    assert samples.latency_s.tolist() == pytest.approx([1.25e-3, 2e-3, 3e-3])


def test_shards_are_resumed_and_bad_lines_counted(database: Path, tmp_path: Path) -> None:
    path = database / RECORD_FILE
    lines = path.read_text().splitlines()
    wrong = json.loads(lines[0])
    wrong[1][0][0][0] = ["NoSuchInstruction", [], [], []]
    other = json.loads(lines[0])
    other[1][0][0][0][1][:] = []
    path.write_text(
        "\n".join(
            [*lines, lines[0][:200], "[]", lines[0].replace("[0,", "[7,", 1), "[0,[1,2]]", "\x00",
             json.dumps(wrong), lines[0].replace('"kind"', '"kine"'), lines[1]]
        )
    )  # fmt: skip
    out = tmp_path / "out"
    first = extract(TuningDatabase(database, "x", featurise_traces, shard_records=1), out, jobs=1)
    assert first.read.skipped == {
        "not measured": 1, "not JSON": 2, "not a tuning record": 1, "unknown workload": 1,
        "malformed tuning record": 1, "malformed target": 1,
    }  # fmt: skip
    assert first.rejected == {"replay: trace cannot be applied": 1}
    assert first.measurements == 6
    assert first.shards > 1
    (out / "shard-00000.json").unlink()
    second = extract(TuningDatabase(database, "x", featurise_traces, shard_records=1), out, jobs=1)
    assert second.reused == first.shards - 1
    assert second.data_hash == first.data_hash


def test_targets_are_not_mixed(
    database: Path, tmp_path: Path, schedules: list[tuple[Any, Any, list[float] | None]]
) -> None:
    made = Database(tmp_path / "two")
    schedule, module, _ = schedules[0]
    made.add(schedule, module, [1e-3], LLVM)
    made.add(schedule, module, [5e-3], llvm_target(mcpu="skylake-avx512"))
    with pytest.raises(UsageError, match=r"2 targets; choose one with --target"):
        extract(TuningDatabase(tmp_path / "two", "x", featurise_traces), tmp_path / "out", jobs=1)
    report = extract(
        TuningDatabase(tmp_path / "two", "x", featurise_traces, target="skylake"),
        tmp_path / "out",
        jobs=1,
    )
    assert report.measurements == report.read.records == 1
    assert sum(report.read.notes.values()) == 1
    assert rows(tmp_path / "out", "measurements", ["latency_s"]) == [{"latency_s": 5e-3}]
    with pytest.raises(DataError, match="no usable record of a target with 'rocm'"):
        extract(
            TuningDatabase(tmp_path / "two", "x", featurise_traces, target="rocm"),
            tmp_path / "out",
            jobs=1,
        )


def test_kernels_above_the_targets_limits_are_flagged(tmp_path: Path) -> None:
    module = matmul_relu(64)
    made = Database(tmp_path / "gpu")
    for threads in (32, 96):
        made.add(bound(module, threads), module, [1e-4], Target(CUDA))
    report = extract(
        TuningDatabase(tmp_path / "gpu", "t4", featurise_traces), tmp_path / "out", jobs=1
    )
    assert (report.programs, report.valid) == (2, 1)
    assert report.rejected == {"threads per block are above the limit": 1}
    kept = rows(tmp_path / "out", "programs", ["target_kind", "valid", "leaf_features"])
    assert [row["valid"] for row in kept] == [True, False]
    assert all(row["target_kind"] == "cuda" and row["leaf_features"] for row in kept)


def test_export_writes_what_was_imported(database: Path, tmp_path: Path) -> None:
    extract(TuningDatabase(database, "epyc", featurise_traces), tmp_path / "out", jobs=1)
    report = export_databases(tmp_path / "out", tmp_path / "back", [database])
    assert report.records == {"epyc": 4}
    assert report.without_trace == 0
    folder = tmp_path / "back" / "epyc"
    assert (folder / WORKLOAD_FILE).read_text() == (database / WORKLOAD_FILE).read_text()
    originals = [json.loads(line) for line in (database / RECORD_FILE).read_text().splitlines()]
    written = [json.loads(line) for line in (folder / RECORD_FILE).read_text().splitlines()]
    assert written == originals[:4]
    before, after = (
        [
            (found.program_id, found.record.costs_s)
            for found in read_tuning_records(place, read_workloads(place), ReadReport(), device="x")
        ]
        for place in (database, folder)
    )
    assert before == after
    from tvm.s_tir import meta_schedule

    records = meta_schedule.database.JSONDatabase(work_dir=str(folder)).get_all_tuning_records()
    seconds = sorted(float(record.run_secs[0]) for record in records)
    assert seconds == [1e-3, 2e-3, 3e-3, 1e10]


def test_export_takes_costs_from_the_dataset(
    database: Path, tmp_path: Path, schedules: list[tuple[Any, Any, list[float] | None]]
) -> None:
    made = Database(tmp_path / "slow")
    for schedule, module, seconds in schedules[:2]:
        made.add(schedule, module, [10 * s for s in seconds or []], LLVM)
    extract(TuningDatabase(tmp_path / "slow", "slow", featurise_traces), tmp_path / "out", jobs=1)
    report = export_databases(tmp_path / "out", tmp_path / "back", [database])
    assert report.records == {"slow": 2}
    path = tmp_path / "back" / "slow" / RECORD_FILE
    assert [json.loads(line)[1][1] for line in path.read_text().splitlines()] == [
        [pytest.approx(1e-2), pytest.approx(1.5e-2)], [pytest.approx(2e-2)],
    ]  # fmt: skip
    before = (database / RECORD_FILE).read_bytes()
    shutil.copytree(database, tmp_path / "by-device" / "slow")
    with pytest.raises(UsageError, match=r"slow/database_.*json exists already; give a new"):
        export_databases(tmp_path / "out", tmp_path / "by-device", [database])
    assert (tmp_path / "by-device" / "slow" / RECORD_FILE).read_bytes() == before
    empty = tmp_path / "none"
    empty.mkdir()
    (empty / WORKLOAD_FILE).write_text("")
    (empty / RECORD_FILE).write_text("")
    with pytest.raises(DataError, match="none of the measurements"):
        export_databases(tmp_path / "out", tmp_path / "nothing", [empty])
    with pytest.raises(UsageError, match="--database"):
        export_databases(tmp_path / "out", tmp_path / "nothing", [])


def test_a_damaged_workload_file_is_one_error(database: Path, tmp_path: Path) -> None:
    path = database / WORKLOAD_FILE
    good = path.read_text()
    for text, message in (
        ("{}\n", "not a .structural hash, module"),
        ("[", "line 1 is not JSON"),
        (good.replace('","', '","????', 1), "has no module"),
        (good.replace('","', '","AAAA', 1), "TVM cannot load this module|has no module"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=message):
            extract(TuningDatabase(database, "x", featurise_traces), tmp_path / "out", jobs=1)


def test_the_commands(database: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, back = str(tmp_path / "out"), str(tmp_path / "back")
    extract = ["dataset", "extract", "--dataset", str(database), "--out", out, "--jobs", "1"]
    assert main(extract) == 2
    assert "--device LABEL" in capsys.readouterr().err
    assert main([*extract, "--device", "epyc", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["measurements"] == 4
    export = ["dataset", "export", out, "--format", "metaschedule", "--out", back]
    assert main(export) == 2
    assert main([*export, "--database", str(database), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["records"] == {"epyc": 4}
