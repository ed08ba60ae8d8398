"""Names that want to be more than text, in everything that shows names."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import logging
import random
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path

from cdmpp.cli.main import PrintableFormatter, main
from cdmpp.profiling.merge import group_rows
from cdmpp.profiling.read import read_profile
from cdmpp.profiling.timeline import write_timeline
from cdmpp.report.page import ListingLine, Page, Section, page_html, page_markdown
from cdmpp.report.tables import plain_table
from cdmpp.text import aligned, csv_text, markdown_table
from tests.fuzz.fuzz_texts import Case
from tests.fuzz.outcome import UNPRINTABLE
from tests.profiling.formats.test_traces import gpu_trace

NAMES = (
    "<script>alert(1)</script>", "</script><script>alert(1)</script>", "javascript:alert(1)",
    "<img src=x onerror=alert(1)>", "\"><svg onload=alert(1)>", "' onmouseover='alert(1)", "{{7}}",
    "{% for x in y %}", "<!--", "]]>", "<?php", "&lt;script&gt;", "</style><style>*{display:none}",
    "\x1b[2J\x1b[H", "\x1b]0;owned\x07", "\x1b]8;;http://x\x1b\\y", "\x9b31m", "\r overwritten",
    "\b\b\b\b", "\x00", "\u202egnp.exe", "\u2066x\u2069", "\x7f", "a\nb", "a\tb", "\ud800",
    "=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", "\t=1+1", "\r=1+1", "=HYPERLINK(\"http://x\")",
    "a|b", "`code`", "[x](javascript:alert(1))", "![x](http://x/y.png)", "# title", "%s%n%d", "{0}",
    "[bold]x[/bold]", "[/]", "\\", "\"", "'", ",", ";", "x" * 5000, "", " ", "é\u0301" * 20,
)  # fmt: skip
_PARTS = (
    "<b>",
    "=1",
    "\x1b[1m",
    "|",
    "\n",
    "&",
    '"',
    "'",
    "`",
    "\\",
    "x",
    "[",
    "]",
    "{",
    "}",
    "\u202e",
)


class _Tags(HTMLParser):
    """The tags of a page with the names of their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, ...]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, *(name for name, _ in attrs)))


def names(rng: random.Random, folder: Path) -> Iterator[Case]:
    """Yields names in tables, pages, CSV, time lines, and messages of the command.

    Each looks as it does for a plain name: no other tags, no control characters, no formulas.
    """
    sinks: tuple[Callable[[str, Path], None], ...] = (
        _in_tables, _in_csv, _in_pages, _in_a_timeline, _in_a_message, _in_the_log,
    )  # fmt: skip
    while True:
        name = rng.choice(NAMES)
        if rng.random() < 0.5:
            name = "".join(rng.choice((*_PARTS, name)) for _ in range(rng.randint(1, 6)))
        sink = rng.choice(sinks)
        case = f"{sink.__name__}: {name}".encode("utf-8", "surrogatepass")
        yield case, lambda s=sink, n=name: s(n, folder)  # type: ignore[misc]


def _check_printable(text: str) -> None:
    found = UNPRINTABLE.search(text)
    assert found is None, f"{found.group()!r} in {text[max(0, found.start() - 50) :][:100]!r}"
    text.encode()


def _in_tables(name: str, folder: Path) -> None:
    text = aligned([["title", name], [name, "1"], ["x", name]], width=10**6)
    _check_printable(text)
    assert len(text.splitlines()) == 3, "a name made a line"
    text = markdown_table(["title", name], [[name, "1"]])
    _check_printable(text)
    assert len(text.splitlines()) == 3, "a name made a row"
    assert not _Tags(text).found, "a name made a tag"


def _in_csv(name: str, folder: Path) -> None:
    text = csv_text(["name", "value"], [[name, 1.0], ["-0.5", -0.5]])
    _check_printable(text)
    rows = list(csv.reader(io.StringIO(text, newline="")))
    assert len(rows) == 3, "a name made a row"
    assert not rows[1][0].startswith(("=", "+", "-", "@", "\t", "\r")), "a formula"
    assert rows[2] == ["-0.5", "-0.5"]


def _in_pages(name: str, folder: Path) -> None:
    def page(text: str) -> Page:
        table = plain_table(["name", text], [[text, text]], title=text, note=text)
        section = Section(
            text, note=text, verdict=[text], points=[text], code=text,
            painted=[ListingLine(text, text, 3)], tables=[table],
        )  # fmt: skip
        return Page(text, text, [section], [text], [(text, text)], [text], text, [(text, text)])

    name = name or "x"  # what is empty is left out
    assert _Tags(page_html(page(name))).found == _Tags(page_html(page("x"))).found, "another tag"
    page_markdown(page(name)).encode("utf-8", "surrogatepass")


def _in_a_timeline(name: str, folder: Path) -> None:
    def tags(text: str) -> list[tuple[str, ...]]:
        value = json.loads(json.dumps(gpu_trace()).replace("stream 7", json.dumps(text)[1:-1]))
        for event in value["traceEvents"]:
            event["name"] = text or "x" if event["ph"] == "X" else event["name"]
        path, out = folder / "trace.json", folder / "timeline.html"
        path.write_text(json.dumps(value))
        profile = read_profile(path)
        group_rows(profile.rows)
        write_timeline(profile, out)
        return _Tags(out.read_text("utf-8")).found

    assert tags(name) == tags("x"), "another tag"


def _in_a_message(name: str, folder: Path) -> None:
    said = io.StringIO()
    file = f"{folder}/{name.replace(chr(0), '').replace('/', '')[:200]}"
    for words in (["device", "show", "--", name], ["dataset", "stats", "--dataset", file]):
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            try:
                code = main(words)
            except SystemExit as end:  # argparse's own refusals
                code = int(str(end.code))
        assert code in (2, 3, 4), f"exit code {code}"
    _check_printable(said.getvalue())


def _in_the_log(name: str, folder: Path) -> None:
    record = logging.LogRecord("cdmpp", logging.WARNING, "", 0, "%s is odd", (name,), None)
    _check_printable(PrintableFormatter("cdmpp: %(message)s").format(record))
