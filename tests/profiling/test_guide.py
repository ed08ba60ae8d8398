"""The example of docs/how-to/profile.md runs as it is written."""

from __future__ import annotations

import re
import runpy
import shlex
import sys

import pytest
import torch

from cdmpp.cli.main import main
from tests.paths import ROOT

GUIDE = ROOT / "docs" / "how-to" / "profile.md"


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
        monkeypatch.setattr(sys, "argv", words)
        threads = torch.get_num_threads()
        with torch.random.fork_rng():
            runpy.run_path(words[0])
        torch.set_num_threads(threads)
        shown.append(capsys.readouterr().out)
    assert "rows" in shown[1]
    assert "roofline" in shown[1]
    assert re.search(r"faster\s+20/20\s+rows", shown[3])
