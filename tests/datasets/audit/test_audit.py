"""The audit finds what is planted, and says nothing of what is clean."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdmpp.cli.main import main
from cdmpp.datasets.audit import quantiles
from cdmpp.datasets.audit import splits as audit_splits_module
from cdmpp.datasets.audit.audit import audit
from cdmpp.datasets.audit.quantiles import Quantiles
from cdmpp.datasets.extraction.extract import extract
from cdmpp.datasets.splits import Split, split
from cdmpp.datasets.tenset.source import TensetRecords
from cdmpp.errors import DataError, ReplayError
from cdmpp.programs.compact_ast import CompactAst
from cdmpp.records import MeasureRecord, TensetTask

Featurise = Callable[..., list[CompactAst | ReplayError]]
DEVICE = "xeon-avx2-1c"


def found(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Findings of our device and those of no device, by name."""
    return {
        finding["what"]: finding
        for finding in report["findings"]
        if finding["text"].startswith(DEVICE) or "-1c" not in finding["text"]
    }


def edit(dataset: Path, change: Callable[[list[dict[str, Any]]], None]) -> None:
    """Changes the first record file of the device."""
    path = sorted((dataset / "measure_records" / DEVICE).iterdir())[0]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    change(lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def both(dataset: Path, out: Path, featurise: Featurise) -> list[dict[str, Any]]:
    """Audits the dataset before and after extraction."""
    extract(TensetRecords(dataset, None, featurise, shard_bytes=1), out, jobs=1)
    return [audit(dataset), audit(out)]


def test_both_layouts_have_the_same_numbers(
    tiny_dataset: Path, tmp_path: Path, featurise: Featurise
) -> None:
    raw, extracted = both(tiny_dataset, tmp_path / "out", featurise)
    assert raw["programs"] == extracted["programs"] == 18
    assert raw["measurements"] == extracted["measurements"] == 36
    assert raw["devices"] == extracted["devices"]
    assert raw["networks"] == extracted["networks"]
    assert raw["networks"]["networks"] == 2  # the third has no records here
    for entry in [*raw["splits"], *extracted["splits"]]:
        assert entry.get("tasks_in_two_parts", 0) == 0 or entry["kind"] == "record"
        assert entry.get("programs_in_two_parts", 0) == 0
    assert not [f for f in extracted["findings"] if f["severity"] == "error"]


def test_the_noise_floor_is_the_spread_of_the_repeats(tiny_dataset: Path) -> None:
    def change(lines: list[dict[str, Any]]) -> None:
        lines[0]["r"][0] = [1e-3, 1e-3, 5e-3]
        lines[1]["r"][0] = [1e-3]

    edit(tiny_dataset, change)
    spreads = []
    for path in sorted((tiny_dataset / "measure_records" / DEVICE).iterdir()):
        for line in path.read_text().splitlines():
            costs = json.loads(line)["r"][0]
            if len(costs) > 1:
                spreads.append(np.std(costs) / np.mean(costs))
    report = audit(tiny_dataset)
    noise = report["devices"][DEVICE]["noise"]
    assert noise["records"] == 18
    assert noise["with_repeats"] == len(spreads) == 17
    assert noise["spread_median"] == pytest.approx(np.median(spreads))
    assert noise["spread_p90"] == pytest.approx(np.quantile(spreads, 0.9))
    assert noise["max_over_min_largest"] == pytest.approx(5)
    assert noise["outliers"] == found(report)["outliers"]["count"] >= 1
    assert "slowest of 3 repeats 5.0 x the fastest" in found(report)["outliers"]["examples"][0]


def test_wrong_units_are_found(tiny_dataset: Path, tmp_path: Path, featurise: Featurise) -> None:
    def change(lines: list[dict[str, Any]]) -> None:
        lines[0]["r"][0] = [5e-8, 5e-8]
        lines[1]["r"][0] = [512.0]

    edit(tiny_dataset, change)
    for report in both(tiny_dataset, tmp_path / "out", featurise):
        findings = found(report)
        assert findings["latency too short"]["count"] == 1
        assert findings["latency too short"]["severity"] == "error"
        assert findings["latency too long"]["count"] == 1
        assert "512 s" in findings["latency too long"]["examples"][0]
        units = report["devices"][DEVICE]["units"]
        assert units["below_shortest"] == units["above_longest"] == 1


def test_milliseconds_as_seconds_are_above_the_peak(tiny_dataset: Path) -> None:
    before = audit(tiny_dataset)["devices"][DEVICE]["units"]
    assert before["above_peak"] == 0
    assert before["highest_flop_per_s"] < before["peak_flop_per_s"]
    for path in (tiny_dataset / "measure_records" / DEVICE).iterdir():
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            line["r"][0] = [cost / 1000 for cost in line["r"][0]]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    report = audit(tiny_dataset)
    finding = found(report)["above peak"]
    assert finding["severity"] == "error"
    assert finding["count"] == report["devices"][DEVICE]["units"]["above_peak"] > 0
    assert report["devices"]["epyc-avx2-1c"]["units"]["above_peak"] == 0


def test_a_device_without_peak_is_said_not_checked(tiny_dataset: Path) -> None:
    (tiny_dataset / "measure_records" / DEVICE).rename(tiny_dataset / "measure_records" / "mystery")
    report = audit(tiny_dataset)
    assert report["devices"]["mystery"]["units"]["above_peak"] is None
    assert [f for f in report["findings"] if f["what"] == "unknown peak"]


def test_duplicates_with_other_costs_are_found(
    tiny_dataset: Path, tmp_path: Path, featurise: Featurise
) -> None:
    def change(lines: list[dict[str, Any]]) -> None:
        again = json.loads(json.dumps(lines[:2]))
        again[0]["r"][0] = [3 * cost for cost in again[0]["r"][0]]
        lines += again

    edit(tiny_dataset, change)
    for report in both(tiny_dataset, tmp_path / "out", featurise):
        repeated = report["devices"][DEVICE]["repeated"]
        assert repeated["programs"] == 2
        assert repeated["differing"] == 1
        assert repeated["ratio_largest"] == pytest.approx(3)
        assert found(report)["differing duplicates"]["count"] == 1
        assert report["programs"] == 18
        assert report["measurements"] == 38


def test_one_program_under_two_keys_is_found(
    tiny_dataset: Path, tmp_path: Path, featurise: Featurise
) -> None:
    files = sorted((tiny_dataset / "measure_records" / DEVICE).iterdir())
    first = json.loads(files[0].read_text().splitlines()[0])
    other = json.loads(files[1].read_text().splitlines()[0])
    first["i"][0][0] = other["i"][0][0]
    with files[1].open("a") as stream:
        stream.write(json.dumps(first) + "\n")
    raw, extracted = both(tiny_dataset, tmp_path / "out", featurise)
    assert raw["duplicates"]["compared"] == "steps"
    assert extracted["duplicates"]["compared"] == "features"
    for report in (raw, extracted):
        assert report["duplicates"]["same_in_other_workload"] == 2
        assert report["duplicates"]["same_in_same_task"] == 0


@pytest.mark.exhaustive
def test_test_samples_with_training_features_are_counted(
    tiny_dataset: Path, tmp_path: Path
) -> None:
    def constant(task: TensetTask, records: list[MeasureRecord]) -> list[CompactAst | ReplayError]:
        tree = np.array([0, 1, -1, -1], np.int32)
        ast = CompactAst(
            np.ones((1, 164), np.float32), np.zeros((1, 0), np.float32),
            np.array([1], np.int32), tree,
        )  # fmt: skip
        return [ast for _ in records]

    extract(TensetRecords(tiny_dataset, None, constant), tmp_path / "out", jobs=1)
    report = audit(tmp_path / "out", seeds=range(6))
    drawn = [e for e in report["splits"] if e["kind"] == "task" and "impossible" not in e]
    assert drawn
    for entry in drawn:
        assert entry["test_samples_seen_in_training"] == entry["sizes"]["test"] > 0
    assert report["duplicates"]["same_in_other_workload"] == 18
    assert "test features seen in training" in found(report)


def test_a_leaking_split_is_an_error(
    tiny_dataset: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What would be said if the splits were drawn wrongly."""

    def careless(samples: Any, kind: Any, *, seed: int) -> Split:
        right = split(samples, "record", seed=seed)
        return Split(kind, right.train, right.validation, right.test, "", False, seed)

    monkeypatch.setattr(audit_splits_module, "split", careless)
    assert main(["dataset", "audit", str(tiny_dataset), "--json", "--strict"]) == 3
    findings = found(json.loads(capsys.readouterr().out))
    assert findings["tasks in two parts"]["severity"] == "error"
    assert findings["networks in two parts"]["severity"] == "error"
    assert main(["dataset", "audit", str(tiny_dataset), "--json"]) == 0


def test_the_command_prints_tables_or_json(
    tiny_dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dataset", "audit", str(tiny_dataset), "--seeds", "0,1"]) == 0
    out = capsys.readouterr().out
    assert "noise floor" in out
    assert "found in two parts of a split" in out
    assert "test-tasks" not in out
    assert main(["dataset", "audit", "--dataset", str(tiny_dataset), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["layout"] == "tenset"
    assert main(["dataset", "audit", str(tiny_dataset), "--seeds", "x"]) == 2
    assert "--seeds" in capsys.readouterr().err


def test_what_is_no_dataset(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cdmpp dataset extract"):
        audit(tmp_path)


@settings(max_examples=50)
@given(st.lists(st.floats(0, 1e12), min_size=1, max_size=60), st.floats(0, 1))
def test_quantiles_are_exact_for_few_numbers(values: list[float], fraction: float) -> None:
    taken = Quantiles()
    taken.add(values)
    assert taken.quantile(fraction) == float(np.quantile(values, fraction))
    assert (taken.count, taken.smallest, taken.largest) == (len(values), min(values), max(values))


def test_quantiles_of_many_numbers_are_close_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantiles, "EXACT_COUNT", 100)
    values = np.random.default_rng(3).lognormal(-7, 3, 5000)
    results = []
    for order in (values, np.sort(values)):
        taken = Quantiles()
        for part in np.array_split(order, 17):
            taken.add(part)
        results.append([taken.quantile(q) for q in (0, 0.05, 0.5, 0.9, 1)])
    assert results[0] == results[1]
    exact = np.quantile(values, (0, 0.05, 0.5, 0.9, 1), method="lower")
    assert results[0] == pytest.approx(exact, rel=0.0025)
    assert Quantiles().quantile(0.5) is None
