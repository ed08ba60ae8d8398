"""The Python examples of docs/networks.md on graphs and data sets run as they are printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cdmpp.cli.main import main
from tests.paths import ROOT

DOC = ROOT / "docs" / "networks.md"


def _blocks(start: str, end: str) -> list[str]:
    """Returns the Python blocks between two headings."""
    text = DOC.read_text(encoding="utf-8")
    part = text.split(f"\n{start}\n")[1].split(f"\n{end}\n")[0]
    return re.findall(r"```python\n(.*?)```", part, re.DOTALL)


def _run(block: str) -> None:
    exec(compile(block, str(DOC), "exec"), {"__name__": "example"})


def test_the_graph_example(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = _blocks("## Graph", "## Published data set")
    _run(block)
    out = capsys.readouterr().out
    assert "('Conv', 'BatchNormalization', 'Relu', 'GlobalAveragePool', 'Flatten', 'Gemm')" in out
    assert "(6, 30) (5, 5) (18,)" in out
    assert "train:" in out


def test_the_full_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (block,) = _blocks("### A full example", "### A data set of ours")
    monkeypatch.chdir(tmp_path)
    _run(block)
    assert "2 graphs of 1 architectures, 4 labels (0 out of memory)" in capsys.readouterr().out
    assert main(["networks", "statistics", "my-set"]) == 0
    assert "my-cpu (4 labels, ok: 4)" in capsys.readouterr().out
