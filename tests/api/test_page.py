"""docs/python.md: every block runs, one after the other, in a folder with data and measurements."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("tvm", reason="apache-tvm is not installed")

from tests.paths import ROOT

pytestmark = [pytest.mark.tvm, pytest.mark.slow, pytest.mark.training]


def test_every_block_runs(
    tmp_path: Path, tiny_dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").symlink_to(ROOT / "data")
    (tmp_path / "tenset").symlink_to(tiny_dataset)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text(), re.S)
    assert len(blocks) >= 6
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, f"docs/python.md: {block[:60]!r}", "exec"), names)
