"""`cdmpp dataset transfer` with the shipped model."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest

from cdmpp.cli.main import main
from tests.cli.conftest import DEVICES, PROGRAMS, TASKS, json_of


@pytest.mark.exhaustive
def test_a_table_says_what_programs_take_on_another_device(dataset, cache, tmp_path, capsys):
    out = tmp_path / "table.parquet"
    words = ["dataset", "transfer", "--dataset", str(dataset), "--cache", str(cache), "--jobs", "1"]
    asked = [*words, "--from", DEVICES[0].upper(), "--to", DEVICES[1], "--out", str(out)]
    assert main([*asked, "--judge", "--json"]) == 0
    values = json_of(capsys)
    assert values["tasks"] == TASKS
    assert TASKS * PROGRAMS - 2 <= values["programs"] <= TASKS * PROGRAMS
    assert values["judged"]["n"] <= values["programs"]
    assert values["judged"]["transferred"]["mape"] < 1.0
    table = pq.read_table(out).to_pydict()
    low, said, high = (np.array(table[name]) for name in ("low_s", "predicted_s", "high_s"))
    assert np.all((low > 0) & (low < said) & (said < high))
    assert np.all(np.array(table["source_s"]) > 0)
    out.unlink()
    assert main([*asked, "--judge", "-q"]) == 0
    text = capsys.readouterr().out
    assert f"measured on {DEVICES[0]}, corrected by the model" in text
    assert all(len(line) <= 80 for line in text.splitlines() if "table.parquet" not in line)
    out.unlink()
    assert main([*asked, "--json"]) == 0
    assert json_of(capsys)["judged"] is None
    assert np.isnan(np.array(pq.read_table(out).to_pydict()["measured_s"], float)).all()


@pytest.mark.parametrize(
    ("source", "target", "code", "said"),
    [
        (DEVICES[0], DEVICES[0], 2, "expected two devices"),
        (DEVICES[0], "v100", 2, "do not run the same programs"),
        (DEVICES[0], "v1000", 4, "did you mean 'v100'"),
        ("rtx3080", "v100", 3, "no measure records of device"),
    ],
)
def test_what_cannot_be_told_is_one_sentence(
    dataset, cache, tmp_path, monkeypatch, capsys, source, target, code, said
):
    monkeypatch.chdir(tmp_path)
    words = ["dataset", "transfer", "--dataset", str(dataset), "--cache", str(cache), "--jobs", "1"]
    assert main([*words, "--from", source, "--to", target, "-q"]) == code
    assert said in capsys.readouterr().err
    assert not list(tmp_path.glob("*.parquet"))


def test_a_file_that_is_there_stays(dataset, cache, tmp_path, capsys):
    out = tmp_path / "table.parquet"
    out.write_text("mine")
    words = ["dataset", "transfer", "--dataset", str(dataset), "--cache", str(cache), "-q"]
    asked = [*words, "--from", DEVICES[0].upper(), "--to", DEVICES[1], "--out", str(out)]
    assert main(asked) == 2
    assert "table.parquet exists already; give a new file" in capsys.readouterr().err
    assert out.read_text() == "mine"
