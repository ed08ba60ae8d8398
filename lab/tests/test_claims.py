"""Every number that the README says of results is that of the page, and the table says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cdmpp.errors import DataError
from lab import claims
from lab.pages import KEPT

_PAGE = """# Few

## One > place

## Second

### Errors

| model | n | MAPE | rank |
|---|--:|--:|--:|
| **ours** | 1,200 | **4.5 % ± 0.2 %** | 0.69 |
| trees | 900 | 44.45 % [40.1 %, 50.2 %] | - |

Mean of all, in
words: 12.3 %.
"""
_NUMBERS = {
    "lines/a": [0.2, 0.4, 0.3], "lines/a/1": 0.4, "lines/b": 0.126, "lines/low": 0.1,
    "lines/high": 0.15,
}  # fmt: skip


@pytest.fixture
def page(tmp_path: Path) -> Path:
    (tmp_path / "few.md").write_text(_PAGE)
    (tmp_path / KEPT).write_text(json.dumps({"few": {"stamp": {}, "numbers": _NUMBERS}}))
    return tmp_path / "few"


def test_the_readme_says_what_the_pages_say() -> None:
    readme = claims.said()
    found = claims.claims(readme)
    assert [claim.text for claim in found if not claim.is_made] == []
    assert claims.PAGE.read_text("utf-8") == claims.page(found, readme), "run: make claims"


@pytest.mark.parametrize(
    ("number", "shown", "interval"),
    [
        ({"cell": "Second > Errors // ours // MAPE", "digits": 1}, ("4.5",), "± 0.2"),
        ({"cell": "Errors // ours // MAPE"}, ("5", "4"), "± 0"),
        ({"cell": "Errors // trees // MAPE", "digits": 1}, ("44.5", "44.4"), "[40.1, 50.2]"),
        ({"cell": "Errors // ours | 1,200 // rank", "digits": 1}, ("0.7",), ""),
        ({"cell": "Errors // ours // n", "scale": 2}, ("2400",), ""),
        ({"text": "Mean of all, in words: {} %", "digits": 1}, ("12.3",), ""),
        ({"at": "lines/a", "scale": 100}, ("30",), "± 25"),
        ({"at": "lines/a/1", "digits": 1}, ("0.4",), ""),
        (
            {"at": "lines/b", "scale": 100, "interval": ["lines/low", "lines/high"]},
            ("13",),
            "[10, 15]",
        ),
    ],
)
def test_a_number_is_looked_up(
    page: Path, number: dict[str, object], shown: tuple[str, ...], interval: str
) -> None:
    found = claims.look_up(page, number)
    assert (found.shown, found.interval) == (shown, interval)


@pytest.mark.parametrize(
    "number",
    [
        {"cell": "Errors // nobody // MAPE"},
        {"cell": "Errors // ours // RMSE"},
        {"cell": "Second // ours // MAPE"},
        {"cell": "Third // ours // MAPE"},
        {"cell": "Errors // trees // rank"},
        {"text": "Mean of some, in words: {} %"},
        {"at": "lines/c"},
        {"at": "lines/a/7"},
    ],
)
def test_a_number_that_is_not_there_is_refused(page: Path, number: dict[str, object]) -> None:
    with pytest.raises(DataError, match=r"few\.(md|json) has no"):
        claims.look_up(page, number)


def test_another_number_in_the_readme_is_found(page: Path) -> None:
    numbers = ["{cell: Errors // ours // MAPE}", "{at: lines/b, scale: 100}"]
    entry = "- {readme: 'errs by {} % | or {} %', page: few, numbers: [NUMBERS]}\n"
    (page.parent / "claims.yaml").write_text(entry.replace("NUMBERS", ", ".join(numbers)))
    said = {"It\nerrs by **4 %** | or 13 %.": True, "errs by 3 % | or 13 %": False}
    for readme, is_made in said.items():
        (claim,) = claims.claims(readme, page.parent)
        assert claim.is_made == is_made
    (page.parent / "claims.yaml").write_text(entry.replace("NUMBERS", numbers[0]))
    with pytest.raises(DataError, match="1 numbers, expected one for each"):
        claims.claims("", page.parent)


def test_percentages_without_a_claim_are_listed(page: Path) -> None:
    (page.parent / "claims.yaml").write_text(
        "- {readme: 'ours {} %', page: few, numbers: [{at: lines/b, scale: 100}]}\n"
    )
    readme = "ours 13 %" + " and so on" * 20 + " then 7 % and 8 %.\n```\n99 %\n```\n"
    (rest,) = claims.unclaimed(claims.claims(readme, page.parent), readme)
    assert rest.endswith("then 7 % and 8 %.")
