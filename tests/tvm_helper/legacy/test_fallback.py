"""Records that the native replay cannot do: the old TVM's Ansor as named fallback."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from cdmpp.cli.main import main
from cdmpp.datasets.extraction.extract import ExtractReport, extract
from cdmpp.datasets.extraction.extracted import read_table
from cdmpp.datasets.read_report import ReadReport
from cdmpp.datasets.tenset.record_file import read_records
from cdmpp.datasets.tenset.source import TensetRecords
from cdmpp.datasets.tenset.task_index import load_tasks
from cdmpp.errors import DataError, ReplayError, UsageError
from cdmpp.programs.compact_ast import CompactAst
from cdmpp.programs.featurise import featurise_records
from cdmpp.records import MeasureRecord, TensetTask
from tests.paths import ROOT
from tvm_helper.legacy import fallback
from tvm_helper.legacy.environment import find_environment
from tvm_helper.legacy.fallback import featurise_with_ansor, with_fallback

SHIPPED = ROOT / "data" / "tenset-cpu"
DEVICE = "xeon-avx2-2c"


def shipped_file() -> Path:
    return sorted((SHIPPED / "measure_records" / DEVICE).iterdir())[0]


def shipped_records(count: int) -> tuple[TensetTask, list[MeasureRecord]]:
    records = list(read_records(shipped_file(), ReadReport()))[:count]
    task = load_tasks(SHIPPED / "network_info").find(records[0].workload_key, "llvm")
    assert task is not None
    return task, records


def small_dataset(folder: Path) -> Path:
    """A folder in Tenset's layout with one record file."""
    records = folder / "measure_records" / DEVICE
    records.mkdir(parents=True)
    shutil.copy(shipped_file(), records)
    shutil.copytree(SHIPPED / "network_info", folder / "network_info")
    return folder


def every_third_fails(
    task: TensetTask, records: Sequence[MeasureRecord], *, threads: int = 1
) -> list[CompactAst | ReplayError]:
    """The native replay, made to fail on every third record of a file."""
    results = featurise_records(task, records, threads=threads)
    return [
        ReplayError("unknown step", "made up") if record.line % 3 == 0 else result
        for record, result in zip(records, results, strict=True)
    ]


@pytest.fixture
def needs_old_tvm() -> None:
    try:
        find_environment()
    except UsageError:
        pytest.skip("no side environment with the old TVM; build it: make legacy-env")


def test_only_what_fails_goes_to_the_fallback_and_keeps_its_place() -> None:
    task, records = shipped_records(7)
    asked: list[int] = []

    def second(_: TensetTask, left: Sequence[MeasureRecord]) -> list[CompactAst | ReplayError]:
        asked.extend(record.line for record in left)
        return [ReplayError("neither"), *featurise_records(task, left[1:])]

    results = with_fallback(every_third_fails, second, task, records)
    assert asked == [record.line for record in records if record.line % 3 == 0]
    assert len(asked) >= 2
    first, *others = (r for r, record in zip(results, records, strict=True) if record.line in asked)
    assert isinstance(first, ReplayError)
    assert first.reason == "unknown step"  # the native replay's reason, not the fallback's
    assert all(isinstance(other, CompactAst) and other.fallback == "ansor" for other in others)
    native = [r for r, record in zip(results, records, strict=True) if record.line not in asked]
    assert all(isinstance(result, CompactAst) and result.fallback is None for result in native)


def test_a_task_that_the_native_replay_cannot_read_goes_to_the_fallback_whole() -> None:
    task, records = shipped_records(3)

    def unreadable(_: TensetTask, __: Sequence[MeasureRecord]) -> list[CompactAst | ReplayError]:
        raise DataError("a graph of another version")

    results = with_fallback(unreadable, featurise_records, task, records)
    assert [isinstance(r, CompactAst) and r.fallback for r in results] == ["ansor"] * 3


def test_a_missing_environment_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CDMPP_LEGACY_ENV", str(tmp_path / "nothing"))
    dataset = small_dataset(tmp_path / "data")
    command = ["dataset", "extract", "--dataset", str(dataset), "--out", str(tmp_path / "out")]
    assert main([*command, "--fallback", "ansor", "--no-install"]) == 2
    assert "python -m tvm_helper.legacy.setup" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_fallback_is_for_tenset_records_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "t4.json"
    log.write_text("{}\n")
    assert main(["dataset", "extract", "--dataset", str(log), "--fallback", "ansor"]) == 2
    assert "is for folders in Tenset's layout" in capsys.readouterr().err


def extracted(dataset: Path, out: Path) -> ExtractReport:
    return extract(TensetRecords(dataset, None, featurise_with_ansor), out, jobs=1)


@pytest.mark.ansor
def test_ansor_featurises_what_is_made_to_fail_and_is_counted_separately(
    needs_old_tvm: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = small_dataset(tmp_path / "data")
    usual = extracted(dataset, tmp_path / "usual")
    assert not usual.fallbacks  # the old TVM was not asked
    monkeypatch.setattr(fallback, "featurise_records", every_third_fails)
    forced = extracted(dataset, tmp_path / "forced")
    count = forced.programs // 3
    assert count > 0
    assert forced.fallbacks == {"ansor": count}
    assert f"by fallback ansor: {count}" in forced.summary()
    assert forced.to_json()["fallbacks"] == {"ansor": count}
    assert not forced.rejected
    assert forced.featurised == forced.programs == usual.programs
    columns = ["program_id", "tree", "leaf_position", "leaf_features", "leaf_extra"]
    usual_rows, forced_rows = (
        sorted(
            tuple(row.values())
            for table in read_table(tmp_path / name, "programs", columns)
            for row in table.to_pylist()
        )
        for name in ("usual", "forced")
    )
    for one, other in zip(usual_rows, forced_rows, strict=True):
        assert one[:3] == other[:3]
        for ours, theirs in zip(one[3:], other[3:], strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)
