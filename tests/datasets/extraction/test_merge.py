"""Merging: programs once, measurements all, and nothing merged that does not fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cdmpp.cli.main import main
from cdmpp.datasets.audit.audit import audit
from cdmpp.datasets.audit.stats import dataset_stats
from cdmpp.datasets.cache import load_samples
from cdmpp.datasets.extraction.extract import extract
from cdmpp.datasets.extraction.extracted import MANIFEST, read_manifest, read_table
from cdmpp.datasets.extraction.merge import MergeReport, _Merger, merge, merged_folder
from cdmpp.datasets.tenset.source import TensetRecords
from cdmpp.errors import DataError, ReplayError, UsageError
from cdmpp.programs.compact_ast import CompactAst
from cdmpp.programs.featurise import featurise_records
from cdmpp.records import MeasureRecord, TensetTask
from tests.paths import ROOT

Featurise = Callable[..., list[CompactAst | ReplayError]]
DEVICES = ("epyc-avx2-1c", "xeon-avx2-1c")


def rows(folder: Path, table: str, columns: list[str]) -> list[dict[str, Any]]:
    return [row for part in read_table(folder, table, columns) for row in part.to_pylist()]


@pytest.fixture
def parts(tiny_dataset: Path, tmp_path: Path, featurise: Featurise) -> list[Path]:
    """The tiny dataset, extracted one device at a time: the same programs twice."""
    for label in DEVICES:
        extract(
            TensetRecords(tiny_dataset, [label], featurise, shard_bytes=1), tmp_path / label, jobs=1
        )
    return [tmp_path / label for label in DEVICES]


def test_two_devices_become_what_one_extraction_gives(
    tiny_dataset: Path, parts: list[Path], tmp_path: Path, featurise: Featurise
) -> None:
    report = merge(parts, tmp_path / "merged")
    assert report.programs == report.valid == report.merged_programs == 18
    assert report.measurements == 36
    assert report.conflicting_programs == report.repeated_measurements == 0
    extract(TensetRecords(tiny_dataset, None, featurise), tmp_path / "whole", jobs=1)
    for table, columns in (
        ("programs", ["program_id", "leaf_features", "leaf_position", "tree", "networks"]),
        ("measurements", ["program_id", "device", "costs_s", "measured_at"]),
    ):
        merged, whole = (rows(tmp_path / name, table, columns) for name in ("merged", "whole"))
        assert sorted(map(repr, merged)) == sorted(map(repr, whole))
    merged_stats, whole_stats = (dataset_stats(tmp_path / name) for name in ("merged", "whole"))
    for key in ("devices", "programs", "valid", "operators", "tasks", "leaves"):
        assert merged_stats[key] == whole_stats[key]
    samples = load_samples(tmp_path / "merged")
    assert len(samples) == 36
    assert audit(tmp_path / "merged")["duplicates"]["programs_stored_twice"] == 0
    assert read_manifest(tmp_path / "merged")["merged_from"] == [
        read_manifest(part)["data_hash"] for part in parts
    ]


def test_the_same_inputs_give_the_same_bytes(parts: list[Path], tmp_path: Path) -> None:
    first = merge(parts, tmp_path / "one")
    second = merge(parts, tmp_path / "two")
    assert first.data_hash == second.data_hash
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


def test_a_program_with_features_wins_over_one_without(
    tiny_dataset: Path, parts: list[Path], tmp_path: Path
) -> None:
    def failing(task: TensetTask, records: list[MeasureRecord]) -> list[CompactAst | ReplayError]:
        return [ReplayError("not today")] * len(records)

    extract(TensetRecords(tiny_dataset, None, failing), tmp_path / "failed", jobs=1)
    report = merge([tmp_path / "failed", parts[0]], tmp_path / "merged")
    assert report.programs == report.valid == 18
    assert not report.rejected
    assert all(row["valid"] for row in rows(tmp_path / "merged", "programs", ["valid"]))
    assert report.measurements == 54


def test_overlap_and_conflicts_are_told(
    tiny_dataset: Path, parts: list[Path], tmp_path: Path, featurise: Featurise
) -> None:
    def other(task: TensetTask, records: list[MeasureRecord]) -> list[CompactAst | ReplayError]:
        results = featurise(task, records)
        for ast in results:
            assert isinstance(ast, CompactAst)
            ast.leaf_features[0, 0] += 1
        return results

    extract(TensetRecords(tiny_dataset, [DEVICES[0]], other), tmp_path / "other", jobs=1)
    report = merge([parts[0], tmp_path / "other"], tmp_path / "merged")
    assert report.conflicting_programs == 18
    assert report.repeated_measurements == 18
    assert report.measurements == 36
    assert "different versions extracted" in report.summary()
    assert "the inputs overlap" in report.summary()
    first = rows(parts[0], "programs", ["program_id", "leaf_features"])
    kept = rows(tmp_path / "merged", "programs", ["program_id", "leaf_features"])
    assert sorted(map(repr, first)) == sorted(map(repr, kept))


def test_networks_of_all_inputs_are_kept(
    tiny_dataset: Path, parts: list[Path], tmp_path: Path, featurise: Featurise
) -> None:
    network_info = tmp_path / "more"
    network_info.mkdir()
    for path in (tiny_dataset / "network_info").iterdir():
        (network_info / path.name).write_bytes(path.read_bytes())
        (network_info / path.name.replace("((", "((twin_")).write_bytes(path.read_bytes())
    extract(
        TensetRecords(tiny_dataset, [DEVICES[1]], featurise, network_info=network_info),
        tmp_path / "twins",
        jobs=1,
    )
    merge([parts[0], tmp_path / "twins"], tmp_path / "merged")
    for row in rows(tmp_path / "merged", "programs", ["networks"]):
        names = [pair["name"] for pair in row["networks"]]
        assert names == sorted(names)
        assert len(names) == 2 * len([name for name in names if not name.startswith("twin_")])


def test_what_does_not_fit_is_refused(
    tiny_dataset: Path, parts: list[Path], tmp_path: Path, featurise: Featurise
) -> None:
    def wider(task: TensetTask, records: list[MeasureRecord]) -> list[CompactAst | ReplayError]:
        return [
            CompactAst(
                np.zeros((1, 164), np.float32), np.zeros((1, 3), np.float32),
                np.array([1], np.int32), np.array([0, 1, -1, -1], np.int32),
            )
            for _ in records
        ]  # fmt: skip

    with pytest.raises(UsageError, match="two different datasets"):
        merge(parts[:1], tmp_path / "merged")
    with pytest.raises(UsageError, match="two different datasets"):
        merge([parts[0], parts[0]], tmp_path / "merged")
    with pytest.raises(UsageError, match="exists already"):
        merge(parts, parts[0])
    with pytest.raises(DataError, match="not a complete extracted dataset"):
        merge([parts[0], tmp_path], tmp_path / "merged")
    extract(TensetRecords(tiny_dataset, None, wider), tmp_path / "wide", jobs=1)
    with pytest.raises(DataError, match="leaf_extra"):
        merge([parts[0], tmp_path / "wide"], tmp_path / "merged")
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot write the merged dataset"):
        merge(parts, tmp_path / "file" / "merged")
    manifest = json.loads((parts[1] / MANIFEST).read_text())
    manifest["schema"]["store"] += 1
    (parts[1] / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(DataError, match="extracted with schema versions"):
        merge(parts, tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_programs_of_gpus_get_the_columns_of_the_next_version(
    tiny_dataset: Path, tmp_path: Path
) -> None:
    """The columns that version 5 adds are 0 for GPUs; CPUs have to be extracted again."""

    def extracted(dataset: Path, device: str, version: int) -> Path:
        def featurised(
            task: TensetTask, records: list[MeasureRecord]
        ) -> list[CompactAst | ReplayError]:
            found = featurise_records(task, records)
            return [o.of_version(version) if isinstance(o, CompactAst) else o for o in found]

        folder = tmp_path / f"{device}-{version}"
        extract(TensetRecords(dataset, [device], featurised), folder, jobs=1)
        return folder

    gpu = ROOT / "data" / "ansor-gpu"
    cpu = extracted(tiny_dataset, "epyc-avx2-1c", 5)
    merge([cpu, extracted(gpu, "k80", 4)], tmp_path / "widened")
    merge([cpu, extracted(gpu, "k80", 5)], tmp_path / "whole")
    columns = ["program_id", "target_kind", "leaf_features", "leaf_extra", "leaf_position"]
    programs = rows(tmp_path / "widened", "programs", columns)
    assert programs == rows(tmp_path / "whole", "programs", columns)
    assert {program["target_kind"] for program in programs} == {"llvm", "cuda"}
    assert read_manifest(tmp_path / "widened")["leaf_extra_count"] == 269
    earlier = extracted(tiny_dataset, "epyc-avx2-1c", 4)
    with pytest.raises(DataError, match=r"\[237, 269\].*extract the older ones again"):
        merge([earlier, tmp_path / "k80-5"], tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_a_damaged_input_leaves_nothing_behind(parts: list[Path], tmp_path: Path) -> None:
    (parts[1] / "measurements-00001.parquet").write_bytes(b"damaged")
    with pytest.raises(DataError, match="does not match the manifest"):
        merge(parts, tmp_path / "merged")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*DEVICES, "tiny"])


def test_the_command(parts: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "merged"
    assert main(["dataset", "merge", *map(str, parts), "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["measurements"] == 36
    assert main(["dataset", "merge", *map(str, parts), "--out", str(out)]) == 2
    assert "exists already" in capsys.readouterr().err


def test_what_was_merged_before_is_found_again(parts: list[Path], tmp_path: Path) -> None:
    assert merged_folder(parts[:1], tmp_path) == parts[0]
    folder = merged_folder(parts, tmp_path)
    made = (folder / MANIFEST).stat().st_mtime_ns
    assert merged_folder(parts, tmp_path) == folder
    assert (folder / MANIFEST).stat().st_mtime_ns == made


def test_another_process_merges_the_same(
    parts: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = _Merger.run

    def overtaken(merger: _Merger, leaf_extra_count: int) -> MergeReport:
        monkeypatch.setattr(_Merger, "run", run)
        merge(parts, tmp_path / "theirs")
        (tmp_path / "theirs").rename(merger._report.out_dir)
        return run(merger, leaf_extra_count)

    monkeypatch.setattr(_Merger, "run", overtaken)
    folder = merged_folder(parts, tmp_path)
    assert read_manifest(folder)["measurements"] == 36
    assert [path.name for path in tmp_path.iterdir() if "merged" in path.name] == [folder.name]
