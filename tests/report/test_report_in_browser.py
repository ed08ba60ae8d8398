"""Reports in Chromium: accessible and within the screen in light and dark, marks by pointer and by
keyboard, nothing loaded.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser import check_looks, chromium, resize, set_dark  # isort: skip
from selenium.webdriver import ActionChains, Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from cdmpp.files.atomic import write_text
from cdmpp.report.page import ListingLine, Page, Section, page_html
from cdmpp.report.tables import plain_table
from tests.report.run_folders import write_run

pytestmark = pytest.mark.slow
_LINE = "for (int i = 0; i < 1024; ++i) " * 6


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("run")
    write_run(folder, "roofline", epochs=4)
    return (folder / "report.html").as_uri()


def tip(browser: Chrome) -> str:
    return str(browser.find_element(By.CSS_SELECTOR, ".tip").text)


def check_quiet(browser: Chrome) -> None:
    assert browser.get_log("browser") == []
    for entry in browser.get_log("performance"):
        event = json.loads(entry["message"])["message"]
        if event["method"] == "Network.requestWillBeSent":
            assert event["params"]["request"]["url"].startswith(("file:", "data:", "about:"))


def test_a_report_is_accessible_in_light_and_dark(browser: Chrome, report: str) -> None:
    browser.get(report)
    check_looks(browser, (400, 1400))
    check_quiet(browser)


def test_other_parts_of_pages_are_too(browser: Chrome, tmp_path: Path) -> None:
    table = plain_table(["name", *("time",) * 20], [["x" * 80, *("1 ms",) * 20]], title="Times")
    heats = [ListingLine(f"{10 * heat} %", _LINE, heat) for heat in range(11)]
    sections = [
        Section("A", "Note.", verdict=["It is."], code=_LINE, painted=heats, points=["one"],
                tables=[table, table]),
        Section("B" * 80, "1 ms", painted=heats, is_folded=True),
    ]  # fmt: skip
    page = Page("T" * 60, "Lead.", sections, ["Warning."], [("1 ms", "time")], ["Note."], _LINE)
    write_text(tmp_path / "page.html", page_html(page))
    browser.get((tmp_path / "page.html").as_uri())
    check_looks(browser, (400, 1400))


@pytest.mark.parametrize("is_dark", [False, True])
def test_plots_take_the_colours_of_the_theme(browser: Chrome, report: str, is_dark: bool) -> None:
    browser.get(report)
    set_dark(browser, is_dark=is_dark)

    def brightness(selector: str, name: str) -> float:
        script = f"return getComputedStyle(document.querySelector('{selector}')).{name}"
        colour = browser.execute_script(script).partition("(")[2].rstrip(")")
        return sum(map(float, colour.split(",")[:3])) / 3

    assert (brightness("body", "backgroundColor") < 100) == is_dark
    assert (brightness(".plots svg path", "fill") < 100) == is_dark  # the ground of a plot
    assert (brightness(".plots svg text", "fill") > 150) == is_dark


def test_marks_have_names_under_the_pointer_and_by_arrow_keys(browser: Chrome, report: str) -> None:
    browser.get(report)
    resize(browser, 1400)
    dots, shares, *_ = browser.find_elements(By.CSS_SELECTOR, ".plots svg")
    corner: dict[str, Any] = browser.execute_script(
        """const path = arguments[0].querySelector("[data-name]");
        const [, x, y] = path.getAttribute('d').match(/M(-?\\d+) (-?\\d+)/);
        path.scrollIntoView({block: 'center'});
        const box = arguments[0].getBoundingClientRect(), now = path.getScreenCTM();
        return {x: now.a * x + now.e - box.x - box.width / 2,
          y: now.d * y + now.f - box.y - box.height / 2}""",
        dots,
    )
    move = ActionChains(browser)
    move.move_to_element_with_offset(dots, round(corner["x"]), round(corner["y"])).perform()
    lines = tip(browser).splitlines()
    assert lines[-4] in ("fast", "slow")
    assert lines[-3].startswith("measured ")
    assert lines[-1].startswith("predicted / measured ")
    dots.send_keys(Keys.ARROW_RIGHT)
    second = tip(browser)
    dots.send_keys(Keys.ARROW_LEFT)
    first = tip(browser)
    off = [abs(math.log(float(text.rpartition(" ")[2]))) for text in (first, second)]
    assert off[0] >= off[1] > 0  # largest error first
    dots.send_keys(Keys.ESCAPE)
    assert not browser.find_element(By.CSS_SELECTOR, ".tip").is_displayed()
    shares.send_keys(Keys.ARROW_RIGHT)
    assert "% of programs\nwithin" in tip(browser)
    check_quiet(browser)
