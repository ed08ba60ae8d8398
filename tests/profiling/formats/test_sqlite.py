"""SQLite files of nvprof and nsys.

No GPU is at hand, so the tests build the files themselves, from the schema that the specification
and the tools' documentation give (CUPTI activity records; Nsight Systems' SQLite export). The
tables have the columns that the reader needs and a few more; real files have others beside them.
"""

from __future__ import annotations

import sqlite3

import pytest

from cdmpp.errors import DataError
from cdmpp.profiling.merge import merge_profiles
from cdmpp.profiling.read import read_profile

LAUNCH = (
    "gridX int, gridY int, gridZ int, blockX int, blockY int, blockZ int, registersPerThread int, "
    "staticSharedMemory int, dynamicSharedMemory int"
)


def make_nvprof(path, *, kernel_table="CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL"):
    with sqlite3.connect(path) as db:
        db.execute("create table StringTable (_id_ integer primary key, value text)")
        db.execute("insert into StringTable values (1, 'void add<float>(float*)')")
        db.execute(
            f"create table {kernel_table} (_id_ integer, start int, end int, deviceId int, "
            f"streamId int, name int, {LAUNCH})"
        )
        rows = [(i, 5_000 + i * 1_000, 5_600 + i * 1_000) for i in range(3)]
        for number, start, end in rows:
            db.execute(
                f"insert into {kernel_table} values (?,?,?,0,7,1,64,1,1,256,1,1,40,1024,512)",
                (number, start, end),
            )
        db.execute(
            "create table CUPTI_ACTIVITY_KIND_MEMCPY (start int, end int, bytes int, copyKind int, "
            "deviceId int, streamId int)"
        )
        db.execute("insert into CUPTI_ACTIVITY_KIND_MEMCPY values (1000, 3000, 4096, 1, 0, 7)")
        db.execute("insert into CUPTI_ACTIVITY_KIND_MEMCPY values (9000, 9500, 512, 2, 0, 7)")
        db.execute(
            "create table CUPTI_ACTIVITY_KIND_RUNTIME (start int, end int, cbid int, "
            "correlationId int, threadId int)"
        )
        db.execute("insert into CUPTI_ACTIVITY_KIND_RUNTIME values (4000, 4200, 211, 1, 99)")
    db.close()


def make_nsys(path, *, epoch_ns=1_700_000_000_000_000_000):
    with sqlite3.connect(path) as db:
        db.execute("create table StringIds (id integer primary key, value text)")
        db.executemany(
            "insert into StringIds values (?, ?)",
            [(1, "add"), (2, "void add<float>(float *)"), (3, "cudaLaunchKernel_v7000")],
        )
        db.execute(
            "create table CUPTI_ACTIVITY_KIND_KERNEL (start int, end int, deviceId int, streamId "
            f"int, correlationId int, demangledName int, shortName int, {LAUNCH})"
        )
        db.execute(
            "insert into CUPTI_ACTIVITY_KIND_KERNEL values (100, 700, 0, 7, 1, 2, 1, 8,1,1, 128,"
            "1,1, 32, 0, 0)"
        )
        db.execute(
            "create table CUPTI_ACTIVITY_KIND_RUNTIME (start int, end int, nameId int, globalTid "
            "int, correlationId int)"
        )
        db.execute("insert into CUPTI_ACTIVITY_KIND_RUNTIME values (50, 90, 3, 12, 1)")
        db.execute("create table NVTX_EVENTS (start int, end int, text text, globalTid int)")
        db.execute("insert into NVTX_EVENTS values (40, 800, 'step', 12)")
        db.execute("insert into NVTX_EVENTS values (41, NULL, 'open', 12)")
        db.execute("create table TARGET_INFO_GPU (name text)")
        db.execute("insert into TARGET_INFO_GPU values ('Tesla T4')")
        db.execute("create table TARGET_INFO_SESSION_START_TIME (utcEpochNs int)")
        db.execute("insert into TARGET_INFO_SESSION_START_TIME values (?)", (epoch_ns,))
    db.close()


@pytest.mark.parametrize(
    "table", ["CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL"]
)
def test_nvprof_file(tmp_path, table):
    make_nvprof(tmp_path / "out.nvprof", kernel_table=table)
    profile = read_profile(tmp_path / "out.nvprof")
    rows = {row.short_name: row for row in profile.rows}
    kernel = rows["add"]
    assert (kernel.kind, kernel.calls, kernel.total_s) == ("kernel", 3, pytest.approx(1.8e-6))
    assert kernel.launch.shared_bytes == 1536
    assert rows["[CUDA memcpy HtoD]"].moved_bytes == 4096
    assert rows["[CUDA memcpy DtoH]"].total_s == pytest.approx(0.5e-6)
    assert rows["runtime call 211"].kind == "api"
    assert profile.format == "CUPTI SQLite (nvprof)"
    assert len(profile.events) == 6
    assert profile.events.start_s.min() == 0.0


def test_nsys_export(tmp_path):
    make_nsys(tmp_path / "out.sqlite")
    profile = read_profile(tmp_path / "out.sqlite")
    assert [(row.kind, row.name) for row in profile.rows] == [
        ("kernel", "void add<float>(float *)"), ("api", "cudaLaunchKernel_v7000"),
        ("range", "step"),
    ]  # fmt: skip
    assert (profile.device_name, profile.format) == ("Tesla T4", "CUPTI SQLite (nsys)")
    assert profile.epoch_s == pytest.approx(1_700_000_000.00000004)


def test_files_of_two_processes_come_onto_one_clock(tmp_path):
    make_nsys(tmp_path / "a.sqlite")
    make_nsys(tmp_path / "b.sqlite", epoch_ns=1_700_000_002_000_000_000)
    both = merge_profiles([read_profile(tmp_path / name) for name in ("a.sqlite", "b.sqlite")])
    kernels = [row for row in both.rows if row.kind == "kernel"]
    assert [(row.calls, row.total_s) for row in kernels] == [(2, pytest.approx(1.2e-6))]
    assert both.events.start_s.max() == pytest.approx(2.0, abs=1e-4)
    assert len(both.events.lanes) == 2 * len(read_profile(tmp_path / "a.sqlite").events.lanes)
    assert both.notes == ()


def test_a_missing_column_is_noted(tmp_path):
    path = tmp_path / "few.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("create table StringIds (id int, value text)")
        db.execute("create table CUPTI_ACTIVITY_KIND_KERNEL (start int, end int)")
        db.execute("insert into CUPTI_ACTIVITY_KIND_KERNEL values (1, 2)")
        db.execute("create table CUPTI_ACTIVITY_KIND_MEMCPY (begin int, end int)")
    db.close()
    profile = read_profile(path)
    assert [row.name for row in profile.rows] == ["unknown kernel"]
    assert any("KERNEL has no gridX" in note and "name" in note for note in profile.notes)
    assert any("MEMCPY has no start; the table is left out" in note for note in profile.notes)


def test_damaged_empty_and_foreign_files(tmp_path):
    make_nvprof(tmp_path / "whole")
    content = (tmp_path / "whole").read_bytes()
    (tmp_path / "cut").write_bytes(content[: len(content) // 3])
    with pytest.raises(DataError, match="damaged or truncated SQLite file"):
        read_profile(tmp_path / "cut")
    with sqlite3.connect(tmp_path / "foreign") as db:
        db.execute("create table people (name text)")
    db.close()
    with pytest.raises(DataError, match=r"without tables of a profiler .it has people."):
        read_profile(tmp_path / "foreign")
    with sqlite3.connect(tmp_path / "empty") as db:
        db.execute("create table CUPTI_ACTIVITY_KIND_KERNEL (start int, end int, name int)")
    db.close()
    with pytest.raises(DataError, match="tables of the profiler are empty"):
        read_profile(tmp_path / "empty")
