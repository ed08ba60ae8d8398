"""What README.md and docs/accuracy.md say: every number looked up in the page that it is from.

An entry of claims.yaml has `readme`, a piece of either with {} for each number, `page`, and
`numbers`, one for each {}. A number is at `cell` (`heading // beginning of the row // column`, in a
table of the page), at `text` (a piece of the page with {} for the number) or `at` a path in its
JSON, which pages.json keeps (a list of one number a seed counts as its mean). `scale` multiplies it
(1), `digits` are kept (0). The interval is what stands beside the number in its cell, that over
seeds, or `interval`: the paths of both ends in the JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_DOWN, ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

import yaml

from cdmpp.errors import DataError
from cdmpp.files.atomic import write_text
from cdmpp.metrics import mean_and_interval
from cdmpp.text import markdown_table
from lab import registry
from lab.pages import kept
from lab.paths import RESULTS, ROOT

SAID_IN = (ROOT / "README.md", ROOT / "docs" / "accuracy.md")
PAGE = RESULTS / "claims.md"
_NUMBER = r"-?\d[\d,]*(?:\.\d+)?"
_INTERVAL = re.compile(rf"± ({_NUMBER})|\[({_NUMBER})[ %]*, ({_NUMBER})[ %]*\]")
_AROUND = 60
_SHARE = re.compile(r"(?<![\w.])[\d,.]*\d %")
_HEAD = """# Claims

Every number of README.md and docs/accuracy.md that is a result, with the page and the place that
it is from; made of `claims.yaml` by `make claims`, and `lab/tests/test_claims.py` fails when they
say another number than the page. The interval is the page's, 95 %: over seeds where it is `±`.
`make evidence` says which pages are of today's code.

"""


@dataclass(frozen=True)
class Found:
    """A number in a page.

    Attributes:
        shown: as the README may show it: two ways where the page has rounded it to a tie.
        interval: its interval, in the same unit; empty where the page has none.
        place: where it was found.
    """

    shown: tuple[str, ...]
    interval: str
    place: str


@dataclass(frozen=True)
class Claim:
    """A piece of the README.

    Attributes:
        text: it, with the numbers of the page in place.
        page: where they are from.
        numbers: they.
        is_made: whether the README says so.
    """

    text: str
    page: str
    numbers: tuple[Found, ...]
    is_made: bool


def said() -> str:
    """Returns the text of the pages that claim."""
    return "\n\n".join(path.read_text("utf-8") for path in SAID_IN)


def claims(readme: str, results: Path = RESULTS) -> list[Claim]:
    """Returns what a README is to say.

    Args:
        readme: its text.
        results: folder of claims.yaml and the pages.

    Raises:
        DataError: a number is not in the page at the place that is named.
    """
    found = []
    for entry in yaml.safe_load((results / "claims.yaml").read_text("utf-8")):
        numbers = tuple(look_up(results / entry["page"], one) for one in entry["numbers"])
        first, *rest = plain(entry["readme"]).split("{}")
        if len(rest) != len(numbers):
            raise DataError(f"{first!r}: {len(numbers)} numbers, expected one for each {{}}")
        pieces = list(zip(numbers, rest, strict=True))
        text = first + "".join(one.shown[0] + words for one, words in pieces)
        pattern = re.escape(first) + "".join(
            f"(?:{'|'.join(map(re.escape, one.shown))}){re.escape(words)}" for one, words in pieces
        )
        match = re.search(pattern, plain(readme))
        found.append(Claim(match[0] if match else text, entry["page"], numbers, bool(match)))
    return found


def look_up(page: Path, number: dict[str, Any]) -> Found:
    """Returns a number of a page.

    Args:
        page: without ending.
        number: what claims.yaml says of it.

    Raises:
        DataError: it is not there.
    """
    scale, digits = Decimal(number.get("scale", 1)), Decimal(1).scaleb(-number.get("digits", 0))

    def text(value: str | float, rounding: str = ROUND_HALF_UP) -> str:
        exact = Decimal(value.replace(",", "") if isinstance(value, str) else value)
        return f"{(scale * exact).quantize(digits, rounding):f}"

    if "cell" in number or "text" in number:
        content = page.with_suffix(".md").read_text("utf-8")
        place = number.get("cell") or number["text"]
        cell = _cell(content, place) if "cell" in number else _match(content, place)
        if cell is None or not (found := re.search(_NUMBER, cell)):
            raise DataError(f"{page.name}.md has no number at {place!r}")
        beside = _INTERVAL.search(cell, found.end())
        ends = [] if beside is None else [text(one) for one in beside.groups() if one]
        words = f"± {ends[0]}" if len(ends) == 1 else f"[{', '.join(ends)}]" if ends else ""
        both = (text(found[0]), text(found[0], ROUND_HALF_DOWN))
        return Found(tuple(dict.fromkeys(both)), words, place)
    numbers = kept(page.parent).get(page.name, {}).get("numbers", {})

    def at(path: str) -> Any:
        if path not in numbers:
            raise DataError(f"{page.name}.json has no number at {path}, as pages.json says")
        return numbers[path]

    value, width = at(number["at"]), None
    if isinstance(value, list):
        value, width = mean_and_interval(value)
    interval = "" if width is None else f"± {text(width)}"
    if "interval" in number:
        ends = [text(at(path)) for path in number["interval"]]
        interval = f"[{', '.join(ends)}]"
    return Found((text(value),), interval, number["at"])


def _cell(content: str, place: str) -> str | None:
    """Returns the cell of a table: `heading > heading below // beginning of row // column`."""
    headings, row, column = place.split(" // ")
    lines = iter(plain_lines(content))
    for heading in headings.split(" > "):
        if not any(line.lstrip("# ") == heading for line in lines if line.startswith("#")):
            return None
    titles: list[str] = []
    for line in lines:
        if line.startswith("#"):
            return None
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            titles = []
        elif not titles:
            titles = cells
        elif column in titles and " | ".join(cells).startswith(f"{row} |"):
            return cells[titles.index(column)]
    return None


def _match(content: str, place: str) -> str | None:
    pattern = re.escape(plain(place)).replace(r"\{\}", f"({_NUMBER})")
    match = re.search(pattern, plain(content))
    return match and match[1]


def plain_lines(text: str) -> list[str]:
    """Returns the lines of a page without marks of bold type."""
    return [line.strip() for line in text.replace("**", "").splitlines()]


def plain(text: str) -> str:
    """Returns a text on one line, without marks of bold type."""
    return " ".join(" ".join(plain_lines(text)).split())


def unclaimed(found: Iterable[Claim], readme: str) -> list[str]:
    """Returns the pieces of a README that have percentages which no claim covers."""
    text = plain(re.sub(r"```.*?```", "", readme, flags=re.DOTALL))
    for claim in found:
        text = text.replace(claim.text, "...")
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)  # no links in excerpts
    pieces: list[list[int]] = []
    for match in _SHARE.finditer(text):
        if pieces and match.start() - pieces[-1][1] < 2 * _AROUND:
            pieces[-1][1] = match.end()
        else:
            pieces.append([match.start(), match.end()])
    return [text[max(0, first - _AROUND) : last + _AROUND] for first, last in pieces]


def page(found: Sequence[Claim], readme: str) -> str:
    """Returns claims.md."""
    commands = {name: one.command() for one in registry.EXPERIMENTS for name in one.written}
    rows = [
        [claim.text if number == 0 else "", f"[{claim.page}]({claim.page}.md)", one.shown[0],
         one.interval or "none", f"`{one.place}`",
         f"`{commands[claim.page]}`"]
        for claim in found
        for number, one in enumerate(claim.numbers)
    ]  # fmt: skip
    rows = [[cell.replace("|", "/") for cell in row] for row in rows]
    heads = ["said", "page", "number", "interval", "where", "command"]
    rest = unclaimed(found, readme)
    lines = "\n".join(f"- {one.replace('|', '/')}" for one in rest)
    text = _HEAD + markdown_table(heads, rows) + "\n"
    return text + (f"\n## Percentages that no line above covers\n\n{lines}\n" if rest else "")


def write() -> int:
    """Writes claims.md; returns 1 where README.md or docs/accuracy.md say another number."""
    readme = said()
    found = claims(readme)
    write_text(PAGE, page(found, readme))
    wrong = [claim.text for claim in found if not claim.is_made]
    print("\n".join(f"not said: {one}" for one in wrong), end="\n" if wrong else "")
    return int(bool(wrong))
