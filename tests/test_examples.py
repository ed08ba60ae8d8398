"""Every example runs, is short, and says on top what it shows."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

pytest.importorskip("tvm", reason="apache-tvm is not installed")

from tests import house
from tests.paths import ROOT

pytestmark = [pytest.mark.tvm, pytest.mark.slow]

#: What a line of the output must have.
SAYS = {
    "add_device": "scale on my-board: ",
    "compare_devices": "torch-eager",
    "explain_kernel": "times the time if",
    "own_cost_model": "keeps every promise",
    "own_logs": "median error",
    "predict_kernel": "90 % interval",
    "predict_onnx": "small on epyc-avx512-1c: ",
    "tune_with_our_model": "programs measured, the best takes",
}
#: What commands are given: a module to import, no script.
MODULES = {"kernel", "networks"}
#: They build and run programs, or import most of torch; other tests hold smaller ones.
HEAVY = ("add_device", "compare_devices", "explain_kernel", "predict_onnx", "tune_with_our_model")
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def test_all_examples_are_here_and_in_the_guide() -> None:
    names = {path.stem for path in EXAMPLES}
    assert names == SAYS.keys() | MODULES
    page = (ROOT / "docs" / "reference" / "python.md").read_text("utf-8")
    assert [name for name in names if f"examples/{name}.py" not in page] == []


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_and_says_what_it_shows(path: Path) -> None:
    assert len(house.docstring(path).split()) >= 8
    if path.stem not in MODULES:
        assert len(path.read_text("utf-8").splitlines()) < 60


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.exhaustive] * (name in HEAVY)) for name in SAYS],
)
def test_an_example_runs(
    name: str,
    tmp_path: Path,
    tiny_dataset: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if name == "predict_onnx":
        pytest.importorskip("onnx", reason="onnx is not installed")
    monkeypatch.chdir(tmp_path)
    words = [str(tiny_dataset)] if name == "own_logs" else []
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *words])
    runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
    assert SAYS[name] in capsys.readouterr().out
