"""Numbers and tables as text."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdmpp.text import (
    agreed,
    aligned,
    counted,
    csv_text,
    interval_text,
    markdown_table,
    percent_text,
    seconds_text,
    short_task,
    task_words,
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


WIDE = [["name", *(f"column {n}" for n in range(8))],
        *([name, *(f"{n}.123 ms" for n in range(8))] for name in ("first", "second"))]  # fmt: skip


def test_what_does_not_fit_goes_below_beside_the_key():
    assert aligned(WIDE, "lr", width=40) == (
        "name    column 0  column 1  column 2\n"
        "first   0.123 ms  1.123 ms  2.123 ms\n"
        "second  0.123 ms  1.123 ms  2.123 ms\n\n"
        "name    column 3  column 4  column 5\n"
        "first   3.123 ms  4.123 ms  5.123 ms\n"
        "second  3.123 ms  4.123 ms  5.123 ms\n\n"
        "name    column 6  column 7\n"
        "first   6.123 ms  7.123 ms\n"
        "second  6.123 ms  7.123 ms"
    )


def test_rows_turn_into_lines_where_columns_do_not_help():
    rows = [["calls", "task", "shapes"], ["3", "conv2d", "1x64x56x56 " * 9], ["1", "x" * 50, ""]]
    assert aligned(rows, key=1, width=40) == (
        "conv2d\n"
        "  calls 3, shapes 1x64x56x56 1x64x56x56\n"
        "    1x64x56x56 1x64x56x56 1x64x56x56\n"
        "    1x64x56x56 1x64x56x56 1x64x56x56\n"
        "    1x64x56x56\n"
        f"{'x' * 40}\n{'x' * 10}\n"
        "  calls 1"
    )


@given(
    st.integers(1, 20).flatmap(
        lambda columns: st.lists(
            st.lists(st.text("ab µ-", max_size=30), min_size=columns, max_size=columns),
            min_size=2, max_size=5,
        )
    ),
    st.integers(20, 120),
)  # fmt: skip
def test_no_line_is_wider_than_asked(rows, width):
    assert max(map(len, aligned(rows, "lr", width=width).splitlines()), default=0) <= width


def test_the_terminal_decides(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert len(aligned(WIDE).splitlines()) == 3
    monkeypatch.setenv("COLUMNS", "80")
    assert max(map(len, aligned(WIDE).splitlines())) <= 80


def test_colour_does_not_move_columns():
    plain = aligned(WIDE, "lr", width=40)
    painted = aligned(WIDE, "lr", width=40, paint=lambda row, column, text: f"<{text}>")
    assert painted.replace("<", "").replace(">", "") == plain


def test_markdown_keeps_bars_inside_their_cell():
    table = markdown_table(["a", "b"], [["x|y", "2"]], "lr")
    assert table == "| a | b |\n|:--|--:|\n| x\\|y | 2 |"
    assert markdown_table(["a"], []).splitlines()[1] == "| --- |"


def test_csv_leaves_none_empty():
    assert csv_text(["a", "b"], [[1 / 3, None]]) == f"a,b\n{1 / 3},\n"


def test_a_task_is_cut():
    assert short_task("k" * 60 + "|v", "conv2d") == "conv2d " + "k" * 45 + "..."


@pytest.mark.parametrize(
    ("task", "operator", "words"),
    [
        ('["7006235cfc29b73b", 1, 14, 1024]|llvm', "conv2d", "conv2d of 1 14 1024"),
        ('["7006235cfc29b73b", 1, 14, 1024]|llvm', "", "task of 1 14 1024"),
        ('["4341452697722615775"]|llvm', "batch_matmul", "batch_matmul (43414526)"),
        ("dense-9|cuda", "", "dense-9"),
        ("[]", "dense", "dense ([])"),
    ],
)
def test_a_task_is_told_by_its_operator_and_sizes(task, operator, words):
    assert task_words(task, operator) == words


def test_a_count_of_one_is_singular() -> None:
    assert [counted(n, "task") for n in (0, 1, 2000)] == ["0 tasks", "1 task", "2,000 tasks"]
    assert [counted(n, "task", "were") for n in (1, 2)] == ["1 task was", "2 tasks were"]
    assert [agreed(1, verb) for verb in ("are", "have", "differ")] == ["is", "has", "differs"]
