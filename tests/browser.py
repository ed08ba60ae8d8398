"""Debian's Chromium without a window, and what every page has to be in it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

import pytest

pytest.importorskip("selenium", reason="selenium is not installed")
pytest.importorskip("axe_core_python", reason="axe-core-python is not installed")
if not (shutil.which("chromium") and shutil.which("chromedriver")):
    pytest.skip("Chromium and its driver are not installed", allow_module_level=True)

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

WIDTHS = (400, 800, 1400)
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--force-prefers-reduced-motion", "--hide-scrollbars",
)  # fmt: skip


@contextmanager
def chromium(profile: Path) -> Iterator[Chrome]:
    """Runs Chromium, with the logs of its console and of its requests.

    Args:
        profile: an empty folder.
    """
    options = ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for flag in (*_FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = Chrome(options, Service(shutil.which("chromedriver")))
    driver.get("about:blank")
    driver.get_log("performance")  # the browser's own start page
    yield driver
    driver.quit()


def check_accessible(browser: Chrome) -> None:
    browser.execute_script(files("axe_core_python").joinpath("axe.min.js").read_text("utf-8"))
    found = browser.execute_async_script("axe.run().then(arguments[arguments.length - 1])")
    assert [(one["id"], one["nodes"][0]["html"]) for one in found["violations"]] == []


def set_dark(browser: Chrome, *, is_dark: bool) -> None:
    value = "dark" if is_dark else "light"
    features = [{"name": "prefers-color-scheme", "value": value}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def resize(browser: Chrome, width: int, height: int = 1000) -> None:
    """Sets the size of the page itself: a window of Chromium has at least 500 pixels."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def check_looks(browser: Chrome, widths: tuple[int, ...] = WIDTHS) -> None:
    """Accessible in light and dark; nothing sticks out of a screen, however narrow."""
    for width in widths:
        resize(browser, width)
        for is_dark in (True, False):
            set_dark(browser, is_dark=is_dark)
            check_accessible(browser)
        page = "document.documentElement"
        wide = f"return {page}.scrollWidth - {page}.clientWidth"
        assert browser.execute_script(wide) <= 0, width
