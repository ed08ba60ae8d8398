"""The CPU's counted work, its fit, the campaign and the judgement of the lines."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from cdmpp.analytic.embedding.campaign import (
    CampaignRow,
    LookupCampaign,
    best_of_rounds,
    campaign_points,
    read_campaign,
    read_folder,
    run_campaign,
    write_campaign,
)
from cdmpp.analytic.embedding.cpu import (
    CountedWork,
    CpuCaches,
    CpuConstants,
    CpuPoint,
    cpu_work,
    fit_cpu,
)
from cdmpp.analytic.embedding.cpu_probe import MemorySweep, cpu_caches
from cdmpp.analytic.embedding.devices import measured_devices
from cdmpp.analytic.embedding.evaluate import fit_campaign, judge, points_of, split_points
from cdmpp.analytic.embedding.gpu import KernelOptions
from cdmpp.analytic.embedding.gpu_fit import calibrate, predict_gpu
from cdmpp.analytic.embedding.intervals import with_errors
from cdmpp.analytic.embedding.shapes import EmbeddingShape
from cdmpp.errors import DataError, DeviceError, UsageError
from tests.paths import ROOT

CACHES = CpuCaches(32 << 10, 1 << 20, 32 << 20)
SWEEP = MemorySweep([2**k for k in range(12, 29)], [2.0**k / 3e10 for k in range(12, 29)])


def some_points(count: int = 60) -> list[CpuPoint]:
    points = [
        CpuPoint(point.which, point.shape, point.zipf_exponent)
        for point in campaign_points("quick", rounds=1)
    ]
    return points[:count]


def rows_of(points: list[CpuPoint], latency_s: np.ndarray, number: int = 0) -> list[CampaignRow]:
    return [
        CampaignRow(
            p.which, p.shape.batch, p.shape.rows, p.shape.tables, p.shape.lookups, p.shape.width,
            p.zipf_exponent, number, 1, "thread-cpu", float(t), 0.01, 8, 1.0, 1_700_000_000,
        )
        for p, t in zip(points, latency_s, strict=True)
    ]  # fmt: skip


def test_work_counts_lookups_lines_and_misses():
    shape = EmbeddingShape(128, 4_000_000, 2, 8, 40)
    work = cpu_work(CpuPoint("forward", shape), CACHES)
    assert work["calls"] == 2
    assert work["lookups"] == 2 * 128 * 8
    assert work["lines"] == 3 * work["lookups"]  # 160 bytes are three lines
    # 2 x 640 MB of rows: almost nothing is in 32 MB.
    assert work["lines_beyond_l3"] > 0.9 * work["lines"]
    assert work["tlb_misses"] > 0.9 * work["lookups"]
    small = cpu_work(CpuPoint("forward", EmbeddingShape(4096, 1000, 1, 8, 32)), CACHES)
    assert small["lines_beyond_l2"] < 0.01 * small["lines"]
    assert small["lines_beyond_l1"] > 0.5 * small["lines"]  # 128 KB of rows in 32 KB


def test_skewed_access_misses_less():
    shape = EmbeddingShape(512, 4_000_000, 1, 32, 64)
    uniform, skewed = (cpu_work(CpuPoint("forward", shape, s), CACHES) for s in (0.0, 1.05))
    assert skewed["lines_beyond_l3"] < 0.6 * uniform["lines_beyond_l3"]
    assert skewed["tlb_misses"] < uniform["tlb_misses"]


def test_fit_gives_back_the_costs_the_times_were_made_from():
    points = [point for point in some_points(120) if point.which == "forward"]
    truth = {"calls": 4e-6, "lookups": 1e-9, "lines": 4e-10, "lines_beyond_l3": 6e-9}
    times = np.array(
        [
            sum(cost * work[name] for name, cost in truth.items())
            for work in (cpu_work(point, CACHES) for point in points)
        ]
    )
    fitted = fit_cpu(points, times, CACHES)
    assert fitted.l3_share == 1.0
    assert fitted.latency_s(points) == pytest.approx(times, rel=0.02)
    assert all(cost > 0 for cost in fitted.cost_s["forward"].values())


def test_constants_survive_the_file(tmp_path):
    points = some_points()
    fitted = fit_cpu(points, np.linspace(1e-5, 1e-3, len(points)), CACHES, origin={"machine": "x"})
    path = tmp_path / "constants.json"
    fitted.save(path)
    assert CpuConstants.load(path) == fitted
    checked = with_errors(
        fitted, points, np.linspace(1e-5, 1e-3, len(points)), counted=CountedWork(CACHES)
    )
    assert checked.cost_s == fitted.cost_s
    checked.save(path)
    assert CpuConstants.load(path) == checked
    path.write_text(json.dumps({"schema": "other"}))
    with pytest.raises(DataError, match="has schema 'other'"):
        CpuConstants.load(path)
    with pytest.raises(DataError, match="embedding fit"):
        CpuConstants.load(tmp_path / "none.json")


def test_a_pass_that_was_not_fitted_is_refused():
    forward = [point for point in some_points(120) if point.which == "forward"]
    fitted = fit_cpu(forward, np.full(len(forward), 1e-4), CACHES)
    with pytest.raises(UsageError, match="no costs for pass backward-sgd"):
        fitted.latency_s([CpuPoint("backward-sgd", EmbeddingShape(2, 2, 2, 2, 2))])


def test_calibration_gives_back_its_scalars():
    device = measured_devices()["v100-reference"]
    points = [CpuPoint("forward", point.shape) for point in some_points(60)]
    truth = KernelOptions(dram_share=0.7, l2_share=0.4, launch_s=5e-6)
    found = calibrate(points, predict_gpu(points, device, truth), device)
    assert found.dram_share == pytest.approx(0.7, rel=0.01)
    assert found.l2_share == pytest.approx(0.4, rel=0.01)
    assert found.launch_s == pytest.approx(5e-6, rel=0.01)


@pytest.mark.parametrize("split", ["shape", "table", "rows"])
def test_splits_share_nothing(split):
    points = some_points(120)
    training, test = split_points(points, split, 0)
    assert set(training) | set(test) == set(range(len(points)))
    name = {
        "shape": lambda p: p.shape,
        "table": lambda p: (p.shape.rows, p.shape.width),
        "rows": lambda p: p.shape.rows,
    }[split]
    assert not {name(points[i]) for i in training} & {name(points[i]) for i in test}
    again = split_points(points, split, 0)
    assert np.array_equal(again[1], test)


@pytest.mark.exhaustive
def test_the_test_part_does_not_reach_the_fits():
    points = some_points(120)
    times = np.random.default_rng(0).uniform(1e-5, 1e-3, len(points))
    _, test = split_points(points, "shape", 1)
    other = times.copy()
    other[test] *= 100.0
    first = judge(points, times, CACHES, SWEEP, split="shape", seed=1)
    second = judge(points, other, CACHES, SWEEP, split="shape", seed=1)
    assert [entry.line for entry in first] == [entry.line for entry in second]
    for before, after in zip(first, second, strict=True):
        assert np.array_equal(before.predicted_s, after.predicted_s)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_intervals_hold_nine_of_ten_lookups_of_tables_never_seen():
    campaign = read_folder(ROOT / "data" / "embedding-cpu")
    points, measured_s = points_of(best_of_rounds(campaign.rows))
    counted = CountedWork(campaign.caches)
    is_inside = []
    for seed in range(3):
        training, test = split_points(points, "table", seed)
        known = [points[i] for i in training]
        fitted = fit_cpu(known, measured_s[training], campaign.caches, counted=counted)
        fitted = with_errors(fitted, known, measured_s[training], counted=counted)
        predicted_s = fitted.latency_s([points[i] for i in test], counted=counted)
        for i, error in zip(test, np.log(measured_s[test] / predicted_s), strict=True):
            errors = fitted.errors[points[i].which]
            assert errors.low <= 0 <= errors.high
            is_inside.append(errors.low <= error <= errors.high)
    assert 0.85 <= np.mean(is_inside) <= 0.95


def test_campaign_is_measured_once_and_continued(tmp_path):
    path = tmp_path / "measurements.csv"
    points = campaign_points("smoke", rounds=1)
    first = run_campaign(points[:3], path, budget_s=0.0)
    assert len(first) == 3
    seen: list[CampaignRow] = []
    rows = run_campaign(points, path, budget_s=0.0, on_row=seen.append)
    assert len(rows) == len(points) == 8
    assert len(seen) == 5
    assert {row.pass_name for row in rows} == {"forward", "backward-sgd", "backward-dense"}
    assert all(row.latency_s > 0 for row in rows)
    assert [row.key for row in read_campaign(path)] == [row.key for row in rows]


def test_the_best_of_rounds(tmp_path):
    points = some_points(4)
    rows = [
        *rows_of(points, np.full(4, 2e-3)),
        *rows_of(points, np.array([1e-3, 2e-3, 3e-3, 4e-3]), 1),
    ]
    best = {row.key: row.latency_s for row in best_of_rounds(rows)}
    assert sorted(best.values()) == pytest.approx([1e-3, 2e-3, 2e-3, 2e-3])
    path = tmp_path / "rows.csv"
    write_campaign(path, rows)
    assert read_campaign(path) == rows
    assert len(points_of(rows)[0]) == 8
    write_campaign(path, [*rows, replace(rows[0], threads=4)])
    with pytest.raises(DataError, match="measurements with 1 and 4 threads"):
        read_campaign(path)
    path.write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match="no column pass_name"):
        read_campaign(path)


def test_a_campaign_is_not_continued_with_another_number_of_threads(tmp_path):
    path = tmp_path / "measurements.csv"
    point = campaign_points("smoke", rounds=1)[0]
    [row] = run_campaign([point], path, budget_s=0.0)
    write_campaign(path, [replace(row, threads=row.threads + 1)])
    with pytest.raises(DataError, match="use a folder for each number of threads"):
        run_campaign([point], path, budget_s=0.0)


def test_a_machine_without_a_name_is_fitted():
    points = [point for point in some_points() if point.which == "forward"]
    rows = rows_of(points, np.linspace(1e-5, 1e-3, len(points)))
    campaign = LookupCampaign(rows, CACHES, MemorySweep([1], [1.0]), machine={})
    assert fit_campaign(campaign).origin["machine"] == "a CPU"


def test_caches_come_from_the_system_or_are_asked_for(tmp_path):
    for index, (level, kind, size) in enumerate(
        [(1, "Data", "48K"), (1, "Instruction", "32K"), (2, "Unified", "2048K")]
    ):
        folder = tmp_path / f"index{index}"
        folder.mkdir()
        for name, text in (("level", level), ("type", kind), ("size", size)):
            (folder / name).write_text(f"{text}\n")
    with pytest.raises(DeviceError, match=r"levels \[1, 2\]"):
        cpu_caches(tmp_path)
    folder = tmp_path / "index3"
    folder.mkdir()
    for name, text in (("level", 3), ("type", "Unified"), ("size", "32768K")):
        (folder / name).write_text(f"{text}\n")
    found = cpu_caches(tmp_path)
    assert (found.l1_bytes, found.l2_bytes, found.l3_bytes) == (49_152, 2 << 20, 32 << 20)
