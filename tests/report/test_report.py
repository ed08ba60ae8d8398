"""Tables and units of reports."""

from __future__ import annotations

from cdmpp.datasets.judge import judge, oracle_task_median
from cdmpp.report.tables import (
    COLUMNS,
    format_value,
    metric_table,
    text_table,
)
from cdmpp.testing.synthetic import make_samples


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
    table = metric_table("all", lines, model="a")
    keys = [column.key for column in COLUMNS]
    best = {
        row.name: [k for k, c in zip(keys, row.cells, strict=True) if c.best] for row in table.rows
    }
    assert best == {"a": [], "b": ["mape", "spearman_by_task"], "oracle": []}
    assert [row.role for row in table.rows] == ["model", "baseline", "oracle"]
    assert "40.0 %" in text_table(table)


def test_interval_over_seeds_is_shown():
    table = metric_table("all", {"a": [{"mape": 0.1}, {"mape": 0.2}, {"mape": 0.3}]}, model="a")
    cell = table.rows[0].cells[[column.key for column in COLUMNS].index("mape")]
    assert cell.text == "20.0 %"
    assert cell.interval == "± 24.8 %"


def test_oracle_knows_the_median_of_each_task_on_each_device():
    samples = make_samples(4, 5)
    predicted = oracle_task_median(samples)
    import numpy as np

    rows = (samples.task_id == 2) & (samples.device == 1)
    assert np.all(predicted[rows] == np.median(samples.latency_s[rows]))
    assert judge(samples, predicted)["by_device"].keys() == {"fast", "slow"}
