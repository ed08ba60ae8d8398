"""Paired differences of an ablation, and lines that are trained without a device."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lab.suites.leaderboard.board import Board
from lab.suites.leaderboard.difference import Difference, difference
from lab.suites.leaderboard.paired import TITLE
from lab.suites.leaderboard.write import board_json, leaderboard, write_leaderboard
from lab.suites.options import SuiteDataset, SuiteFamily, SuiteModel, SuiteOptions
from lab.suites.plan import dataset_facts, plan_cells
from lab.suites.run import run_cells
from lab.tests.suites.suites import QUICK, load_synthetic

ABLATION = SuiteOptions(
    name="small-ablation",
    protocol="cross-model",
    subject="none",
    is_ablation=True,
    datasets=(
        SuiteDataset(
            "synthetic",
            splits=("task",),
            families=(SuiteFamily("all-but", ("slow",), ("fast", "slow")),),
        ),
    ),
    seeds=(0, 1, 2),
    budgets=(0,),
    models=(
        SuiteModel("none", kind="gbdt"),
        SuiteModel("residual", kind="gbdt", settings=("gbdt.prior=residual",)),
    ),
    fractions=(0.4, 0.3, 0.3),
    few_workloads=2,
    settings=QUICK,
)


def seeds(*values: float | None) -> dict[int, dict[str, float | None]]:
    return {seed: {"mape": value} for seed, value in enumerate(values)}


def test_differences_are_of_the_seeds_that_both_have():
    gap = difference(seeds(0.3, 0.5, 0.4, 9.0), seeds(0.4, 0.6, 0.5), "mape")
    assert gap is not None
    assert (gap.mean, gap.seeds) == (pytest.approx(-0.1), 3)
    assert gap.half == pytest.approx(0.0, abs=1e-12)
    assert difference(seeds(0.3), seeds(None), "mape") is None
    assert difference({}, seeds(0.3), "mape") is None


@pytest.mark.parametrize(
    ("gap", "is_gain"),
    [
        (Difference(-0.02, 0.01, 3, 0.3, 0.3), True),
        (Difference(-0.02, 0.03, 3, 0.3, 0.3), False),
        (Difference(-0.02, 0.01, 2, 0.3, 0.3), False),
        (Difference(-0.02, None, 1, 0.3, 0.3), False),
        (Difference(0.02, 0.01, 3, 0.3, 0.3), False),
    ],
)
def test_a_gain_is_one_of_three_seeds_whose_interval_excludes_zero(gap, is_gain):
    assert gap.is_gain(is_low_good=True) is is_gain
    assert replace(gap, mean=-gap.mean).is_gain(is_low_good=False) is is_gain


def test_an_ablation_is_trained_by_split_and_without_each_device(tmp_path):
    facts = {"synthetic": dataset_facts(load_synthetic(Path()))}
    cells = plan_cells(ABLATION, facts)
    left_out = [cell for cell in cells if cell.split == "device"]
    assert len(left_out) == 2 * 3
    assert {cell.sources for cell in left_out} == {("fast",)}
    assert {cell.target for cell in left_out} == {"slow"}
    residual = next(cell for cell in left_out if cell.line == "residual")
    assert residual.key["options"]["prior"] == "residual"
    assert "prior" not in next(c for c in left_out if c.line == "none").key["options"]

    folders = {"synthetic": Path("synthetic")}
    results = run_cells(cells, folders, tmp_path / "runs", load=load_synthetic, jobs=0)
    assert {result.status for result in results.values()} == {"ok"}
    value = results[residual.id].value
    assert value["prior"]["training_samples"]["roofline"] > 0
    assert "prior" not in results["synthetic-all-but-slow-s0-none"].value
    assert list(value["metrics"]["by_device"]) == ["slow"]

    found = leaderboard(Board(ABLATION, facts, cells, results, "python -m lab benchmark"))
    section = found.page.sections[0]
    assert section.title == TITLE
    titles = [table.title for table in section.tables]
    assert titles == [
        "MAPE", "median APE", "Spearman within a task", "Devices left out",
        "Where the prior is from",
    ]  # fmt: skip
    places = ("synthetic, by task", "synthetic, without slow")
    assert section.tables[0].header == ("", *places)
    assert [row.name for row in section.tables[0].rows] == ["none", "residual"]
    (finding,) = found.findings[TITLE]
    assert set(finding.values) == set(places)
    for place, split in zip(places, ("task", "all-but-slow"), strict=True):
        gaps = [
            _mape(results, f"synthetic-{split}-s{seed}-residual", split)
            - _mape(results, f"synthetic-{split}-s{seed}-none", split)
            for seed in ABLATION.seeds
        ]
        assert finding.values[place]["mape_difference"] == pytest.approx(sum(gaps) / 3)
    paths = write_leaderboard(found, tmp_path / "out")
    assert "## Paired differences" in paths[2].read_text()
    assert ",leave-one-out:all-but,slow,budget:0,residual," in paths[0].read_text()
    assert json.dumps(board_json(found), allow_nan=False)


def _mape(results, name: str, split: str) -> float:
    return results[name].value["metrics"]["mean" if split == "task" else "all"]["mape"]
