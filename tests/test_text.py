"""Numbers and tables as text."""

from __future__ import annotations

import math

import pytest

from cdmpp.text import (
    TIDY_COLUMNS,
    aligned,
    csv_text,
    interval_text,
    markdown_table,
    percent_text,
    seconds_text,
    short_task,
    tidy_csv,
)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (2.5, "2.50 s"), (0.00125, "1.25 ms"), (3.2e-05, "32.0 µs"), (123.0, "123 s"),
        (4e-9, "4.00 ns"), (0.0, "0 s"), (4321.0, "4321 s"), (999.9e-6, "1000 µs"),
        (-2e-3, "-2.00 ms"), (None, "-"),
    ],
)  # fmt: skip
def test_seconds_are_readable(seconds, text):
    assert seconds_text(seconds) == text


def test_seconds_with_more_digits_and_another_word_for_none():
    assert seconds_text(9.6314e-3, digits=4) == "9.631 ms"
    assert seconds_text(None, none="?") == "?"


def test_an_interval_is_in_the_unit_of_its_middle():
    assert interval_text(1.83e-3, 0.9e-3, 2.09e-3) == "1.83 ms [0.900, 2.09]"
    assert interval_text(1.83e-3, math.nan, math.nan) == interval_text(1.83e-3) == "1.83 ms"
    assert interval_text(None) == "?"
    assert interval_text(0.0, 0.0, 0.0) == "0 s"


def test_percent_is_of_a_fraction():
    assert percent_text(0.1234) == "12.3 %"
    assert percent_text(0.1234, 0) == "12 %"
    assert percent_text(None) == "-"


def test_columns_are_aligned_as_asked():
    rows = [["name", "n", "time"], ["a", "100", "1 ms"]]
    assert aligned(rows) == "name  n    time\na     100  1 ms"
    assert aligned(rows, "lr") == "name    n  time\na     100  1 ms"
    assert aligned([["a", "b"], ["100", "c"]], "rl") == "  a  b\n100  c"


def test_markdown_keeps_bars_inside_their_cell():
    table = markdown_table(["a", "b"], [["x|y", "2"]], "lr")
    assert table == "| a | b |\n|:--|--:|\n| x\\|y | 2 |"
    assert markdown_table(["a"], []).splitlines()[1] == "| --- |"


def test_csv_leaves_none_empty_and_tidy_rows_are_rounded():
    assert csv_text(["a", "b"], [[1 / 3, None]]) == f"a,b\n{1 / 3},\n"
    row = ["s", "d", "p", "x", "g", "m", 0, "mape", 1 / 3, 7]
    assert tidy_csv([row]) == ",".join(TIDY_COLUMNS) + "\ns,d,p,x,g,m,0,mape,0.3333333,7\n"


def test_a_task_is_cut():
    assert short_task("k" * 60 + "|v", "conv2d") == "conv2d " + "k" * 45 + "..."
