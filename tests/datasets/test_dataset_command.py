"""`cdmpp dataset`: options, output, errors."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from cdmpp.cli.main import main
from cdmpp.cli.shared.options import labels_of


def run(*arguments: str) -> int:
    return main(["dataset", *arguments])


def test_labels_may_be_repeated_and_listed() -> None:
    assert labels_of(None) == []
    assert labels_of(["a,b", " c "]) == ["a", "b", "c"]


def test_stats_as_table_and_as_json(tiny_dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("stats", "--dataset", str(tiny_dataset)) == 0
    assert "xeon-avx2-1c" in capsys.readouterr().out
    assert run("stats", "--dataset", str(tiny_dataset), "--json") == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["devices"]["epyc-avx2-1c"]["records"] == 18
    assert captured.err == ""


def test_a_missing_device_says_how_to_get_it(
    tiny_dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--dataset", str(tiny_dataset), "--device", "t4", "--out", str(tmp_path / "o"))
    assert run("extract", *words) == 3
    assert "cdmpp train --device t4" in capsys.readouterr().err


@pytest.mark.tvm
@pytest.mark.skipif(not importlib.util.find_spec("tvm"), reason="apache-tvm is not installed")
def test_extract_with_the_real_featuriser(
    tiny_dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from cdmpp.datasets.cache import load_samples

    out = tmp_path / "out"
    arguments = ("extract", "--dataset", str(tiny_dataset), "--out", str(out), "--jobs", "1")
    assert run(*arguments, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["programs"] == 18
    assert report["valid"] >= 15
    assert run(*arguments) == 0
    captured = capsys.readouterr()
    assert "18 programs" in captured.out
    assert "percent extracted: 100 of 100" in captured.err
    samples = load_samples(out)
    assert len(samples) == 2 * report["featurised"]
    assert samples.programs.leaf_features.any()
