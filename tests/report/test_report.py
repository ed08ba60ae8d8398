"""Tables and units of reports, and the results of a suite."""

from __future__ import annotations

import csv
import json

import pytest

from cdmpp.models.options import GbdtOptions
from cdmpp.report.results import CSV_COLUMNS, SuiteOrigin, suite_groups, write_results
from cdmpp.report.tables import (
    COLUMNS,
    format_seconds,
    format_value,
    markdown_table,
    metric_group,
    text_table,
)
from cdmpp.training.benchmark import run_grid
from cdmpp.training.judge import judge, oracle_task_median
from cdmpp.training.options import TrainOptions
from tests.models.synthetic import make_samples

OPTIONS = TrainOptions(
    model="gbdt",
    baselines=("constant",),
    fractions=(0.4, 0.3, 0.3),
    gbdt=GbdtOptions(trees=5, threads=1),
)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(2.5, "2.50 s"), (0.00125, "1.25 ms"), (3.2e-05, "32.0 µs"), (123.0, "123 s"), (4e-9, "4 ns")],
)
def test_seconds_are_readable(seconds, text):
    assert format_seconds(seconds) == text


def test_values_are_readable():
    assert format_value(0.1234, "percent") == "12.3 %"
    assert format_value(None, "ratio") == "-"
    assert format_value(12345, "count") == "12,345"


def test_best_value_is_marked_and_the_oracle_never_is():
    lines = {
        "a": [{"n": 2, "mape": 0.5, "spearman_by_task": 0.1}],
        "b": [{"n": 2, "mape": 0.4, "spearman_by_task": 0.3}],
        "oracle": [{"n": 2, "mape": 0.1, "spearman_by_task": 0.9}],
    }
    group = metric_group("all", lines, model="a")
    keys = [column.key for column in COLUMNS]
    best = {
        row.name: [k for k, c in zip(keys, row.cells, strict=True) if c.best] for row in group.rows
    }
    assert best == {"a": [], "b": ["mape", "spearman_by_task"], "oracle": []}
    assert [row.role for row in group.rows] == ["model", "baseline", "oracle"]
    assert "**40.0 %**" in markdown_table(group)
    assert "40.0 %" in text_table(group)


def test_interval_over_seeds_is_shown():
    group = metric_group("all", {"a": [{"mape": 0.1}, {"mape": 0.2}, {"mape": 0.3}]}, model="a")
    cell = group.rows[0].cells[[column.key for column in COLUMNS].index("mape")]
    assert cell.text == "20.0 %"
    assert cell.interval == "± 24.8 %"


def test_oracle_knows_the_median_of_each_task_on_each_device():
    samples = make_samples(4, 5)
    predicted = oracle_task_median(samples)
    import numpy as np

    rows = (samples.task_id == 2) & (samples.device == 1)
    assert np.all(predicted[rows] == np.median(samples.latency_s[rows]))
    assert judge(samples, predicted)["by_device"].keys() == {"fast", "slow"}


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    folder = tmp_path_factory.mktemp("suite")
    samples = make_samples(20, 5)
    grid = run_grid(OPTIONS, samples, [0, 1], folder / "runs")
    origin = SuiteOrigin("by-task", "synthetic", samples.programs.data_hash, "cdmpp x", "gbdt")
    paths = write_results(grid, origin, folder)
    return folder, samples, grid, paths


def test_csv_is_tidy(suite):
    folder, _, grid, _ = suite
    rows = list(csv.DictReader((folder / "by-task.csv").read_text().splitlines()))
    assert tuple(rows[0]) == CSV_COLUMNS
    wanted = [r for r in rows if r["model"] == "constant" and r["metric"] == "mape"]
    assert len(wanted) == 2 * 3
    pooled = next(r for r in wanted if r["device"] == "all" and r["seed"] == "1")
    assert float(pooled["value"]) == grid.lines["constant"][1]["mape"]
    assert int(pooled["n"]) == grid.lines["constant"][1]["n"]


def test_json_names_the_origin(suite):
    folder, samples, _, _ = suite
    value = json.loads((folder / "by-task.json").read_text())
    assert {"command", "commit", "versions", "data_hash", "machine"} <= set(value)
    assert value["data_hash"] == samples.programs.data_hash
    assert set(value["test"]) == {"gbdt", "constant", "oracle"}


def test_markdown_and_html_show_every_device(suite):
    folder, _, grid, _ = suite
    titles = [group.title for group in suite_groups(grid, "gbdt")]
    assert titles == ["all devices", "fast", "slow"]
    for name in ("by-task.md", "by-task.html"):
        text = (folder / name).read_text()
        assert all(title in text for title in titles)
        assert "±" in text


def test_finished_cells_are_not_run_again(suite):
    folder, samples, grid, _ = suite
    assert grid.reused == 0
    again = run_grid(OPTIONS, samples, [0, 1], folder / "runs")
    assert again.reused == 4
    assert again.lines == grid.lines


def test_seeds_draw_different_splits(suite):
    _, _, grid, _ = suite
    assert grid.lines["oracle"][0]["mape"] != grid.lines["oracle"][1]["mape"]
