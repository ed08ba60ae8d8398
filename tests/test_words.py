"""Plain English: no text of the product has a phrase of the list."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdmpp.cli.commands import filled
from cdmpp.cli.main import build_parser
from tests.paths import ROOT

#: Phrases that are hard to read, and second words for a term (regular expressions).
PHRASES = (
    "a guess",
    "anew",
    "as it comes",
    "asked device",
    "at the least",
    "cannot be told apart",
    "comes? along",
    "dear(?:er|est)",
    "has learned (?:from|no)",
    "is asked",
    "is no (?:campaign|device|file|folder|list|number|such|tensor program|text|whole number)",
    "is none of",
    "is not there",
    "is told",
    "judg(?:e|es|ed|ing)",
    "lies? in",
    "likewise",
    "mend(?: it| that)?",
    "nobody",
    "nothing is known of",
    "nothing says",
    "our (?:data|models?|scores?)",
    "says of",
    "so many",
    "stands? in for",
    "strangers?",
    "strange to",
    "teach(?:es)?",
    "there is no such",
    "told of",
    "was taught",
    "(?:what|which) is kept",
)
_PHRASE = re.compile(rf"\b(?:{'|'.join(PHRASES)})\b")
#: Has the old names of options, which still work.
_OLD_NAMES = "renames.py"


def _texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yields line and text of the strings of a file: a field of an f-string is `{}`."""
    nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    hidden: set[ast.AST] = set()
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            hidden.update(part for part in node.values if isinstance(part, ast.Constant))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            hidden.add(node.value)  # a docstring
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            yield (
                node.lineno,
                "".join(
                    str(part.value) if isinstance(part, ast.Constant) else "{}"
                    for part in node.values
                ),
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in hidden:
            yield node.lineno, node.value


def _found(path: Path) -> list[str]:
    return [
        f"{path.name}:{line}: {match[0]!r} in {textwrap.shorten(text, 90)!r}"
        for line, text in _texts(path)
        if (match := _PHRASE.search(" ".join(text.split())))
    ]


@pytest.mark.parametrize("package", ["cdmpp", "tvm_helper"])
def test_what_users_read_has_no_phrase_of_the_list(package: str) -> None:
    files = [path for path in sorted((ROOT / package).rglob("*.py")) if path.name != _OLD_NAMES]
    assert len(files) > 50
    found = [line for path in files for line in _found(path)]
    assert found == []


def test_help_of_no_command_has_a_phrase_of_the_list() -> None:
    texts = {one.prog: " ".join(one.format_help().split()) for one in filled(build_parser())}
    assert len(texts) > 40
    found = {name: match[0] for name, text in texts.items() if (match := _PHRASE.search(text))}
    assert found == {}


def test_a_phrase_is_found(tmp_path: Path) -> None:
    path = tmp_path / "one.py"
    path.write_text('"""Judged."""\ntext = f"{1} was judged " "here"\nother = "prejudged"\n')
    assert _found(path) == ["one.py:2: 'judged' in '{} was judged here'"]
