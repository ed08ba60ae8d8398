"""A page as Markdown and as HTML."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from cdmpp.errors import DataError
from cdmpp.report.page import Page, Section, check_page_file, page_html, page_markdown
from cdmpp.report.tables import Cell, Row, Table, plain_table

_VOID = {"meta", "br", "img", "input"}
PAGE = Page(
    title="A < B",
    lead="What it is.",
    sections=[
        Section("Runs", "By task.", verdict=["a is first."],
                plots=[("Errors.", '<svg width="9pt"><g id="a">x</g></svg>')],
                tables=[Table("MAPE", "n = 3.", ("", "x"), (
                    Row("all", "group", ()), Row("a|b", "model", (Cell("1 %", "± 2 %", True),)),
                ))]),
        Section("Settings", code="a: 1", points=["one", "two"],
                tables=[plain_table(["name", "n"], [["c", "4"]])]),
    ],
    warnings=["Two runs are missing."],
    tiles=[("7 %", "median error")],
    notes=["MAPE is a mean."],
    command="cdmpp x",
    facts=[("seed", "0")],
)  # fmt: skip


class _Nesting(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.headings, self.text = [], [], ""

    def handle_starttag(self, tag, attrs):
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data
        if self.open and self.open[-1] in ("h2", "summary"):
            self.headings.append(data)


def test_markdown_has_every_part_in_order_and_no_plots():
    text = page_markdown(PAGE)
    wanted = [
        "# A < B", "What it is.", "**Two runs are missing.**", "- median error: 7 %", "## Verdict",
        "**Runs**", "- a is first.", "## Runs", "By task.", "### MAPE", "n = 3.",
        "| a\\|b | **1 % ± 2 %** |", "## Settings", "- one", "```\na: 1\n```", "| c | 4 |",
        "## How to read it", "- MAPE is a mean.", "## How it was made", "cdmpp x", "- seed: 0",
    ]  # fmt: skip
    places = [text.index(part) for part in wanted]
    assert places == sorted(places)
    assert "<svg" not in text


def test_html_is_nested_well_escapes_text_and_holds_its_plots():
    text = page_html(PAGE)
    page = _Nesting()
    page.feed(text)
    assert page.open == []
    assert page.headings == ["Runs", "MAPE", "Settings", "How to read it", "How it was made"]
    assert "A &lt; B" in text
    assert '<svg tabindex="0" role="img" aria-label="Errors." style=' in text
    assert "<th>x (%)</th>" in text
    assert '<td class="best">1 <small>± 2</small></td>' in text
    assert text.count("<script>") == text.count("<script") == 1
    assert not re.search("https?:|src=|@import", text)


def test_units_that_all_cells_share_stand_in_the_header():
    rows = [["a", "1.5 ms", "3 %", "2 s", "why", "1"], ["b", "-", "4.1 %", "1 ms", "so", ""]]
    text = page_html(Page("T", "", [Section("S", tables=[
        plain_table(["", "time", "≤ 5 %", "mixed", "reason", "n"], rows),
    ])]))  # fmt: skip
    for wanted in (
        "<th>time (ms)</th>", "<td>1.5</td>", "<td>3 %</td>", "<td>2 s</td>", "<td>1 ms</td>",
        '<th class="words">reason</th>', '<td class="words">so</td>', "<th>n</th>",
    ):  # fmt: skip
        assert wanted in text, wanted
    assert "<script" not in text


def test_a_page_in_a_folder_that_does_not_exist_fails_first(tmp_path: Path) -> None:
    """`explain --html` predicted for half a minute before."""
    check_page_file(None)
    check_page_file(tmp_path / "page.html")
    with pytest.raises(DataError, match=r"cannot write .*page\.html: no folder .*; create it"):
        check_page_file(tmp_path / "none" / "page.html")


def test_what_is_empty_is_left_out():
    page = Page("T", "lead", [Section("S")])
    assert page_markdown(page) == "# T\n\nlead\n\n## S\n"
    assert "How" not in page_html(page)
    assert "Verdict" not in page_html(page)
