"""Pages whose prose is in the page: only what is between marks is written again."""

from pathlib import Path

import pytest

from cdmpp.errors import DataError
from cdmpp.text import TIDY_COLUMNS
from lab import pages

_PAGE = """# Title

Of <!-- n -->12<!-- /n --> programs:

<!-- table -->
| old |
<!-- /table -->

Prose.

## Stamp

- commit: 1
"""


def test_tidy_rows_are_rounded() -> None:
    row = ["s", "d", "p", "x", "g", "m", 0, "mape", 1 / 3, 7]
    assert pages.tidy_csv([row]) == ",".join(TIDY_COLUMNS) + "\ns,d,p,x,g,m,0,mape,0.3333333,7\n"


def test_marks_are_filled_and_the_prose_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "RESULTS", tmp_path)
    (tmp_path / "page.md").write_text(_PAGE)
    text = pages.filled("page", n="7", table="| a |\n| \\1 |")
    expected = _PAGE.replace("12", "7").replace("| old |", "| a |\n| \\1 |")
    assert text == expected.partition("\n## Stamp")[0]


def test_another_mark_than_the_experiment_knows_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "RESULTS", tmp_path)
    (tmp_path / "page.md").write_text(_PAGE)
    with pytest.raises(DataError, match="marks"):
        pages.filled("page", n="7")
