"""Committed pages quote full pages between marks."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdmpp.errors import DataError
from cdmpp.text import TIDY_COLUMNS
from lab import pages
from lab.paths import PAGES
from lab.registry import EXPERIMENTS
from lab.stamp import stamp, stamps

_FULL = """# Title

## One

| model | MAPE | rank |
|:--|--:|--:|
| **ours** | 4.5 % ± 0.2 % | 0.7 |
| trees | 44 % [40 %, 50 %] | a \\| b |

## Two

| model | MAPE |
|:--|--:|
| ours | 7 % |

**Verdict**

- MAPE: ahead
- rank: behind
"""


@pytest.fixture
def full(tmp_path: Path) -> Path:
    (tmp_path / "full.md").write_text(_FULL)
    return tmp_path / "full.md"


def test_tidy_rows_are_rounded() -> None:
    row = ["s", "d", "p", "x", "g", "m", 0, "mape", 1 / 3, 7]
    assert pages.tidy_csv([row]) == ",".join(TIDY_COLUMNS) + "\ns,d,p,x,g,m,0,mape,0.3333333,7\n"


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("Title > One // trees", "| model | MAPE | rank |\n| :-- | --: | --: |\n"
         "| trees | 44 % [40 %, 50 %] | a \\| b |"),
        ("One // **ours // rank => order; model", "| order | model |\n| --: | :-- |\n"
         "| 0.7 | **ours** |"),
        ("One => first + Two => second // **ours; ours // MAPE", "|  | MAPE |\n| :-- | --: |\n"
         "| first | 4.5 % ± 0.2 % |\n| second | 7 % |"),
        ("Verdict => all // text: - MAPE", "- all: MAPE: ahead"),
    ],
)  # fmt: skip
def test_rows_and_columns_are_quoted(full: Path, place: str, expected: str) -> None:
    assert pages.quoted(full, place) == expected


@pytest.mark.parametrize(
    "place", ["Three", "One // nobody", "Two // // rank", "Verdict // text: - RMSE"]
)
def test_what_a_full_page_lacks_is_an_error(full: Path, place: str) -> None:
    with pytest.raises(DataError, match=r"full\.md: no "):
        pages.quoted(full, place)


def test_marks_are_filled_and_the_prose_stays(full: Path) -> None:
    page = "Before.\n<!-- from NAME: Two -->\nold\n<!-- end -->\nAfter.\n"
    text = pages.filled(page.replace("NAME", "full"), full.parent, {})
    assert "Before." in text
    assert "| ours | 7 % |\n<!-- end -->\nAfter." in text
    assert "old" not in text
    assert "old" in pages.filled(page.replace("NAME", "nowhere"), full.parent, {})
    assert "old" in pages.filled(page.replace("NAME", "full"), full.parent, {}, "another")


def test_a_full_page_keeps_its_stamp(tmp_path: Path) -> None:
    rows = [("s", "d", "x", "v100", "g", "m", 0, "mape", 0.123456789, 5)]
    found = stamp("make it", schemas=["leaf"])
    before = stamps()
    pages.write_page("bounds", "# Few", {"a": 1}, found, rows=rows, folder=tmp_path)
    assert "## Stamp" in (tmp_path / "bounds.md").read_text("utf-8")
    assert "v100,g,m,0,mape,0.1234568,5" in (tmp_path / "bounds.csv").read_text("utf-8")
    assert stamps() == before, "only runs/results is published"


def test_a_result_is_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, folder in (("RESULTS", tmp_path / "runs"), ("PAGES", tmp_path)):
        monkeypatch.setattr(pages, name, folder)
    page = "<!-- from NAME: Title -->\nold\n<!-- end -->\n<!-- stamp of NAME -->\n<!-- end -->\n"
    (tmp_path / "page.md").write_text(page.replace("NAME", "bounds") + page.replace("NAME", "conv"))
    (tmp_path / "stamps.json").write_text("{}")
    full = "# Title\n\n| n |\n|---|\n| 7 |\n"
    pages.write_page("bounds", full, {}, stamp("make it"), folder=tmp_path / "runs")
    own, other = (tmp_path / "page.md").read_text().split("<!-- from conv")
    assert "| 7 |" in own
    assert "lab run bounds" in own
    assert other.startswith(": Title -->\nold\n")
    assert list(stamps(tmp_path)) == ["bounds"]


def test_every_result_is_on_one_page_and_has_a_stamp() -> None:
    written = sorted(name for one in EXPERIMENTS for name in one.written)
    marks = [
        mark[3]
        for path in PAGES.glob("*.md")
        for mark in pages.MARKED.finditer(path.read_text("utf-8"))
        if mark[2] == "stamp of"
    ]
    assert sorted(marks) == written == sorted(stamps())
    assert [one.name for one in EXPERIMENTS if one.written and not one.cpu_time[0].isdigit()] == []


@pytest.mark.parametrize("path", sorted(PAGES.glob("*.md")), ids=lambda path: path.stem)
def test_the_lines_of_stamps_are_current(path: Path, tmp_path: Path) -> None:
    text = path.read_text("utf-8")
    assert text == pages.filled(text, tmp_path, stamps()), "run: make claims"
