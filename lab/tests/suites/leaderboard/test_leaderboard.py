"""Leaderboards: tidy rows, verdicts, pages, and missing cells."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from cdmpp.metrics import METRIC_NAMES
from cdmpp.text import TIDY_COLUMNS
from lab.suites.cell_store import CellResult
from lab.suites.leaderboard.board import Board, family_scores, model_scores
from lab.suites.leaderboard.rows import tidy_rows
from lab.suites.leaderboard.verdict import (
    overall_transfer_findings,
    peer_findings,
    transfer_findings,
)
from lab.suites.leaderboard.write import leaderboard, write_leaderboard
from lab.suites.options import SuiteModel, SuiteOptions
from lab.suites.plan import dataset_facts
from lab.suites.run import run_cells
from lab.tests.suites.suites import CROSS_DEVICE, CROSS_MODEL, load_synthetic, plan

FACTS = {"synthetic": dataset_facts(load_synthetic(Path()))}


def board_of(suite: SuiteOptions, runs: Path) -> Board:
    cells = plan(suite)
    folders = {"synthetic": Path("synthetic")}
    results = run_cells(cells, folders, runs, load=load_synthetic, jobs=0)
    return Board(suite, FACTS, cells, results, "python -m lab benchmark --suite x")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    board = board_of(CROSS_MODEL, folder / "runs")
    return board, write_leaderboard(leaderboard(board), folder)


@pytest.fixture(scope="module")
def devices(tmp_path_factory):
    folder = tmp_path_factory.mktemp("devices")
    board = board_of(CROSS_DEVICE, folder / "runs")
    return board, write_leaderboard(leaderboard(board), folder)


def score(mape: float, rank: float = 0.5) -> dict:
    values = dict.fromkeys((*METRIC_NAMES, "tasks", "pairwise_accuracy", "top1_regret"), 0.5)
    return {**values, "n": 100, "tasks": 9, "mape": mape, "spearman_by_task": rank}


def invented(values: dict[str, list[tuple[float, float]]]) -> Board:
    """A board with given (MAPE, Spearman) per line and seed; the subject is `ours`."""
    seeds = tuple(range(len(next(iter(values.values())))))
    suite = replace(
        CROSS_MODEL,
        subject="ours",
        models=tuple(SuiteModel(n, kind="gbdt" if n == "ours" else "constant") for n in values),
        seeds=seeds,
    )
    cells = [cell for cell in plan(suite) if cell.line in values]
    results = {}
    for cell in cells:
        found = score(*values[cell.line][cell.seed])
        metrics = {
            "all": found,
            "mean": found,
            "mean_devices": ["fast"],
            "by_device": {"fast": found},
            "by_group": {"operator:dense": found},
        }
        value = {"split": "by task", "metrics": metrics, "errors": {"fast": errors(found["mape"])}}
        results[cell.id] = CellResult(cell, "ok", "", value)
    return Board(suite, FACTS, cells, results, "x")


def errors(mape: float) -> dict[str, list[float]]:
    return {f"task {number}": [10.0, 10 * mape] for number in range(9)}


def findings(board: Board) -> list:
    return peer_findings(board, model_scores(board)[0])


def test_tidy_rows_hold_every_metric_of_every_place(models):
    board, paths = models
    rows = list(csv.DictReader(paths[0].read_text().splitlines()))
    assert tuple(rows[0]) == TIDY_COLUMNS
    wanted = [
        r for r in rows if r["model"] == "gbdt" and r["metric"] == "mape" and r["seed"] == "0"
    ]
    assert [r["device"] for r in wanted if r["group"] == "test"] == ["all", "mean", "fast", "slow"]
    kinds = {r["group"] for r in wanted if r["device"] == "all"}
    assert {"operator:dense", "test"} <= kinds
    metrics = board.results["synthetic-task-s0-gbdt"].value["metrics"]
    mean = next(r for r in wanted if r["device"] == "mean")
    assert float(mean["value"]) == pytest.approx(metrics["mean"]["mape"], rel=1e-6)
    assert int(mean["n"]) == metrics["mean"]["n"]
    assert {r["metric"] for r in rows} >= {"top1_regret", "pairwise_accuracy", "training_cpu_s"}
    assert len({tuple(list(r.values())[:8]) for r in rows}) == len(rows), "a row occurs twice"


def test_json_has_origin_verdict_and_every_cell(models):
    board, paths = models
    value = json.loads(paths[1].read_text())
    assert {"stamp", "verdict", "options"} <= set(value)
    assert value["stamp"]["data"] == {"synthetic": FACTS["synthetic"].data_hash}
    (part,) = value["stamp"]["parts"]
    assert part["schema"] == value["stamp"]["schema"], "all cells are of this code"
    assert value["skipped_datasets"] == ["elsewhere"]
    assert {cell["id"] for cell in value["cells"]} == {cell.id for cell in board.cells}
    assert value["missing_cells"] == []


def test_the_page_says_n_split_and_seeds(models):
    _, paths = models
    for path in paths[2:]:
        text = path.read_text()
        for word in ("n = ", "seeds 0, 1", "oracle-task-median", "noise-floor", "±", "by task"):
            assert word in text, (path.name, word)
        assert "elsewhere" in text


def test_ratio_to_the_best_peer_decides_the_goal():
    board = invented({"ours": [(0.3, 0.8)] * 3, "a": [(0.5, 0.6)] * 3, "b": [(0.4, 0.9)] * 3})
    (mape,) = findings(board)
    assert mape.is_met is True
    assert mape.values["ratio"] == pytest.approx(0.75)
    assert "best baseline b" in mape.text
    worse = invented({"ours": [(0.31, 0.8)] * 3, "b": [(0.4, 0.6)] * 3})
    assert findings(worse)[0].is_met is False


def test_a_goal_is_met_where_the_whole_interval_is_below_it():
    spread = invented({"ours": [(v, 0.8) for v in (0.1, 0.3, 0.35)], "b": [(0.4, 0.6)] * 3})
    found = findings(spread)[0]
    assert found.values["ratio"] == pytest.approx(0.625)
    assert found.values["interval"][1] > 0.75
    assert found.is_met is False
    assert "goal at most 0.75: not beyond the 95 % interval" in found.text
    alone = findings(invented({"ours": [(0.1, 0.8)], "b": [(0.4, 0.6)]}))[0]
    assert alone.is_met is False
    assert alone.values["interval"] is None


def test_another_variant_of_the_subject_is_no_peer():
    board = invented({"ours": [(0.3, 0.8)] * 2, "a": [(0.5, 0.6)] * 2})
    cells = [replace(c, kind="gbdt") if c.line == "a" else c for c in board.cells]
    results = {c.id: replace(board.results[c.id], cell=c) for c in cells}
    found = peer_findings(replace(board, cells=cells, results=results), model_scores(board)[0])
    assert not any("best baseline" in f.text for f in found)


def test_a_line_that_the_suite_calls_ours_is_no_peer():
    board = invented({"ours": [(0.3, 0.8)] * 2, "a": [(0.2, 0.9)] * 2, "b": [(0.5, 0.6)] * 2})
    lines = tuple(replace(line, is_peer=line.name != "a") for line in board.suite.models)
    found = findings(replace(board, suite=replace(board.suite, models=lines)))
    assert "best baseline b" in found[0].text
    assert not any("of a against" in f.text for f in found)


def test_missing_and_failed_cells_are_on_the_page(models, tmp_path):
    board, _ = models
    results = dict(board.results)
    cell = results.pop("synthetic-task-s1-gbdt").cell
    lost = results["synthetic-task-s0-roofline"].cell
    results[lost.id] = CellResult(lost, "failed", "it broke", {})
    other = results["synthetic-task-s1-constant"].cell
    results[other.id] = CellResult(other, "not-applicable", "no steps here", {})
    paths = write_leaderboard(leaderboard(replace(board, results=results)), tmp_path)
    assert json.loads(paths[1].read_text())["missing_cells"] == [cell.id]
    for path in paths[2:]:
        text = path.read_text()
        for word in ("1 of 12 cells are missing", "1 cells failed", "it broke", "no steps here"):
            assert word in text


def test_nothing_finished_is_a_page_too(tmp_path):
    for suite in (CROSS_MODEL, CROSS_DEVICE):
        board = Board(suite, FACTS, plan(suite), {}, "x")
        paths = write_leaderboard(leaderboard(board), tmp_path)
        assert "cells are missing" in paths[2].read_text()


@pytest.mark.exhaustive
@pytest.mark.slow
def test_rows_of_devices_have_every_budget(devices):
    board, paths = devices
    rows = list(csv.DictReader(paths[0].read_text().splitlines()))
    assert {r["split"] for r in rows} == {"leave-one-out:pair"}
    assert {r["device"] for r in rows} == {"fast", "slow", "mean"}
    groups = {r["group"] for r in rows if r["model"] == "one-factor" and r["device"] == "slow"}
    assert {"budget:1", "budget:3", "budget:3/operator:dense"} <= groups
    assert not any(r["model"] == "pretrain" for r in rows)
    assert len({tuple(list(r.values())[:8]) for r in rows}) == len(rows), "a row occurs twice"
    mean = [
        r
        for r in tidy_rows(board)
        if r[3:6] == ("mean", "budget:headline", "one-factor") and r[7] == "mape"
    ]
    parts = [
        board.results[f"synthetic-pair-{t}-s0-b3-one-factor"].value["metrics"]["all"]["mape"]
        for t in ("fast", "slow")
    ]
    assert float(mean[0][8]) == pytest.approx(sum(parts) / 2, rel=1e-6)


def test_fine_tuning_is_compared_at_the_headline_budget(tmp_path):
    suite = replace(
        CROSS_DEVICE,
        methods=("finetune-kmeans", "finetune-random", "scratch", "one-factor", "zero-shot"),
        seeds=(0, 1),
    )
    mape = {
        "finetune-kmeans": 0.3, "finetune-random": 0.4, "scratch": 0.6, "one-factor": 0.35,
        "zero-shot": 0.9,
    }  # fmt: skip
    cells = [cell for cell in plan(suite) if cell.line in mape]
    results = {}
    for cell in cells:
        # At one task everything is as bad as zero-shot, so only the headline budget can decide.
        found = score(0.9 if cell.budget == 1 else mape[cell.line])
        metrics = {"all": found, "mean": found, "by_device": {}, "by_group": {}}
        by_unit = {cell.target: errors(found["mape"])}
        results[cell.id] = CellResult(cell, "ok", "", {"metrics": metrics, "errors": by_unit})
    board = Board(suite, FACTS, cells, results, "x")
    scratch, factor, zero, _ = transfer_findings(
        family_scores(board)[0], suite.goals, suite.methods
    )
    assert scratch.values["ratio"] == pytest.approx(0.5)
    assert scratch.is_met is True
    assert factor.is_met is False
    assert zero.is_met is None
    assert "ahead on 2 of 2 targets" in scratch.text
    both = overall_transfer_findings(family_scores(board) * 2, suite.goals, suite.methods)
    assert [finding.is_met for finding in both] == [True, False]
    assert "all 4 left-out devices" in both[0].text
    write_leaderboard(leaderboard(board), tmp_path)
