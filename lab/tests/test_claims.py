"""Numbers of README.md, docs/accuracy.md and docs/results equal those of the tables."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lab import claims

_PAGE = """# Few

| model | MAPE | rank |
|---|--:|--:|
| **ours** | **4.5 % ± 0.2 %** | 0.69 |
| trees | 44.45 % [40.1 %, 50.2 %] | -1,200.5 |
"""


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    (tmp_path / "few.md").write_text(_PAGE)
    return tmp_path


def test_every_number_has_a_source() -> None:
    assert claims.all_missing() == [], "correct the text, or run the experiment and `make claims`"


def test_the_plot_of_accuracy_has_every_row() -> None:
    accuracy = (claims.ROOT / "docs" / "accuracy.md").read_text("utf-8")
    questions = re.findall(r"^\| ([^|]+) \| -?[\d.]+ %", accuracy, re.MULTILINE)
    drawing = claims.PLOT.read_text("utf-8")
    assert len(questions) > 10
    assert [one for one in questions if one not in drawing] == [], "run: make claims"


@pytest.mark.parametrize(
    "text",
    [
        "errs by 4.5 % ± 0.2 ([few](results/few.md))",
        "| ours | 4 % or 5 % | [few](results/few.md) |",
        "44.5 % [40, 50], 44.4 % and -1200.5, [few](docs/results/few.md)",
        "in 90 % intervals, of 3 tasks in `99.9 %`, [few](results/few.md)",
        "no link beside 12.5 %",
    ],
)
def test_rounded_numbers_are_found(pages: Path, text: str) -> None:
    assert claims.missing(text, pages) == []


@pytest.mark.parametrize(
    "text",
    [
        "errs by 4.6 %, [few](results/few.md)",
        "4.5 % ± 0.3, [few](results/few.md)",
        "44 % [41, 50], [few](results/few.md)",
        "0.7 [0.6, 0.8], [few](results/few.md)",
        "| 4.5 % | [few](results/few.md) |\n| 4.5 % ± 0.2 | no link in this row |",
    ],
)
def test_other_numbers_are_not(pages: Path, text: str) -> None:
    (wrong,) = claims.missing(text, pages)
    assert " in: " in wrong


def test_prose_of_a_page_says_what_its_tables_say() -> None:
    page = f"<!-- from few: Few -->\n{_PAGE}<!-- end -->\n\n**Conclusion.** Ours errs by 4.5 %"
    assert claims.unquoted(f"{page}.\n") == []
    assert len(claims.unquoted(f"{page} and 9 %.\n")) == 1


def test_errors_are_drawn() -> None:
    table = "| q | error |\n|---|---|\n| first question | 4.5 % ± 0.2 | x |\n| other | 0.5 | x |"
    drawing = claims.plot(table)
    assert "first question" in drawing
    assert "other" not in drawing
