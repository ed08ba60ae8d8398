"""The Python examples of docs/how-to/measure-networks.md run as they are printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cdmpp.cli.main import main
from tests.paths import ROOT

DOC = ROOT / "docs" / "how-to" / "measure-networks.md"


def _block(heading: str) -> str:
    """Returns the first Python block below a heading."""
    part = DOC.read_text(encoding="utf-8").split(f"\n{heading}\n")[1]
    return re.findall(r"```python\n(.*?)```", part, re.DOTALL)[0]


def _run(block: str) -> None:
    exec(compile(block, str(DOC), "exec"), {"__name__": "example"})


def test_the_graph_example(capsys: pytest.CaptureFixture[str]) -> None:
    _run(_block("## Look at the graph"))
    out = capsys.readouterr().out
    assert "('Conv', 'Relu', 'Flatten')" in out
    seconds, memory_bytes = map(float, out.splitlines()[-1].split())
    assert 0 < seconds < 1e-3
    assert memory_bytes > 8 * 32 * 111 * 111 * 4


def test_the_full_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    _run(_block("### A full example"))
    assert "2 graphs of 1 architecture, 4 labels (0 out of memory)" in capsys.readouterr().out
    assert main(["networks", "statistics", "my-set"]) == 0
    assert "my-cpu (4 labels, ok: 4)" in capsys.readouterr().out
