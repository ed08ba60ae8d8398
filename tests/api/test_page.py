"""The pages about Python: every block runs, one after the other, in a folder with data."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tvm", reason="apache-tvm is not installed")

from tests.paths import ROOT

PAGES = (
    "how-to/use-from-python.md",
    "how-to/use-in-ci.md",
    pytest.param("how-to/metaschedule.md", marks=pytest.mark.exhaustive),  # two searches
    "reference/python.md",
)

pytestmark = [pytest.mark.tvm, pytest.mark.slow, pytest.mark.training]


@pytest.mark.parametrize("name", PAGES)
def test_every_block_runs(
    name: str, tmp_path: Path, tiny_dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("data", "examples"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    (tmp_path / "tenset").symlink_to(tiny_dataset)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / name).read_text(), re.S)
    assert len(blocks) >= 2
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, f"docs/{name}: {block[:60]!r}", "exec"), names)
    for found in [names[name] for name in names if name.startswith("test_")]:
        found()
