"""Extraction: what is written, what is rejected, and that a killed run loses nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from cdmpp.datasets.audit.stats import dataset_stats, stats_text
from cdmpp.datasets.cache import load_samples
from cdmpp.datasets.extraction.extract import ExtractProgress, extract
from cdmpp.datasets.extraction.extracted import MANIFEST, read_manifest, read_table
from cdmpp.datasets.extraction.schema import STORE_SCHEMA_VERSION
from cdmpp.datasets.tenset.folder import ReadReport, read_records
from cdmpp.datasets.tenset.source import TensetRecords
from cdmpp.errors import DataError, ReplayError, UsageError
from cdmpp.programs.compact_ast import CompactAst
from cdmpp.records import MeasureRecord, TensetTask, program_id
from tests.datasets.tiny import build_samples
from tests.paths import ROOT

Featurise = Callable[..., list[CompactAst | ReplayError]]


def content(folder: Path) -> dict[str, bytes]:
    """Every file of an extracted dataset."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def rows(folder: Path, table: str) -> list[dict[str, Any]]:
    schema = {
        "programs": ["program_id", "operator", "schedule", "valid", "reject_reason", "networks",
                     "flop_count", "leaf_features", "leaf_extra", "leaf_position", "tree",
                     "target_kind"],
        "measurements": ["program_id", "device", "latency_s", "latency_std_s", "costs_s",
                         "error_code", "measured_at"],
    }  # fmt: skip
    return [row for part in read_table(folder, table, schema[table]) for row in part.to_pylist()]


def test_programs_are_featurised_once_and_joined(
    tiny_dataset: Path, tmp_path: Path, featurise: Featurise
) -> None:
    seen: list[str] = []

    def counting(task: TensetTask, records: list[MeasureRecord]) -> list[CompactAst | ReplayError]:
        for record in records:
            seen.append(program_id("tenset", task.workload_key, list(record.steps), "llvm"))
        return featurise(task, records)

    progress: list[ExtractProgress] = []
    report = extract(
        TensetRecords(tiny_dataset, None, counting),
        tmp_path / "out",
        jobs=1,
        on_progress=progress.append,
    )
    assert len(seen) == len(set(seen)) == report.programs == 18
    assert report.measurements == 36
    assert report.devices == ["epyc-avx2-1c", "xeon-avx2-1c"]
    assert progress[-1].done == progress[-1].total
    programs = rows(tmp_path / "out", "programs")
    assert {row["program_id"] for row in programs} == set(seen)
    for row in programs:
        leaf_count = len(row["leaf_position"])
        assert row["valid"]
        assert len(row["leaf_features"]) == 164 * leaf_count
        assert row["networks"]
        assert row["flop_count"] is None or row["flop_count"] > 0
        assert row["operator"] not in ("", "unknown")


def test_measurements_are_the_records(
    tiny_dataset: Path, tmp_path: Path, featurise: Featurise
) -> None:
    extract(TensetRecords(tiny_dataset, ["xeon-avx2-1c"], featurise), tmp_path / "out", jobs=1)
    records = [
        record
        for path in sorted((tiny_dataset / "measure_records" / "xeon-avx2-1c").iterdir())
        for record in read_records(path, ReadReport())
    ]
    measured = rows(tmp_path / "out", "measurements")
    assert [row["costs_s"] for row in measured] == [list(record.costs_s) for record in records]
    for row, record in zip(measured, records, strict=True):
        assert row["error_code"] == record.error_code
        assert row["measured_at"] == record.measured_at
        if record.is_ok:
            assert row["latency_s"] == pytest.approx(np.mean(record.costs_s))
            assert row["latency_std_s"] == pytest.approx(np.std(record.costs_s))
        else:
            assert row["latency_s"] is None


def test_schema_versions_are_in_the_files(
    tiny_dataset: Path, tmp_path: Path, featurise: Featurise
) -> None:
    extract(TensetRecords(tiny_dataset, None, featurise), tmp_path / "out", jobs=1)
    for path in (tmp_path / "out").glob("*.parquet"):
        metadata = pq.read_schema(path).metadata
        assert metadata[b"cdmpp.store_schema_version"] == str(STORE_SCHEMA_VERSION).encode()
        assert b"cdmpp.leaf_schema_version" in metadata


def test_rejected_programs_are_kept_and_counted_by_reason(
    tiny_dataset: Path, tmp_path: Path, featurise: Featurise
) -> None:
    def moody(task: TensetTask, records: list[MeasureRecord]) -> list[CompactAst | ReplayError]:
        if len(records) > 1:
            raise RuntimeError("all at once is too much")
        record = records[0]
        if record.line == 1:
            return [ReplayError("unknown step code", "XX")]
        if record.line == 2:
            raise ZeroDivisionError("bug")
        (ast,) = featurise(task, records)
        assert isinstance(ast, CompactAst)
        ast.leaf_features[0, 0] = np.nan
        return [ast]

    report = extract(TensetRecords(tiny_dataset, None, moody), tmp_path / "out", jobs=1)
    assert report.valid == 0
    assert report.rejected == {
        "replay: unknown step code": 6,
        "internal error: ZeroDivisionError": 6,
        "features are not finite": 6,
    }
    assert len(rows(tmp_path / "out", "programs")) == report.programs == 18
    assert "rejected 6: replay: unknown step code" in report.summary()
    with pytest.raises(DataError, match="no usable measurement"):
        load_samples(tmp_path / "out")


def test_a_task_that_is_not_in_network_info(
    tiny_dataset: Path, tmp_path: Path, featurise: Featurise
) -> None:
    assert not extract(
        TensetRecords(tiny_dataset, None, featurise), tmp_path / "out", jobs=1
    ).rejected
    for path in (tiny_dataset / "network_info").glob("*bert*"):
        path.unlink()
    report = extract(TensetRecords(tiny_dataset, None, featurise), tmp_path / "out", jobs=1)
    absent = report.rejected["task not in network_info"]
    assert 0 < absent == report.programs - report.valid
    reasons = {row["reject_reason"] for row in rows(tmp_path / "out", "programs")}
    assert "task not in network_info" in reasons


def test_bad_record_files_are_counted_not_fatal(
    tiny_dataset: Path, tmp_path: Path, featurise: Featurise
) -> None:
    folder = tiny_dataset / "measure_records" / "xeon-avx2-1c"
    (folder / "empty.json").write_bytes(b"")
    (folder / "garbage.json").write_bytes(b"\x00\xff\xfe" * 99)
    first = sorted(folder.iterdir())[0]
    text = first.read_text()
    first.write_text(text + text[:100])
    report = extract(TensetRecords(tiny_dataset, None, featurise), tmp_path / "out", jobs=1)
    assert report.read.skipped == {"empty file": 1, "not text": 1, "truncated JSON": 1}
    assert report.read.records == 36
    assert read_manifest(tmp_path / "out")["read"]["skipped"]["truncated JSON"] == 1


def test_unwritable_output_folder(tiny_dataset: Path, tmp_path: Path, featurise: Featurise) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot write the extracted dataset"):
        extract(TensetRecords(tiny_dataset, None, featurise), tmp_path / "file" / "out", jobs=1)
    with pytest.raises(DataError, match="cannot write the extracted dataset"):
        extract(TensetRecords(tiny_dataset, None, featurise), tmp_path / "file", jobs=1)


def test_what_is_missing_is_one_error(
    tiny_dataset: Path, tmp_path: Path, featurise: Featurise
) -> None:
    out = tmp_path / "out"
    with pytest.raises(
        DataError, match=r"'t4'.*: epyc-avx2-1c, xeon-avx2-1c\. Choose one of these"
    ):
        extract(TensetRecords(tiny_dataset, ["t4"], featurise), out, jobs=1)
    with pytest.raises(DataError, match="no such folder"):
        extract(TensetRecords(tmp_path / "none", None, featurise), out, jobs=1)
    with pytest.raises(DataError, match="--network-info"):
        extract(
            TensetRecords(tiny_dataset, None, featurise, network_info=tmp_path / "none"),
            out,
            jobs=1,
        )
    with pytest.raises(UsageError, match="jobs"):
        extract(TensetRecords(tiny_dataset, None, featurise), out, jobs=0)
    for path in (tiny_dataset / "measure_records").rglob("*.json"):
        path.unlink()
    with pytest.raises(DataError, match="devices found: none"):
        extract(TensetRecords(tiny_dataset, None, featurise), out, jobs=1)


def test_a_second_run_keeps_everything(
    tiny_dataset: Path, tmp_path: Path, featurise: Featurise
) -> None:
    out = tmp_path / "out"
    first = extract(TensetRecords(tiny_dataset, None, featurise, shard_bytes=1), out, jobs=1)
    before = content(out)
    times = {path: path.stat().st_mtime_ns for path in out.glob("*.parquet")}
    second = extract(TensetRecords(tiny_dataset, None, featurise, shard_bytes=1), out, jobs=1)
    assert first.shards == second.reused == 6
    assert first.reused == 0
    assert content(out) == before
    assert {path: path.stat().st_mtime_ns for path in out.glob("*.parquet")} == times


def test_changed_and_damaged_shards_are_made_again(
    tiny_dataset: Path, tmp_path: Path, featurise: Featurise
) -> None:
    out = tmp_path / "out"
    extract(TensetRecords(tiny_dataset, None, featurise, shard_bytes=1), out, jobs=1)
    before = content(out)
    (out / "programs-00002.parquet").write_bytes(b"damaged")
    (out / "shard-00003.json").unlink()
    with pytest.raises(DataError, match="does not match the manifest"):
        list(read_table(out, "programs", ["program_id"]))
    report = extract(TensetRecords(tiny_dataset, None, featurise, shard_bytes=1), out, jobs=1)
    assert report.reused == 4
    assert content(out) == before
    changed = sorted((tiny_dataset / "measure_records" / "xeon-avx2-1c").iterdir())[0]
    changed.write_bytes(b"\n".join(changed.read_bytes().splitlines()[:2]))
    report = extract(TensetRecords(tiny_dataset, None, featurise, shard_bytes=1), out, jobs=1)
    assert report.reused == 5
    assert report.measurements == 35


def test_fewer_shards_leave_no_stale_files(
    tiny_dataset: Path, tmp_path: Path, featurise: Featurise
) -> None:
    out = tmp_path / "out"
    extract(TensetRecords(tiny_dataset, None, featurise, shard_bytes=1), out, jobs=1)
    extract(TensetRecords(tiny_dataset, None, featurise), out, jobs=1)
    assert sorted(content(out)) == [
        MANIFEST, "measurements-00000.parquet", "programs-00000.parquet", "shard-00000.json",
    ]  # fmt: skip
    assert len(rows(out, "programs")) == 18


@pytest.mark.exhaustive
@pytest.mark.slow
def test_kill_9_in_the_middle_loses_nothing(tiny_dataset: Path, tmp_path: Path) -> None:
    script = Path(__file__).with_name("extract_child.py")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PIDS": str(tmp_path / "pids")}

    def command(out: str) -> list[str]:
        return [sys.executable, str(script), str(tiny_dataset), str(tmp_path / out), "local", "2"]

    killed = subprocess.Popen(command("killed"), env=environment | {"PAUSE": "0.4"})
    try:
        deadline = time.monotonic() + 60
        while not list((tmp_path / "killed").glob("shard-*.json")):
            assert time.monotonic() < deadline, "no shard was finished"
            assert killed.poll() is None, "the run ended before it could be killed"
            time.sleep(0.02)
    finally:
        killed.send_signal(signal.SIGKILL)
        killed.wait()
    assert str(killed.pid) not in (tmp_path / "pids").read_text().split()
    _wait_until_gone(tmp_path / "pids")
    finished = {
        path.name: path.stat().st_mtime_ns for path in (tmp_path / "killed").glob("shard-*.json")
    }
    assert 0 < len(finished) < 6
    assert not (tmp_path / "killed" / MANIFEST).exists()
    with pytest.raises(DataError, match="create or resume it with: cdmpp dataset extract"):
        load_samples(tmp_path / "killed")

    results = {}
    for out in ("killed", "undisturbed"):
        done = subprocess.run(
            command(out),
            env=environment | {"PAUSE": "0"},
            check=True,
            capture_output=True,
            text=True,
        )
        results[out] = done.stdout.split()
    assert int(results["killed"][1]) >= len(finished)
    assert results["undisturbed"][1] == "0"
    assert results["killed"][2] == results["undisturbed"][2]
    for name, written in finished.items():
        assert (tmp_path / "killed" / name).stat().st_mtime_ns == written
    whole = content(tmp_path / "undisturbed")
    assert content(tmp_path / "killed") == whole


def _wait_until_gone(pids: Path) -> None:
    """Waits until workers whose parent was killed have ended by themselves."""
    deadline = time.monotonic() + 20
    alive = True
    while alive and time.monotonic() < deadline:
        time.sleep(0.1)
        alive = any(_is_running(int(pid)) for pid in pids.read_text().split())
    assert not alive, "workers outlived their parent"


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_samples_are_the_good_measurements(
    tiny_dataset: Path, tmp_path: Path, featurise: Featurise
) -> None:
    folder = tiny_dataset / "measure_records" / "xeon-avx2-1c"
    first = sorted(folder.iterdir())[0]
    lines = [json.loads(line) for line in first.read_text().splitlines()]
    lines[0]["r"][:2] = [[1e10], 2]
    lines.append(lines[1] | {"r": [[0.5, 0.7], 0, 1.0, 1]})
    first.write_text("\n".join(json.dumps(line) for line in lines))
    extract(TensetRecords(tiny_dataset, None, featurise), tmp_path / "out", jobs=1)
    samples = load_samples(tmp_path / "out")
    assert [spec.name for spec in samples.devices] == ["epyc-avx2-1c", "xeon-avx2-1c"]
    expected: dict[tuple[str, str], list[float]] = {}
    for row in rows(tmp_path / "out", "measurements"):
        if row["error_code"] == 0:
            key = (row["device"], row["program_id"])
            expected.setdefault(key, []).extend(row["costs_s"])
    assert len(samples) == len(expected) == 35
    for n in range(len(samples)):
        device = samples.devices[samples.device[n]].name
        identity = samples.programs.program_id[samples.program[n]]
        costs = expected[device, identity]
        assert samples.latency_s[n] == pytest.approx(np.mean(costs))
        assert samples.latency_std_s[n] == pytest.approx(np.std(costs))


def test_samples_hold_the_features_of_their_programs(
    tiny_dataset: Path, tmp_path: Path, featurise: Featurise
) -> None:
    report = extract(
        TensetRecords(tiny_dataset, None, featurise, shard_bytes=1), tmp_path / "out", jobs=1
    )
    samples = load_samples(tmp_path / "out", ["xeon-avx2-1c"])
    programs = samples.programs
    assert isinstance(programs.leaf_features, np.memmap)
    assert programs.data_hash == report.data_hash
    by_id = {row["program_id"]: row for row in rows(tmp_path / "out", "programs")}
    assert set(programs.program_id) == set(by_id)
    for p, identity in enumerate(programs.program_id):
        leaves = slice(programs.leaf_offset[p], programs.leaf_offset[p + 1])
        row = by_id[identity]
        features = np.array(row["leaf_features"], np.float32).reshape(-1, 164)
        assert np.array_equal(programs.leaf_features[leaves], features)
        assert programs.leaf_position[leaves].tolist() == row["leaf_position"]
        tree = programs.tree[programs.tree_offset[p] : programs.tree_offset[p + 1]]
        assert tree.tolist() == row["tree"]
        assert programs.schedule_text(p) == row["schedule"]
        assert programs.operator[p] == row["operator"]
        networks = programs.networks[programs.task_id[p]]
        assert networks == [(pair["name"], pair["weight"]) for pair in row["networks"]]
        assert str(programs.tasks[programs.task_id[p]]).endswith("|llvm")


def test_the_schedule_is_the_canonical_json_of_the_steps(
    tiny_dataset: Path, tmp_path: Path, featurise: Featurise
) -> None:
    extract(TensetRecords(tiny_dataset, None, featurise), tmp_path / "out", jobs=1)
    expected = {
        program_id(
            "tenset", record.workload_key, list(record.steps), record.target_kind
        ): json.dumps(record.steps, separators=(",", ":"))
        for path in (tiny_dataset / "measure_records").rglob("*.json")
        for record in read_records(path, ReadReport())
    }
    found = {row["program_id"]: row["schedule"] for row in rows(tmp_path / "out", "programs")}
    assert found == expected


def test_programs_without_schedule_have_none() -> None:
    programs = build_samples([[]]).programs
    assert programs.schedule_text(0) is None


def test_rejected_programs_with_features_are_samples(
    tiny_dataset: Path, tmp_path: Path, featurise: Featurise
) -> None:
    def strict(task: TensetTask, records: list[MeasureRecord]) -> list[CompactAst | ReplayError]:
        results: list[CompactAst | ReplayError] = []
        for record, ast in zip(records, featurise(task, records), strict=True):
            assert isinstance(ast, CompactAst)
            if record.line == 1:
                results.append(replace(ast, valid=False, reject_reason="threads (512)"))
            else:
                results.append(ReplayError("no") if record.line == 2 else ast)
        return results

    report = extract(TensetRecords(tiny_dataset, None, strict), tmp_path / "out", jobs=1)
    assert (report.programs, report.featurised, report.valid) == (18, 12, 6)
    assert report.rejected == {"threads": 6, "replay: no": 6}
    samples = load_samples(tmp_path / "out")
    by_id = {row["program_id"]: row for row in rows(tmp_path / "out", "programs")}
    reasons = [by_id[identity]["reject_reason"] for identity in samples.programs.program_id]
    assert sorted(map(str, reasons)) == ["None"] * 6 + ["threads (512)"] * 6
    assert len(samples) == 24
    stats = dataset_stats(tmp_path / "out")
    assert (stats["programs"], stats["featurised"], stats["valid"]) == (18, 12, 6)
    text = stats_text(stats)
    assert "6 valid; 6 with features are rejected by the original toolchain" in text
    none = {"smallest": None, "median": None, "largest": None}
    assert "12 with features, 0.0 MB" in stats_text({**stats, "leaves": none, "bytes": 0})


def test_the_cache_follows_the_data(
    tiny_dataset: Path, tmp_path: Path, featurise: Featurise
) -> None:
    out = tmp_path / "out"
    extract(TensetRecords(tiny_dataset, None, featurise), out, jobs=1)
    assert len(load_samples(out)) == 36
    caches = list(out.glob("cache-*"))
    assert len(caches) == 1
    written = (caches[0] / "meta.json").stat().st_mtime_ns
    assert len(load_samples(out)) == 36
    assert (caches[0] / "meta.json").stat().st_mtime_ns == written
    extract(TensetRecords(tiny_dataset, ["xeon-avx2-1c"], featurise), out, jobs=1)
    samples = load_samples(out)
    assert [spec.name for spec in samples.devices] == ["xeon-avx2-1c"]
    assert [path.name for path in out.glob("cache-*")] != [caches[0].name]
    assert len(list(out.glob("cache-*"))) == 1
    with pytest.raises(DataError, match=r"'t4'.*devices found: xeon-avx2-1c"):
        load_samples(out, ["t4"])
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot write the training cache"):
        load_samples(out, cache_dir=tmp_path / "file")


def test_another_schema_version_is_refused(
    tiny_dataset: Path, tmp_path: Path, featurise: Featurise
) -> None:
    extract(TensetRecords(tiny_dataset, None, featurise), tmp_path / "out", jobs=1)
    path = tmp_path / "out" / MANIFEST
    value = json.loads(path.read_text())
    value["schema"]["leaf"] += 1
    path.write_text(json.dumps(value))
    with pytest.raises(DataError, match="Rerun: cdmpp dataset extract"):
        load_samples(tmp_path / "out")
    path.write_text("{")
    with pytest.raises(DataError, match="damaged"):
        load_samples(tmp_path / "out")


def test_a_manifest_of_something_else_is_not_to_be_written_over(tmp_path: Path) -> None:
    """data/timm-graphs was called damaged, with the advice to extract a dataset into it."""
    (tmp_path / MANIFEST).write_text('{"schema_version": 2, "graphs": 2562}')
    with pytest.raises(DataError, match="not an extracted dataset") as caught:
        load_samples(tmp_path)
    assert "Rerun" not in str(caught.value)


def test_stats_of_both_layouts_agree(
    tiny_dataset: Path, tmp_path: Path, featurise: Featurise
) -> None:
    extract(TensetRecords(tiny_dataset, None, featurise), tmp_path / "out", jobs=1)
    tenset, extracted = dataset_stats(tiny_dataset), dataset_stats(tmp_path / "out")
    assert tenset["layout"] == "tenset"
    assert extracted["layout"] == "extracted"
    assert tenset["devices"] == extracted["devices"]
    assert tenset["devices"]["xeon-avx2-1c"]["records"] == 18
    assert sum(extracted["operators"].values()) == 18
    with pytest.raises(DataError, match="neither"):
        dataset_stats(tmp_path)
