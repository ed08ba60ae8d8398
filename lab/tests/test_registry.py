"""Experiments are found by name, and their options are the arguments of their functions."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cdmpp.errors import UsageError
from lab import registry
from lab.__main__ import main
from lab.journal import Journal
from lab.paths import ROOT
from lab.registry import EXPERIMENTS, Experiment, find, options_of


def test_names_are_distinct() -> None:
    names = [one.name for one in EXPERIMENTS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("one", EXPERIMENTS, ids=lambda one: one.name)
def test_every_experiment_is_there_and_its_options_fit(one: Experiment) -> None:
    if one.name not in ("fuzz", "faults"):
        pytest.importorskip("tvm", reason="apache-tvm is not installed")
    fields = {field.name: field for field in dataclasses.fields(options_of(one.function()))}
    needed = {name for name, field in fields.items() if field.default is dataclasses.MISSING}
    given = {option.partition("=")[0] for option in one.options}
    assert given <= set(fields)
    assert not one.written or needed <= given


def _function(out: Path, seeds: tuple[int, ...] = (0, 1), share: float = 0.5) -> None:
    """Writes its arguments."""
    out.write_text(f"{seeds} {share}")


def test_options_are_read_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Experiment("one", "a test")
    monkeypatch.setattr(Experiment, "function", lambda self: _function)
    one.run([f"out={tmp_path / 'said'}", "seeds=[3]"])
    assert (tmp_path / "said").read_text() == "(3,) 0.5"
    for options, message in (
        (["seeds=[3]"], "out has no default"),
        (["out=x", "sheds=[3]"], "did you mean 'seeds'"),
        (["out=x", "seeds=three"], "expected a list"),
    ):
        with pytest.raises(UsageError, match=message):
            one.run(options)


def test_an_unknown_experiment_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "compild"]) == 2
    assert "did you mean 'compiled'?" in capsys.readouterr().err
    assert find("conv").written == ("conv",)


def test_experiments_are_listed_with_their_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    assert "conv" in capsys.readouterr().out
    assert main(["list", "conv"]) == 0
    said = capsys.readouterr().out
    assert "seeds = (0, 1, 2)" in said
    assert "runs/results/conv.md" in said


def test_finished_cells_are_not_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "work" / "cells.jsonl"
    calls: list[str] = []

    def measure() -> dict[str, int]:
        calls.append("called")
        return {"z": 1, "a": 2}

    assert Journal(path).cell("one", measure) == {"z": 1, "a": 2}
    with path.open("a") as file:
        file.write('{"key":"two","val')  # truncated by a kill
    journal = Journal(path)
    assert list(journal.cell("one", measure)) == ["z", "a"], "names keep their order"
    assert journal.cell("two", measure) == {"z": 1, "a": 2}
    assert calls == ["called"] * 2
    assert list(Journal(path).cells()) == ["one", "two"]


def test_the_command_that_makes_a_page_says_its_options() -> None:
    (one,) = (one for one in registry.EXPERIMENTS if one.name == "search-elsewhere")
    assert one.command() == "python -m lab run search-elsewhere page=search-elsewhere"


def test_an_experiment_of_one_thread_says_so_before_numpy_is_loaded() -> None:
    code = (
        "import os, sys\nfrom lab.commands import experiments\n"
        "from lab.registry import Experiment\n"
        "assert not {'numpy', 'torch', 'tvm'} & set(sys.modules)\n"
        "Experiment.run = lambda self, options: print(os.environ['OMP_NUM_THREADS'])\n"
        "from lab.__main__ import main\nsys.exit(main(['run', 'conv']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "2"},
    )  # fmt: skip
    assert (done.stdout, done.returncode) == ("1\n", 0), done.stderr
