"""What README.md and the tutorials show is what their commands print.

`python -m tests.shown PAGE...` runs the commands and blocks of pages again, in a new folder, and
writes what they print into the page. A line `...` stands for lines that are left out.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
from pathlib import Path

import pytest

from cdmpp.cli.main import main
from tests.paths import ROOT

TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
_BLOCK = re.compile(r"^```(console|python)\n(.*?)^```", re.M | re.S)
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
#: What these measure or train differs from run to run and machine to machine.
_VARYING = ("search", "train", "finetune")


def link_inputs(folder: Path) -> None:
    """Puts into a folder what the commands of the pages read."""
    for name in ("examples", "configs", "data", "cdmpp", "tvm_helper"):
        (folder / name).symlink_to(ROOT / name)


def steps(page: Path) -> list[tuple[str, str]]:
    """Returns (command or Python block, output shown) in the order of the page.

    Only commands of `cdmpp` count; what a Python block prints is not shown.
    """
    found = []
    for language, text in _BLOCK.findall(page.read_text("utf-8")):
        if language == "python":
            found.append((text, ""))
            continue
        for part in re.split(r"^\$ ", text, flags=re.M)[1:]:
            command, output = _parted(part)
            if command.startswith("cdmpp "):
                found.append((command, output))
    return found


def printed_by(command: str) -> str:
    """Returns what a command or a Python block prints on stdout."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        if command.startswith("cdmpp "):
            assert main(shlex.split(command.replace("\\\n", " "))[1:]) == 0, command
        else:
            exec(compile(command, "a page's block", "exec"), {"__name__": "__main__"})
    return out.getvalue()


def check_output(command: str, printed: str, shown: str) -> None:
    """Compares words, and numbers within 3 %; of what varies, the first word of every line.

    Raises:
        AssertionError: they differ.
    """
    if command.split()[1] in _VARYING:
        assert set(_first_words(shown)) - {"..."} <= set(_first_words(printed))
        return
    assert _words(printed) == _words(shown)
    for got, expected in zip(_NUMBER.findall(printed), _NUMBER.findall(shown), strict=True):
        assert float(got) == pytest.approx(float(expected), rel=0.03), (got, expected)


def _parted(part: str) -> tuple[str, str]:
    """Returns a command, with the lines that continue it, and its output."""
    lines = part.splitlines(keepends=True)
    end = next(n for n, line in enumerate(lines) if not line.endswith("\\\n")) + 1
    return "".join(lines[:end]).rstrip("\n"), "".join(lines[end:])


def _first_words(text: str) -> list[str]:
    return [_NUMBER.sub("#", line.split()[0]) for line in text.splitlines() if line.strip()]


def _words(text: str) -> list[str]:
    """Returns the lines without their numbers and spaces."""
    lines = (re.sub(r"[\s-]+", " ", _NUMBER.sub("#", line)).strip() for line in text.splitlines())
    return [line for line in lines if line]


def rewritten(page: Path) -> str:
    """Returns a page with what its commands print today; lines that were left out are back."""
    text = page.read_text("utf-8")
    for command, shown in steps(page):
        printed = printed_by(command)
        if shown.strip():
            old, new = f"$ {command}\n{shown}", f"$ {command}\n{printed.rstrip()}\n"
            text = text.replace(old, new + "\n" * (len(shown) - len(shown.rstrip("\n")) - 1))
    return text


if __name__ == "__main__":
    os.environ["COLUMNS"] = "80"
    pages = [Path(name).resolve() for name in sys.argv[1:]]
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        link_inputs(Path(folder))
        for page in pages:
            page.write_text(rewritten(page), "utf-8")
