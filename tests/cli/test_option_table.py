"""Options from a table."""

from __future__ import annotations

import argparse

import pytest

from cdmpp.cli.shared.option_table import add_table

TABLE = """
    --out DIR  where it goes
    what:
    --task TASK+ = []    tasks,
        several
    --size NAME=N,...    sizes
    how:
    --seed N...: int     seeds
    --force              although
"""


def test_titled_lines_group_the_options_below_them() -> None:
    parser = argparse.ArgumentParser(prog="it")
    last = add_table(parser, TABLE)
    assert getattr(last, "title", None) == "how"
    what, _, how = parser.format_help().partition("what:")[2].partition("how:")
    assert "--out" not in what + how
    assert "tasks, several" in what
    assert "--size NAME=N,..." in what
    assert "--force" in how


def test_values_are_read_as_the_table_says() -> None:
    parser = argparse.ArgumentParser(prog="it")
    add_table(parser, TABLE)
    words = "--task a b --task c --size x=1,y=2 --seed 1 --seed 2 --force"
    found = parser.parse_args(words.split(" "))
    assert found.task == ["a", "b", "c"]
    assert found.size == "x=1,y=2"
    assert (found.seed, found.force, found.out) == ([1, 2], True, None)


def test_a_line_of_another_form_is_refused() -> None:
    with pytest.raises(ValueError, match="no option: '--out'"):
        add_table(argparse.ArgumentParser(), "--out")
