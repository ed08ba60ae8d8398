"""Runs the notebooks of `examples`, in place with their outputs or into another folder.

python -m tests.notebook [FOLDER]
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

from tests.paths import ROOT

NOTEBOOKS = tuple(sorted((ROOT / "examples").glob("*.ipynb")))


def executed(path: Path) -> Any:
    """Returns a notebook with the outputs of today; runs in the root of the checkout.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell fails.
    """
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=600,
        kernel_name="python3",
        resources={"metadata": {"path": str(ROOT)}},
        record_timing=False,
    )
    client.execute()
    # What differs from machine to machine and says nothing to a reader.
    notebook.metadata = {"kernelspec": notebook.metadata["kernelspec"]}
    return notebook


def main(folder: Path | None) -> None:
    """Runs every notebook and writes it.

    Args:
        folder: where to; None = where it lies.
    """
    os.environ.setdefault("PYTHONPATH", str(ROOT))
    for path in NOTEBOOKS:
        nbformat.write(executed(path), (folder or path.parent) / path.name)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
