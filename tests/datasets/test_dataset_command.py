"""`cdmpp dataset`: options, output, errors."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from pathlib import Path

import pytest

from cdmpp.cli.dataset.command import device_labels, register
from cdmpp.errors import DataError


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    register(parser.add_subparsers(required=True))
    args = parser.parse_args(["dataset", *arguments])
    result: int = args.run(args)
    return result


def test_labels_may_be_repeated_and_listed() -> None:
    assert device_labels(None) is None
    assert device_labels(["a,b", " c "]) == ["a", "b", "c"]


def test_stats_as_table_and_as_json(tiny_dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("stats", "--dataset", str(tiny_dataset)) == 0
    assert "xeon-avx2-1c" in capsys.readouterr().out
    assert run("stats", "--dataset", str(tiny_dataset), "--json") == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["devices"]["epyc-avx2-1c"]["records"] == 18
    assert captured.err == ""


def test_a_missing_device_is_told_before_the_compiler_is_loaded(
    tiny_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tvm_helper.featurise", None)  # importing it would fail
    with pytest.raises(DataError, match=r"python scripts/train\.py --device t4"):
        run(
            "extract",
            "--dataset",
            str(tiny_dataset),
            "--device",
            "t4",
            "--out",
            str(tmp_path / "o"),
        )


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
    assert "extract: 100 %" in captured.err
    samples = load_samples(out)
    assert len(samples) == 2 * report["featurised"]
    assert samples.programs.leaf_features.any()
