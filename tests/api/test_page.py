"""The pages about Python: every block runs, one after the other, in a folder with data."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("tvm", reason="apache-tvm is not installed")

from tests.paths import ROOT

PAGES = ("how-to/use-from-python.md", "reference/python.md")

pytestmark = [pytest.mark.tvm, pytest.mark.slow, pytest.mark.training]


@pytest.mark.parametrize("name", PAGES)
def test_every_block_runs(
    name: str, tmp_path: Path, tiny_dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").symlink_to(ROOT / "data")
    (tmp_path / "tenset").symlink_to(tiny_dataset)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / name).read_text(), re.S)
    assert len(blocks) >= 2
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, f"docs/{name}: {block[:60]!r}", "exec"), names)
