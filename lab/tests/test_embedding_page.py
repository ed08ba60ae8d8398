"""The page of the embedding models, made from a part of the shipped campaign."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from cdmpp.analytic.embedding.campaign import CampaignRow
from lab.experiments.embedding import experiment, round_spread
from lab.paths import ROOT

CAMPAIGN = ROOT / "data" / "embedding-cpu"


@pytest.mark.exhaustive
@pytest.mark.slow
def test_page_table_and_facts_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "campaign"
    data.mkdir()
    lines = (CAMPAIGN / "measurements.csv").read_text().splitlines()
    (data / "measurements.csv").write_text("\n".join([lines[0], *lines[1::6]]) + "\n")
    (data / "machine.json").write_text((CAMPAIGN / "machine.json").read_text())
    experiment(data, tmp_path / "out", seeds="0")
    page = capsys.readouterr().out
    value = json.loads((tmp_path / "out" / "embedding.json").read_text())
    assert value["stamp"]["command"] == "python -m lab run embedding"
    assert value["seeds"] == [0]
    assert value["measurements"] == len(lines[1::6])
    assert {entry["split"] for entry in value["summary"]} == {"shape", "table", "rows"}
    assert f"{(tmp_path / 'out' / 'embedding.md').read_text()}\n" == page
    table = (tmp_path / "out" / "embedding.csv").read_text()
    assert {row["device"] for row in csv.DictReader(io.StringIO(table))} == {"cpu-1t"}


def test_the_spread_of_rounds() -> None:
    rows = [
        CampaignRow(
            "forward", 8, rows, 2, 1, 4, 0.0, number, 1, "thread-cpu", time_s, 0.01, 8, 1.0, 0
        )
        for rows, number, time_s in ((100, 0, 2e-3), (100, 1, 3e-3), (200, 0, 1e-3))
    ]
    assert round_spread(rows) == pytest.approx([0.5])
