"""Every old name still works, and the table of them has no mistakes."""

from __future__ import annotations

import pytest

from cdmpp.cli.commands import filled
from cdmpp.cli.main import build_parser
from cdmpp.renames import JSON_KEYS, OPTIONS, current_option, with_old_keys


@pytest.fixture(scope="module")
def known_options() -> set[str]:
    parsers = filled(build_parser())
    return {
        one for parser in parsers for action in parser._actions for one in action.option_strings
    }


@pytest.mark.parametrize(("old", "new"), OPTIONS.items())
def test_an_old_option_is_read_as_the_new_one(old: str, new: str, known_options: set[str]) -> None:
    assert new in known_options
    assert old not in known_options
    assert current_option(old) == new
    assert current_option(f"{old}=3") == f"{new}=3"


def test_other_words_stay() -> None:
    for word in ("--device", "judge", "--judged", "a=--judge", "--set", "x.most_programs=3"):
        assert current_option(word) == word


def test_a_row_has_both_keys() -> None:
    row = with_old_keys({"evaluated": {"mape": 0.1}, "n": 3})
    assert row == {"evaluated": {"mape": 0.1}, "judged": {"mape": 0.1}, "n": 3}
    assert set(JSON_KEYS) & set(JSON_KEYS.values()) == set()
