"""Output of the commands of `../shared/cases`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory

from lab.pages import write_page
from lab.paths import ROOT, SHARED_DATA
from lab.stamp import PROGRAMS, stamp

_CASES = SHARED_DATA.parent / "cases"
_COMMANDS = Path(__file__).with_suffix(".txt")
_LONGEST_S = 300
_MOST_LINES = 24


def experiment(cases: Path = _CASES) -> None:
    """Writes the page.

    Args:
        cases: folder with one folder per case, each with a README that states the right result.
    """
    lines = [line.split(" | ") for line in _COMMANDS.read_text("utf-8").splitlines()[1:]]
    parts, codes = [], {}
    for name, group in groupby(lines, key=lambda line: line[0]):
        parts.append(f"## {name}\n")
        with TemporaryDirectory() as scratch:
            folder = _prepared(cases / name, Path(scratch))
            for _, command in group:
                code, text = _said(command, folder)
                codes[f"{name}: {command}"] = code
                parts.append(f"```\n$ {command}\n{text}\n(exit code {code})\n```\n")
    head = "# Cases\n\nInputs on which an earlier version was wrong, with its answers of today.\n"
    found = stamp("python -m lab run cases", schemas=PROGRAMS, models=["pretrained"])
    write_page("cases", "\n".join([head, *parts]), {"exit_codes": codes}, found)


def _prepared(case: Path, scratch: Path) -> Path:
    """Returns a copy of a case's folder with its generated files and the DLRM example config."""
    folder = scratch / case.name
    shutil.copytree(case, folder)
    shutil.copy(ROOT / "configs" / "replay" / "dlrm-default.yaml", folder)
    for script in ("make_onnx.py", "graph.py", "step.py"):
        if (folder / script).is_file():
            subprocess.run([sys.executable, script], cwd=folder, check=True, capture_output=True)
    return folder


def _said(command: str, folder: Path) -> tuple[int, str]:
    """Returns a command's exit code and its output, shortened if long."""
    words = [sys.executable, "-m", "cdmpp", *command.split()[1:]]
    done = subprocess.run(
        words, cwd=folder, capture_output=True, text=True, timeout=_LONGEST_S, check=False,
        env={**os.environ, "COLUMNS": "110", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    text = "\n".join(part.rstrip() for part in (done.stdout, done.stderr) if part.strip())
    rows = [re.sub(r"\S*/tmp/\S*/", "", row) for row in text.splitlines()]
    if len(rows) > _MOST_LINES:
        rows = [*rows[:_MOST_LINES], f"... ({len(rows) - _MOST_LINES} more lines)"]
    return done.returncode, "\n".join(rows)
