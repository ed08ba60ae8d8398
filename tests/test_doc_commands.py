"""Every command in a block of README.md and the guides is one: the real parser takes it."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdmpp.cli.main import build_parser
from tests.paths import ROOT
from tests.test_docs import PAGES as ALL_PAGES

PAGES = [page for page in ALL_PAGES if page.name not in ("CHANGELOG.md", "CONTRIBUTING.md")]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)
#: What ends a command, or sends its output somewhere.
_SHELL = ("|", "||", "&&", ";", "&", ">", ">>", "<", "2>", "2>/dev/null")


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Yields (language, text) of the fenced blocks."""
    yield from _BLOCK.findall(page.read_text("utf-8"))


def commands(page: Path) -> Iterator[list[str]]:
    """Yields the words of every command of `cdmpp`, `scripts/` or `make` in a block."""
    for language, text in blocks(page):
        if language not in ("", "bash", "console"):
            continue
        for line in text.replace("\\\n", " ").splitlines():
            line = line.strip().removeprefix("$ ")
            if not re.match(r"(cdmpp|make|python scripts/\w+\.py|python -m cdmpp)\b", line):
                continue
            words = shlex.split(line, comments=True)
            ends = [place for place, word in enumerate(words) if word in _SHELL]
            yield words[: ends[0]] if ends else words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_are_what_the_parser_takes(page: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    wrong = [" ".join(words) for words in commands(page) if not _is_taken(words, targets)]
    assert wrong == []


def _is_taken(words: list[str], targets: set[str]) -> bool:
    if words[0] == "make":
        return all("=" in word or word in targets for word in words[1:])
    if words[0] == "python":
        script = ROOT / words[1]
        front = re.search(r"run_command\((.*?)\)", script.read_text())
        assert front is not None, words
        words = ["cdmpp", *ast.literal_eval(f"[{front[1]}]"), *words[2:]]
    try:
        build_parser().parse_args(words[1:])
    except SystemExit as end:
        return end.code == 0
    return True


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_are_python(page: Path) -> None:
    for language, text in blocks(page):
        if language == "python":
            ast.parse(text)
