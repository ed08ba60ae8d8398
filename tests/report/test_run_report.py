"""report.html of a training run: what comes first, what is folded, and what its marks say."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import numpy as np
import pytest

from cdmpp.report.page import Page, Section, page_html
from cdmpp.report.plots import COLOURS, Mark, new_figure, svg_text
from cdmpp.text import percent_text
from cdmpp.training.run import RunResult
from tests.report.run_folders import write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    return write_run(tmp_path_factory.mktemp("run"), "roofline", epochs=4)


@pytest.fixture(scope="module")
def text(run: RunResult) -> str:
    return (run.run_dir / "report.html").read_text("utf-8")


def test_plots_and_the_table_that_says_how_good_it_is_come_first(text: str) -> None:
    places = [
        text.index(part)
        for part in (
            'class="tiles"', ">How good it is<", "Half of the predictions", "<svg", "<table",
            ">Device by device<", ">Training<", ">How to read it<", ">How it was made<",
        )
    ]  # fmt: skip
    assert places == sorted(places)


def test_tables_of_one_shape_are_folded_below_their_key_numbers(run: RunResult, text: str) -> None:
    devices = run.metrics["test"]["roofline"]["by_device"]
    assert len(devices) > 1
    assert "<details open" not in text
    assert re.findall("<summary>(.*)</summary>", text) == [
        f"{name}: median APE {percent_text(one['median_ape'])}, MAPE {percent_text(one['mape'])}"
        for name, one in devices.items()
    ]


def test_every_test_program_is_a_dot_that_says_what_it_is(run: RunResult, text: str) -> None:
    test, predicted_s = run.test, run.predicted_s["roofline"]
    words = json.loads(html.unescape(re.findall('data-words="([^"]*)"', text)[0]))
    paths = re.findall('data-name="([^"]*)" data-which="([^"]*)" d="([^"]*)"', text)
    assert [name for name, _, _ in paths] == [spec.name for spec in test.devices]
    tasks = sorted(set(test.task_id.tolist()))
    assert len(words) == len(tasks)
    found, wanted = [], []
    for index, (_, which, dots) in enumerate(paths):
        places = re.findall(r"M(-?\d+) (-?\d+)h0", dots)
        found += [
            (index, tasks[int(one)], *place)
            for one, place in zip(which.split(), places, strict=True)
        ]
    at = np.rint(1e4 * np.log10(np.stack([test.latency_s, predicted_s]))).astype(int).T
    for device, task, (x, y) in zip(test.device, test.task_id, at.tolist(), strict=True):
        wanted.append((int(device), int(task), str(x), str(y)))
    assert sorted(found) == sorted(wanted)


def test_the_page_is_one_small_file_with_the_colours_of_the_theme(text: str) -> None:
    assert len(text) < 150_000
    assert not re.findall(r"https?://(?!www\.w3\.org/)|\bsrc=|@import|url\((?!#)", text)
    plots = "".join(re.findall("<svg.*?</svg>", text, re.DOTALL))
    assert plots.count("<svg") == 4
    assert not [colour for colour in (*COLOURS, "#000000", "#ffffff") if colour in plots]
    assert "<image" not in plots
    ids = re.findall(' id="([^"]*)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:url\(|href=")#([^")]*)', plots)) <= set(ids)


def test_marks_are_where_their_points_are(tmp_path: Path) -> None:
    figure, axes = new_figure()
    axes.plot([0, 10], [0, 10], "o", color=COLOURS[0])
    axes.barh([5], [4], height=2, color=COLOURS[0])
    svg = svg_text(figure, [Mark("<a>", 10, 10), Mark("bar", 4, 4, -4, 2)])
    drawn = re.findall(
        r'<use xlink:href="[^"]*" x="([\d.]+)" y="([\d.]+)" style="fill: #2b87b8', svg
    )
    x, y = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)" r="3.5"><title>&lt;a&gt;', svg)[0]
    assert (float(x), float(y)) == pytest.approx(tuple(map(float, drawn[-1])), abs=0.06)
    left, top, width, height = map(
        float, re.findall(r'<rect x="(.+?)" y="(.+?)" width="(.+?)" height="(.+?)">', svg)[0]
    )
    bar = re.findall(r'd="(M [^"]*)" clip-path="[^"]*" style="fill: #2b87b8', svg)[0]
    corners = np.array(re.findall(r"[ML] ([\d.]+) ([\d.]+)", bar), float)
    assert [left, top] == pytest.approx(corners.min(0), abs=0.06)
    assert [left + width, top + height] == pytest.approx(corners.max(0), abs=0.2)
    assert "<title>" in page_html(Page("T", "", [Section("S", plots=[("c", svg)])]))
