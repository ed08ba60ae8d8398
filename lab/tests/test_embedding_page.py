"""The page of the embedding models, from a part of the shipped campaign."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from cdmpp.report.embedding_results import embedding_report, error_plots
from tests.paths import ROOT

CAMPAIGN = ROOT / "data" / "embedding-cpu"


@pytest.mark.slow
def test_page_table_and_facts_are_written(tmp_path: Path) -> None:
    data = tmp_path / "campaign"
    data.mkdir()
    lines = (CAMPAIGN / "measurements.csv").read_text().splitlines()
    (data / "measurements.csv").write_text("\n".join([lines[0], *lines[1::6]]) + "\n")
    (data / "machine.json").write_text((CAMPAIGN / "machine.json").read_text())
    value, page = embedding_report(data, tmp_path / "out", seeds=[0], command="make it")
    assert value["stamp"]["command"] == "make it"
    assert value["seeds"] == [0]
    assert value["measurements"] == len(lines[1::6])
    assert {entry["split"] for entry in value["summary"]} == {"shape", "table", "rows"}
    assert json.loads((tmp_path / "out" / "embedding.json").read_text()) == value
    assert (tmp_path / "out" / "embedding.md").read_text() == page
    table = (tmp_path / "out" / "embedding.csv").read_text()
    assert {row["device"] for row in csv.DictReader(io.StringIO(table))} == {"cpu-1t"}


def test_lines_of_different_length_are_plotted_together() -> None:
    import numpy as np

    plots = error_plots({"a": (np.ones(3), np.ones(3) * 2), "b": (np.ones(2), np.ones(2))})
    assert sorted(plots) == ["histogram.svg", "predicted.svg"]
    assert all(text.startswith("<svg") for text in plots.values())
