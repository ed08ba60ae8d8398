"""Run folders side by side."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cdmpp.errors import DataError, UsageError
from cdmpp.report.run_comparison import RunsFolder
from cdmpp.training.run_folder import read_predictions
from tests.report.run_folders import write_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    write_run(folder / "first", "roofline", epochs=3)
    write_run(folder / "deeper" / "second", "constant", seed=1)
    write_run(folder / "broken", "constant")
    (folder / "broken" / "metrics.json").write_text("{")
    (folder / "no-run").mkdir()
    return folder


def test_runs_are_found_and_a_broken_one_says_why(folder: Path) -> None:
    found = {one["name"]: one for one in RunsFolder(folder).runs()}
    assert set(found) == {"first", "deeper/second", "broken"}
    assert found["first"]["kind"] == "roofline"
    assert found["first"]["has_report"]
    assert "damaged" in found["broken"]["problem"]
    assert found["first"]["problem"] is None


def test_runs_are_compared_on_what_their_predictions_say(folder: Path) -> None:
    compared = RunsFolder(folder).compared(["first", "deeper/second"])
    first, second = compared["runs"]
    assert [len(first["curve"]), len(second["curve"])] == [3, 0]
    assert set(first["test"]) == {"roofline", "constant", "oracle"}
    rows = read_predictions(folder / "first" / "predictions.parquet")
    is_test = rows["part"] == "test"
    off = np.abs(np.log(rows["predicted_s"] / rows["measured_s"]))
    assert first["test"]["roofline"]["mean_log_error"] == pytest.approx(off[is_test].mean())
    for task in compared["tasks"]:
        one = task["runs"][0]
        if one is not None:
            own = is_test & (rows["device"] == task["device"])
            own &= np.array([task["task"] in name for name in rows["task"]])
            assert one == {
                "n": own.sum(), "median_log_error": pytest.approx(np.median(off[own]))
            }  # fmt: skip
    assert any(None in task["runs"] for task in compared["tasks"])  # other splits
    assert any(None not in task["runs"] for task in compared["tasks"])
    worst = max(
        abs(np.log(run["predicted_s"] / compared["worst"][0]["measured_s"]))
        for run in compared["worst"][0]["runs"]
        if run["part"] == "test"
    )
    assert worst >= off[is_test].max()
    parts = {run["part"] for one in compared["worst"] for run in one["runs"]}
    assert {"test", "train"} <= parts  # what judges one run trained the other


def test_what_cannot_be_compared_is_one_sentence(folder: Path, tmp_path: Path) -> None:
    runs = RunsFolder(folder)
    for names, text in (
        (["../first"], "no run"),
        ([], "expected 1 to 6"),
        (["first"] * 7, "7 runs"),
    ):
        with pytest.raises(UsageError, match=text):
            runs.compared(names)
    with pytest.raises(DataError, match="damaged"):
        runs.compared(["broken"])
    with pytest.raises(UsageError, match="no run"):
        runs.report("no-run")
    with pytest.raises(DataError, match="expected a folder"):
        RunsFolder(tmp_path / "nowhere")


def test_predictions_that_are_none_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "predictions.parquet"
    for content in (b"", b"PAR1 no parquet PAR1"):
        path.write_bytes(content)
        with pytest.raises(DataError, match="has no predictions"):
            read_predictions(path)
    with pytest.raises(DataError, match="has no predictions"):
        read_predictions(tmp_path / "none.parquet")
