"""The notebook runs from its first to its last cell, and is committed with what it prints."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import ROOT

nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
pytest.importorskip("nbclient", reason="nbclient is not installed")
pytest.importorskip("tvm", reason="apache-tvm is not installed")

pytestmark = [pytest.mark.tvm, pytest.mark.slow]


def test_the_notebook_runs_and_its_outputs_are_committed(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.notebook", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    committed, again = (
        nbformat.read(folder / "first-steps.ipynb", as_version=4)
        for folder in (ROOT / "examples", tmp_path)
    )
    cells = list(zip(committed.cells, again.cells, strict=True))
    assert len(cells) > 8
    for old, new in cells:
        assert old.source == new.source
        if old.cell_type == "code":
            kinds = [[one.output_type for one in cell.outputs] for cell in (old, new)]
            assert kinds[0], f"run python -m tests.notebook: no output of {old.source[:60]!r}"
            assert kinds[0] == kinds[1], f"run python -m tests.notebook: {old.source[:60]!r}"
