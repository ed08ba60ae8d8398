"""Tables of results, narrowed down facet by facet."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cdmpp.errors import DataError, UsageError
from cdmpp.report.tidy_results import FACETS, ResultsFolder
from cdmpp.text import TIDY_COLUMNS, csv_text
from tests.report.run_folders import unpack_results


def write_results(folder: Path) -> None:
    """Writes a table of two models on two data sets with three seeds."""
    rows = [
        ("suite", dataset, "task", device, "test", model, seed, metric, value + 0.01 * seed, 40)
        for dataset in ("cpu", "gpu")
        for device in ("all", "a100")
        for model, value in (("ensemble", 0.2), ("oracle", 0.1), ("gbdt", 0.3))
        for metric in ("own_s", "mape")
        for seed in range(3)
    ]
    rows.append((*rows[-1][:6], "all", "mape", 9.0, 40))  # gbdt's, over the seeds
    rows[0] = (*rows[0][:8], None, 40)  # undefined
    (folder / "board.csv").write_text(csv_text(TIDY_COLUMNS, rows))
    (folder / "board.md").write_text("# Leaderboard: board\n")
    (folder / "board.html").write_text("<!doctype html><title>board</title>")
    facts = {
        "command": "python -m lab benchmark",
        "verdict": {"cpu, by task": [{"text": "ensemble is ahead."}]},
    }  # fmt: skip
    (folder / "board.json").write_text(json.dumps(facts))
    (folder / "other.csv").write_text("kind,trial\na,1\n")
    (folder / "loose.json").write_text("[]")


@pytest.fixture
def results(tmp_path: Path) -> ResultsFolder:
    write_results(tmp_path)
    return ResultsFolder(tmp_path)


def test_a_board_has_means_over_seeds_at_the_chosen_place(results: ResultsFolder) -> None:
    assert results.tables() == [
        {"name": "board", "title": "Leaderboard: board", "has_numbers": True, "has_page": True}
    ]
    board = results.board("board", {"dataset": "gpu", "device": "nowhere"})
    assert [facet["chosen"] for facet in board["facets"]] == ["suite", "gpu", "task", "all", "test"]
    assert [facet["name"] for facet in board["facets"]] == list(FACETS)
    assert [one["key"] for one in board["columns"]] == ["mape", "own_s"]
    assert board["columns"][1]["title"] == "own s"
    assert board["columns"][1]["unit"] == "seconds"
    line = board["lines"][0]
    assert (line["model"], line["seeds"], line["n"]) == ("ensemble", 3, 40)
    assert line["values"]["mape"]["mean"] == pytest.approx(0.21)
    assert line["values"]["mape"]["half"] == pytest.approx(4.303 * 0.01 / 3**0.5, rel=1e-3)
    gbdt = results.board("board", {"dataset": "gpu", "device": "a100"})["lines"][-1]
    assert (gbdt["seeds"], gbdt["values"]["mape"]["mean"]) == (3, pytest.approx(0.31))
    assert board["verdict"] == {"cpu, by task": ["ensemble is ahead."]}
    undefined = results.board("board", {"dataset": "cpu"})["lines"][0]["values"]["own_s"]
    assert undefined["mean"] == pytest.approx(0.215)  # of the two that are defined


def test_what_is_no_table_is_one_sentence(results: ResultsFolder, tmp_path: Path) -> None:
    for name in ("other", "../board", "loose", ""):
        with pytest.raises(UsageError, match="no results"):
            results.board(name, {})
    path = tmp_path / "board.csv"
    path.write_text(path.read_text() + "suite,cpu\n")
    with pytest.raises(DataError, match="another length"):
        results.board("board", {})
    with pytest.raises(DataError, match="expected a folder"):
        ResultsFolder(tmp_path / "nowhere")


def test_every_table_of_the_laboratory_has_a_board(tmp_path: Path) -> None:
    results = ResultsFolder(unpack_results(tmp_path))
    tables = results.tables()
    assert {"tenset", "operators", "cross-model"} <= {one["name"] for one in tables}
    for one in tables:
        board = results.board(one["name"], {})
        assert bool(board["lines"]) == one["has_numbers"]
        json.dumps(board, allow_nan=False)
