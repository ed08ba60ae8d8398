"""The notebook runs from its first to its last cell, and is committed with what it prints."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.paths import ROOT

nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
pytest.importorskip("nbclient", reason="nbclient is not installed")
pytest.importorskip("tvm", reason="apache-tvm is not installed")

pytestmark = [pytest.mark.tvm, pytest.mark.slow]


def committed() -> Any:
    """Returns the notebook of the repository."""
    return nbformat.read(ROOT / "examples" / "first-steps.ipynb", as_version=4)


def test_every_cell_is_python_and_committed_with_an_output() -> None:
    cells = [cell for cell in committed().cells if cell.cell_type == "code"]
    assert len(cells) > 4
    for cell in cells:
        ast.parse(cell.source.replace("%matplotlib inline\n", ""))
        kinds = [one.output_type for one in cell.outputs]
        assert kinds, f"run python -m tests.notebook: no output of {cell.source[:60]!r}"
        assert "error" not in kinds


@pytest.mark.exhaustive
def test_the_notebook_runs_and_its_outputs_are_committed(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.notebook", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    again = nbformat.read(tmp_path / "first-steps.ipynb", as_version=4)
    cells = list(zip(committed().cells, again.cells, strict=True))
    assert len(cells) > 8
    for old, new in cells:
        assert old.source == new.source
        if old.cell_type == "code":
            kinds = [[one.output_type for one in cell.outputs] for cell in (old, new)]
            assert kinds[0], f"run python -m tests.notebook: no output of {old.source[:60]!r}"
            assert kinds[0] == kinds[1], f"run python -m tests.notebook: {old.source[:60]!r}"
