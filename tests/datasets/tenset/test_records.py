"""Measure records: what is read, what is skipped and how it is named."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from cdmpp.datasets.tenset.folder import (
    MeasureRecord,
    ReadReport,
    default_dataset_dir,
    find_device_files,
    find_devices,
    read_records,
)
from cdmpp.datasets.tenset.record_line import RecordLineError, parse_record
from cdmpp.errors import DataError
from cdmpp.files import open_text
from cdmpp.records import normalise_workload_key, program_id

KEY = '["matmul", 4, 8, "SAME"]'


def record_value(**changes: Any) -> dict[str, Any]:
    """A good record as JSON values, changed by name (`costs`, `error`, `target`, ...)."""
    task = changes.get(
        "task", [KEY, changes.get("target", "llvm -model=cpu-1"), [8] * 8, "", 2, []]
    )
    steps = changes.get("steps", [["SP", 2, 0, 4, [2], 1], ["AN", 2, 0, 3]])
    result = [changes.get("costs", [1e-3, 3e-3]), changes.get("error", 0), 0.5, 1_700_000_000]
    return {"i": [task, [[], steps]], "r": result, "v": changes.get("version", "v0.6")}


def record_text(**changes: Any) -> str:
    return json.dumps(record_value(**changes))


def read(path: Path, **options: Any) -> tuple[list[MeasureRecord], ReadReport]:
    report = ReadReport()
    return list(read_records(path, report, **options)), report


def test_a_good_record() -> None:
    record = parse_record(record_text(), line=7)
    assert record.workload_key == KEY
    assert record.target_kind == "llvm"
    assert record.device == "cpu-1"
    assert record.steps == (["SP", 2, 0, 4, [2], 1], ["AN", 2, 0, 3])
    assert record.latency_s == pytest.approx(2e-3)
    assert record.line == 7
    assert record.measured_at == 1_700_000_000


@pytest.mark.parametrize("version", ["v0.2", "v0.3", "v0.5", "v0.6"])
def test_versions_and_their_short_tasks(version: str) -> None:
    record = parse_record(record_text(version=version, task=[KEY, "cuda"]), device="t4")
    assert record.version == version
    assert record.hardware_params == ()
    assert record.device == "t4"


@pytest.mark.parametrize("count", [1, 2, 5, 10])
def test_any_number_of_costs(count: int) -> None:
    assert len(parse_record(record_text(costs=[1e-3] * count)).costs_s) == count


@pytest.mark.parametrize(
    ("changes", "error_code"),
    [
        ({"costs": [1e10], "error": 2}, 2),
        ({"costs": [1e10], "error": 7}, 7),
        ({"costs": [1e10], "error": 0}, 8),
        ({"costs": [], "error": 4}, 4),
        ({"costs": [float("nan")], "error": 6}, 6),
        ({"costs": [1e10], "error": 99}, 8),
    ],
)
def test_a_failed_measurement_is_kept_with_its_error(
    changes: dict[str, Any], error_code: int
) -> None:
    record = parse_record(record_text(**changes))
    assert record.error_code == error_code
    assert not record.is_ok
    assert record.latency_s is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (record_text()[:-30], "truncated JSON"),
        (record_text()[:40], "truncated JSON"),
        ("{]", "not JSON"),
        ("hello", "not JSON"),
        ("[1, 2]", "not a JSON object"),
        ("3", "not a JSON object"),
        ("[" * 100_000, "JSON nested too deeply"),
        ('{"i": 1' + "0" * 5000 + "}", "not JSON"),
        ('{"i": [], "v": "v0.6"}', "missing field"),
        (record_text(version="v9.9"), "unknown version"),
        (record_text(version=6), "unknown version"),
        (record_text(costs=[float("nan")]), "cost is not finite"),
        (record_text(costs=[1e-3, float("inf")]), "cost is not finite"),
        (record_text(costs=[0.0, 1e-3]), "cost is zero or negative"),
        (record_text(costs=[-1e-3]), "cost is zero or negative"),
        (record_text(costs=[]), "no costs"),
        (record_text(costs=["1"]), "malformed result"),
        (record_text(costs=[True]), "malformed result"),
        (record_text(costs=[10**400]), "malformed result"),
        (record_text(error="0"), "malformed result"),
        (record_text(error=-1), "malformed result"),
        (record_text(task=[KEY]), "malformed task"),
        (record_text(task=[3, "llvm"]), "malformed task"),
        (record_text(task=[KEY, " "]), "malformed task"),
        (record_text(task=[KEY, "llvm", [1, 2]]), "malformed hardware parameters"),
        (record_text(task=[KEY, "cuda", [2**63, *range(7)]]), "malformed hardware parameters"),
        (record_text(task=[KEY, "cuda", [10**30, *range(7)]]), "malformed hardware parameters"),
        (record_text(steps=[["SP", 1], []]), "malformed step"),
        (record_text(steps=[[1, "SP"]]), "malformed step"),
        (record_text(steps=[["SP", float("nan")]]), "malformed step"),
        (record_text(steps={}), "malformed state"),
        (json.dumps(record_value() | {"i": {}}), "malformed input"),
        (json.dumps(record_value() | {"r": [1e-3, 0]}), "malformed result"),
    ],
)
def test_a_bad_line_has_a_reason(text: str, reason: str) -> None:
    with pytest.raises(RecordLineError) as caught:
        parse_record(text)
    assert caught.value.reason == reason


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(position=st.integers(0, 10_000), character=st.characters(codec="utf-8"))
def test_a_damaged_line_is_read_or_named(position: int, character: str) -> None:
    text = record_text()
    position %= len(text)
    reason = "taken"
    try:
        record = parse_record(text[:position] + character + text[position + 1 :])
    except RecordLineError as error:
        reason = error.reason
    else:
        assert all(0 < cost < 1e10 for cost in record.costs_s) or record.error_code
    assert reason


def test_bad_lines_are_skipped_counted_and_named(tmp_path: Path) -> None:
    path = tmp_path / "cpu-1" / "x.json"
    path.parent.mkdir()
    good = record_text().encode()
    lines = [
        b"# a comment", b"", good, good[:-10], b"\xff\xfe\x00", b"   ", good,
        record_text(costs=[float("nan")]).encode(),
        record_text(costs=[0.0]).encode(),
        record_text(costs=[1e10], error=2).encode(),
        good[:60],
    ]  # fmt: skip
    path.write_bytes(b"\n".join(lines))
    records, report = read(path)
    assert [record.line for record in records] == [3, 7, 10]
    assert report.records == 3
    assert report.failed == 1
    assert report.comments == 3
    assert report.lines == 8
    assert report.skipped == {
        "truncated JSON": 2,
        "not text": 1,
        "cost is not finite": 1,
        "cost is zero or negative": 1,
    }
    assert [(e.file, e.line) for e in report.examples] == [("x.json", n) for n in (4, 5, 8, 9, 11)]
    summary = report.summary()
    assert "x.json:4: truncated JSON" in summary
    assert "skipped 2: truncated JSON" in summary
    assert ReadReport.from_json(json.loads(json.dumps(report.to_json()))) == report


def test_an_empty_file_is_counted(tmp_path: Path) -> None:
    for name, data in (("a.json", b""), ("b.json.gz", gzip.compress(b""))):
        (tmp_path / name).write_bytes(data)
        records, report = read(tmp_path / name)
        assert records == []
        assert report.skipped == {"empty file": 1}


def test_binary_garbage_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(bytes(range(256)) * 100)
    records, report = read(path)
    assert records == []
    assert report.skipped["not text"] + report.skipped["not JSON"] == report.skipped_total > 0


def test_an_endless_line_is_one_skipped_line(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"x" * (9 << 20) + b"\n" + record_text().encode())
    records, report = read(path)
    assert [record.line for record in records] == [2]
    assert report.skipped == {"not text": 1}


def test_a_cut_gzip_file_keeps_what_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "a.json.gz"
    lines = [record_text(steps=[["AN", 1, 0, n]], costs=[1e-3 + n * 1e-7]) for n in range(3000)]
    data = gzip.compress("\n".join(lines).encode())
    path.write_bytes(data[: len(data) // 2])
    records, report = read(path)
    assert 100 < len(records) < 3000
    assert report.skipped["truncated or damaged file"] == 1
    path.write_bytes(data[:5])
    assert read(path)[1].skipped == {"truncated or damaged file": 1}


def test_plain_and_gzipped_records_are_read_alike(tmp_path: Path) -> None:
    plain, zipped = tmp_path / "a.json", tmp_path / "b.json.gz"
    plain.write_text(record_text() + "\n" + record_text(costs=[1.0]))
    zipped.write_bytes(gzip.compress(plain.read_bytes()))
    assert read(plain)[0] == read(zipped)[0]


def test_unmeasured_records_on_request(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(record_text(costs=[0.0]))
    assert read(path)[0] == []
    records, report = read(path, keep_unmeasured=True)
    assert records[0].costs_s == ()
    assert records[0].latency_s is None
    assert report.unmeasured == 1
    assert report.skipped_total == 0


def test_device_from_target_folder_or_caller(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "a.json"
    path.parent.mkdir()
    path.write_text(record_text(target="cuda -keys=gpu -model=t4 -x=1"))
    assert read(path)[0][0].device == "t4"
    records, report = read(path, device="my-t4")
    assert records[0].device == "my-t4"
    assert sum(report.notes.values()) == 1
    for target in ("cuda -keys=gpu", "cuda -model=unknown"):
        path.write_text(record_text(target=target))
        assert read(path)[0][0].device == "folder"


def test_program_id_counts_the_program_and_the_kind_only() -> None:
    steps = [["SP", 2, 0, 4, [2], 1]]
    identity = program_id("tenset", KEY, steps, "llvm")
    assert identity == program_id("tenset", '["matmul",4,8,"SAME"]', steps, "llvm")
    others = [
        program_id("autotvm", KEY, steps, "llvm"),
        program_id("tenset", '["matmul", 4, 9]', steps, "llvm"),
        program_id("tenset", KEY, [["SP", 2, 0, 4, [4], 1]], "llvm"),
        program_id("tenset", KEY, steps, "cuda"),
    ]
    assert len({identity, *others}) == 5
    with pytest.raises(ValueError, match="JSON"):
        program_id("tenset", KEY, [float("nan")], "llvm")


def test_program_id_bytes_are_pinned() -> None:
    # sha256 of: ["tenset","[\"a\", 1]",[["CI",1]],"llvm"]
    expected = "03719291a71929b062724eff734bc2bcef6c7736df85574578364b587ace0535"
    assert program_id("tenset", '["a",1]', [["CI", 1]], "llvm") == expected


@given(st.text(max_size=40))
def test_normalising_a_key_twice_changes_nothing(key: str) -> None:
    once = normalise_workload_key(key)
    assert normalise_workload_key(once) == once


def test_the_shipped_dataset(shipped: Path) -> None:
    assert default_dataset_dir() == shipped
    devices = find_devices(shipped)
    assert len(devices) == 8
    report = ReadReport()
    ids: dict[str, set[str]] = {}
    for device in ("epyc-avx2-1c", "xeon-avx2-1c"):
        for path in find_device_files(shipped, device):
            for record in read_records(path, report, device=device):
                identity = program_id(
                    "tenset", record.workload_key, list(record.steps), record.target_kind
                )
                ids.setdefault(device, set()).add(identity)
    assert report.records == 1284 + 3660
    assert report.skipped_total == 0
    assert not report.notes
    assert len(ids["xeon-avx2-1c"]) == 3660
    assert ids["epyc-avx2-1c"] < ids["xeon-avx2-1c"]


def test_the_shipped_dataset_is_small(shipped: Path) -> None:
    size = sum(path.stat().st_size for path in shipped.rglob("*") if path.is_file())
    assert size <= 6e6


def test_a_missing_device_says_what_to_do(shipped: Path) -> None:
    with pytest.raises(DataError) as caught:
        find_device_files(shipped, "t4")
    text = str(caught.value)
    for part in (
        "'t4'", "epyc-avx512-2c", "xeon-avx2-1c", "cdmpp dataset fetch", "tenset-gpu-full",
        "DIR/measure_records/t4/*.json", "DIR/network_info/",
        "cdmpp train --device t4 --dataset DIR",
    ):  # fmt: skip
        assert part in text


def test_a_missing_dataset_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="tenset-gpu-full"):
        find_device_files(tmp_path / "none", "t4")
    with pytest.raises(DataError, match="tenset-gpu-full"):
        find_devices(tmp_path)


def test_a_damaged_zstd_file_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class ZstdError(Exception):
        pass

    def fail(path: Path, mode: str) -> None:
        raise ZstdError("Data corruption detected")

    monkeypatch.setattr(open_text, "_ZSTD_MODULES", ("zstd_here",))
    module = SimpleNamespace(open=fail, ZstdError=ZstdError)
    monkeypatch.setitem(sys.modules, "zstd_here", module)
    path = tmp_path / "a.json.zst"
    path.write_bytes(b"\x28\xb5\x2f\xfd...")
    assert read(path)[1].skipped["truncated or damaged file"] == 1
    with pytest.raises(DataError, match="damaged packed stream"):
        open_text.read_text(path)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.binary(max_size=600))
def test_any_bytes_are_read_without_a_crash(tmp_path: Path, data: bytes) -> None:
    assume(not data.startswith(b"\x28\xb5\x2f\xfd"))  # zstd, which may not be installed
    path = tmp_path / "a.json"
    path.write_bytes(data)
    records, report = read(path)
    assert records == []
    assert report.skipped_total > 0 or report.comments > 0
