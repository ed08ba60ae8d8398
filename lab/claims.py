"""Checks numbers of README.md and docs/accuracy.md against the pages of results that they link.

Numbers with decimals, a percent sign or an interval are checked. Each, with its interval, must be
on a page of docs/results that its table row or paragraph links, up to rounding.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from decimal import ROUND_HALF_DOWN, ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import TypeAlias

from cdmpp.files.atomic import write_text
from cdmpp.report.plots import COLOURS, log_scale, new_figure, svg_text
from lab.pages import MARKED, fill
from lab.paths import PAGES, ROOT

CLAIMING = (ROOT / "README.md", ROOT / "docs" / "accuracy.md")
PLOT = ROOT / "docs" / "accuracy.svg"
_NUMBER = r"-?\d[\d,]*(?:\.\d+)?"
_FOUND = re.compile(
    rf"(?<![\w.,-])({_NUMBER})(?![\w.]*[A-Za-z_])(?P<share> ?%(?! interval))?"
    rf"(?: ± ({_NUMBER})| \[({_NUMBER})[ %]*, ({_NUMBER})[ %]*\])?"
)
_LINK = re.compile(r"\]\((?:docs/)?results/([\w-]+)\.md")

#: A number, then the ends or the half width of its interval.
Number: TypeAlias = tuple[Decimal, ...]


def missing(text: str, pages: Path = PAGES) -> list[str]:
    """Returns the numbers of a text that are not on the pages linked beside them. Without a link,
    only numbers with an interval are checked.
    """
    wrong = []
    for block in blocks(text):
        linked = _LINK.findall(block)
        there = [
            one for name in linked for one in numbers((pages / f"{name}.md").read_text("utf-8"))
        ]
        wrong += lacking(block, there, 1 if linked else 2)
    return wrong


def unquoted(page: str) -> list[str]:
    """Returns the numbers of a page of results that are not in its quoted tables."""
    there = numbers("\n".join(mark[0] for mark in MARKED.finditer(page)))
    return [one for block in blocks(MARKED.sub("", page)) for one in lacking(block, there)]


def lacking(block: str, there: Sequence[Number], least: int = 1) -> list[str]:
    """Returns the numbers of a block with at least `least` values that are not in `there`."""
    bare = re.sub(r"\]\([^)]*\)", "]", block)
    found = [
        tuple(map(_decimal, values))
        for match in _FOUND.finditer(bare)
        if len(values := _values(match)) > 1 or "." in values[0] or match["share"]
    ]
    return [
        f"{' '.join(map(str, one))} in: {block[:70]}"
        for one in found
        if len(one) >= least and not any(_is_rounded(one, other) for other in there)
    ]


def blocks(text: str) -> Iterator[str]:
    """Yields the table rows and paragraphs of a text, without code."""
    text = re.sub(r"```.*?```|<!--.*?-->|`[^`]*`", "", text, flags=re.DOTALL)
    for part in re.split(r"\n\s*\n|\n(?=\|)", text):
        yield " ".join(part.replace("**", "").split())


def numbers(text: str) -> list[Number]:
    """Returns all numbers of a text with their intervals."""
    found = _FOUND.finditer(text.replace("**", ""))
    return [tuple(_decimal(one) for one in _values(match)) for match in found]


def _values(match: re.Match[str]) -> list[str]:
    return [match[number] for number in (1, 3, 4, 5) if match[number]]


def _decimal(text: str) -> Decimal:
    return Decimal(text.replace(",", ""))


def _is_rounded(number: Number, other: Number) -> bool:
    """Returns whether `number` is `other` rounded to the same digits."""
    return len(number) <= len(other) and all(
        any(exact.quantize(one, rounding) == one for rounding in (ROUND_HALF_UP, ROUND_HALF_DOWN))
        for one, exact in zip(number, other, strict=False)
    )


def all_missing() -> list[str]:
    """Returns the numbers of README.md, docs/accuracy.md and docs/results without a source."""
    wrong = [one for path in CLAIMING for one in missing(path.read_text("utf-8"))]
    pages = (path for path in PAGES.glob("*.md") if path.stem != "README")
    return wrong + [one for path in pages for one in unquoted(path.read_text("utf-8"))]


def plot(accuracy: str) -> str:
    """Returns a plot of the errors in percent at the start of the second column of a table."""
    rows = re.findall(rf"^\| ([^|]+) \| ({_NUMBER} %[^|]*) \|", accuracy, re.MULTILINE)
    figure, axes = new_figure(7.2, 0.7 + 0.26 * len(rows))
    for place, (_, error) in enumerate(reversed(rows)):
        value, *ends = map(float, numbers(error)[0])
        low, high = ends if len(ends) > 1 else (value - sum(ends), value + sum(ends))
        axes.plot([low, high], [place, place], color=COLOURS[0], lw=3, alpha=0.35)
        axes.plot(value, place, "o", ms=5, color=COLOURS[0])
    axes.set_yticks(range(len(rows)), [question for question, _ in reversed(rows)])
    log_scale(axes, "x")
    axes.set_xlabel("error, % (bars: 95 % intervals)")
    return svg_text(figure)


def write() -> int:
    """Fills docs/results and draws docs/accuracy.svg; returns 1 if a number has no source."""
    fill()
    write_text(PLOT, plot(CLAIMING[1].read_text("utf-8")))
    wrong = all_missing()
    print("\n".join(f"not in the results: {one}" for one in wrong), end="\n" if wrong else "")
    return int(bool(wrong))
