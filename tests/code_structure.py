"""What lies where in the product: docs/code-structure.md, made of docstrings, and its lines.

python -m tests.code_structure write
python -m tests.code_structure lines
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter

from tests import house
from tests.paths import ROOT

PAGE = ROOT / "docs" / "code-structure.md"
_NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENDMARKER,
}  # fmt: skip
_SOURCES = (".py", ".hpp", ".cc", ".h")
_HEAD = """# Code structure

Made by `make structure` from the docstrings of the folders and modules: change those.

A command `cdmpp X` lives in `cdmpp/cli/X`: it parses, calls one function of a package below it and
prints. `scripts/X.py` is its one-line front. `cdmpp/api` is the public Python
(`docs/reference/python.md`).
`cdmpp` never imports TVM; `tvm_helper` is the only code that does, and only the two faces of the
product, `cdmpp/cli` and `cdmpp/api`, import it. Where a package has a `src` folder, that is C++:
every `.hpp` names the Python module it mirrors, and tests demand equal results.

Imports go down these lines, or sideways in one package (`tests/test_house.py` holds that):

"""


def page() -> str:
    """Returns the page."""
    folders = {name: path for name, path in house.modules().items() if path.name == "__init__.py"}
    layers = "\n".join(
        f"{number}. {', '.join(f'`{word}`' for word in line.split())}"
        for number, line in enumerate(house.LAYERS, 1)
    )
    parts = [_HEAD + layers]
    for folder, path in folders.items():
        text = house.docstring(path)
        rows = [
            f"- `{name.rpartition('.')[2]}`: {_sentence(house.docstring(module))}"
            for name, module in house.modules().items()
            if name.rpartition(".")[0] == folder and name not in folders
        ]
        depth = 2 if folder in house.PACKAGES else 3
        parts.append(
            "\n\n".join([f"{'#' * depth} {folder}", text, *(["\n".join(rows)] * bool(rows))])
        )
    return "\n\n".join(parts) + "\n"


def _sentence(text: str) -> str:
    """Returns the first sentence of a docstring on one line."""
    line = " ".join(text.split())
    end = line.find(". ")
    return line if end < 0 else line[: end + 1]


def lines() -> dict[str, int]:
    """Returns the lines of each package, Python and C++ together, blank lines included."""
    counts: Counter[str] = Counter()
    for package in (*house.PACKAGES, "lab"):
        for path in sorted((ROOT / package).rglob("*")):
            if path.suffix in _SOURCES:
                parts = path.relative_to(ROOT).parts
                name = "/".join(parts[:2]) if len(parts) > 2 else package
                counts[name] += path.read_bytes().count(b"\n")
    return dict(sorted(counts.items()))


def code_lines(source: str) -> int:
    """Returns the lines of Python that are neither blank, comment nor docstring."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body and ast.get_docstring(node, clean=False) else None
            if first is not None:
                docstrings.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    return len(code - docstrings)


def main(command: str) -> None:
    """Writes the page, or prints the lines."""
    if command == "write":
        PAGE.write_text(page(), "utf-8")
        return
    counts = lines()
    for name, count in counts.items():
        print(f"{count:7,}  {name}")
    lab = sum(count for name, count in counts.items() if name.split("/")[0] == "lab")
    print(f"{sum(counts.values()) - lab:7,}  the product\n{lab:7,}  the laboratory")
    code = sum(code_lines(path.read_text("utf-8")) for path in house.modules().values())
    print(f"{code:7,}  the product's Python without blanks, comments and docstrings")


if __name__ == "__main__":
    main(*sys.argv[1:])
