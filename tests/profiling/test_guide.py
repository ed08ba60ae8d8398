"""The example of docs/profiling.md runs as it is written."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

import pytest

from cdmpp.cli.main import main
from tests.paths import ROOT

GUIDE = ROOT / "docs" / "profiling.md"


@pytest.mark.slow
def test_the_five_steps(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    text = GUIDE.read_text()
    loop = text[text.index("## The loop") : text.index("## What it reads")]
    blocks = re.findall(r"```(\w*)\n(.*?)```", loop, re.DOTALL)
    (tmp_path / "step.py").write_text(next(body for kind, body in blocks if kind == "python"))
    commands = [
        body.strip()
        for kind, body in blocks
        if not kind and body.startswith(("python ", "cdmpp ")) and body.count("\n") == 1
    ]
    assert len(commands) == 4
    shown = []
    for command in commands:
        program, *words = shlex.split(command)
        if program == "cdmpp":
            assert main(words) == 0
            shown.append(capsys.readouterr().out)
            continue
        done = subprocess.run(
            [sys.executable, *words], capture_output=True, text=True, timeout=300, check=True,
            env={"PYTHONPATH": str(GUIDE.parents[1]), "PATH": ""},
        )  # fmt: skip
        shown.append(done.stdout)
    assert "rows" in shown[1]
    assert "roofline" in shown[1]
    assert re.search(r"faster\s+20/20\s+rows", shown[3])
