"""How a project meets a newcomer, counted: words before the first command, documented names, links.

python -m lab.experiments.front_door README PACKAGE [PACKAGE ...]

README is a Markdown file or the METADATA of an installed package, PACKAGE a folder with Python.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

_FENCE = re.compile(r"^```[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"^```[^\n]*\n(.*?)^```|`([^`\n]+)`", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(
    r"^\s*(?:\$ )?(?:pip3? |conda |make |git clone |python3? |cdmpp )\S", re.MULTILINE
)
_NOT_PROSE = re.compile(r"<[^>]+>|!?\[!?\[[^]]*\]\([^)]*\)\]\([^)]*\)|\]\([^)]*\)|[#*|`\[\]>:-]+")
_LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")


def main(readme: str, *packages: str) -> None:
    """Prints the counts as JSON."""
    page = Path(readme)
    text = page.read_text("utf-8")
    if page.name == "METADATA":
        text = text.partition("\n\n")[2]
    names = [has_text for package in packages for has_text in documented(Path(package))]
    links = _LINK.findall(text)
    counts = {
        "words_before_first_command": words_before_command(text),
        "words": len(_NOT_PROSE.sub(" ", _FENCE.sub(" ", text)).split()),
        "public_names": len(names),
        "documented": round(sum(names) / len(names), 3) if names else None,
        "relative_links": len(links),
        "broken_links": [link for link in links if not (page.parent / link).exists()],
    }
    print(json.dumps(counts))


def words_before_command(text: str) -> int | None:
    """Returns the words of prose before the first code that can be typed; None without one."""
    for code in _CODE.finditer(text):
        if _COMMAND.search(code[1] or code[2]):
            return len(_NOT_PROSE.sub(" ", text[: code.start()]).split())
    return None


def documented(package: Path) -> Iterator[bool]:
    """Yields for every public module, class, function and method whether it has a docstring."""
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        if not any(
            (part.startswith("_") and part != "__init__") or part == "tests" for part in parts
        ):
            yield from _of(ast.parse(path.read_text("utf-8")))


def _of(node: ast.Module | ast.ClassDef) -> Iterator[bool]:
    yield ast.get_docstring(node) is not None
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if child.name.startswith("_"):
                continue
            if isinstance(child, ast.ClassDef):
                yield from _of(child)
            else:
                yield ast.get_docstring(child) is not None


if __name__ == "__main__":
    main(*sys.argv[1:])
