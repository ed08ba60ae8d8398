"""The page in Debian's Chromium: every flow, nothing from elsewhere, no error, accessible.

With CDMPP_PICTURES set it writes the pictures of the documentation.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("selenium", reason="selenium is not installed")
pytest.importorskip("axe_core_python", reason="axe-core-python is not installed")
pytest.importorskip("tvm", reason="apache-tvm is not installed")
pytest.importorskip("onnx", reason="onnx is not installed")
if not (shutil.which("chromium") and shutil.which("chromedriver")):
    pytest.skip("Chromium and its driver are not installed", allow_module_level=True)

from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

from tests.report.run_folders import unpack_results, write_run
from tests.serve.onnx_files import small_network
from tests.serve.serving import running

pytestmark = [pytest.mark.tvm, pytest.mark.slow]

_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--force-prefers-reduced-motion",
)  # fmt: skip
_WAIT_S = 90
_RECORDS = '{"i": [["[\\"<script>alert(1)</script>\\"]", "llvm"], [[], []]], "r": [[0.1], 0, 1, 1]}'


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    runs = tmp_path_factory.mktemp("runs")
    write_run(runs / "roofline-0", "roofline", epochs=12)
    write_run(runs / "roofline-1", "roofline", seed=1, epochs=12)
    command = [sys.executable, "-m", "cdmpp.cli.main", "serve", "--port", "0", "--json"]
    results = unpack_results(tmp_path_factory.mktemp("results"))
    command += ["--results", str(results), "--runs", str(runs)]
    with running(command) as (line, _):
        yield str(json.loads(line)["url"])


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    options = ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for flag in (*_FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = Chrome(options, Service(shutil.which("chromedriver")))
    driver.get("about:blank")
    driver.get_log("performance")  # the browser's own start page
    yield driver
    driver.quit()


def ready(browser: Chrome, url: str, place: str = "") -> None:
    browser.get("about:blank")
    browser.get(f"{url}/{place}")
    WebDriverWait(browser, _WAIT_S).until(
        lambda b: b.find_elements(By.CSS_SELECTOR, "[data-ready]")
    )


def shown(browser: Chrome, selector: str, text: str = "") -> Any:
    """The first such element with words, once it says this; the page may replace it meanwhile."""
    waiting = WebDriverWait(browser, _WAIT_S, ignored_exceptions=[StaleElementReferenceException])
    return waiting.until(
        lambda b: next(
            (
                one
                for one in b.find_elements(By.CSS_SELECTOR, selector)
                if one.text and text in one.get_attribute("textContent")
            ),
            None,
        ),
        f"{selector} never said {text!r}",
    )


def check_accessible(browser: Chrome) -> None:
    browser.execute_script(files("axe_core_python").joinpath("axe.min.js").read_text("utf-8"))
    found = browser.execute_async_script("axe.run().then(arguments[arguments.length - 1])")
    assert [(one["id"], one["nodes"][0]["html"]) for one in found["violations"]] == []


def check_quiet(browser: Chrome, url: str) -> None:
    """No message in the console, and no request to anybody but the server."""
    assert [entry["message"] for entry in browser.get_log("browser")] == []
    for entry in browser.get_log("performance"):
        event = json.loads(entry["message"])["message"]
        if event["method"] == "Network.requestWillBeSent":
            asked = event["params"]["request"]["url"]
            assert asked.startswith((url, "data:", "about:")), asked


def set_dark(browser: Chrome, *, is_dark: bool) -> None:
    value = "dark" if is_dark else "light"
    features = [{"name": "prefers-color-scheme", "value": value}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def check_looks(browser: Chrome) -> None:
    """Accessible in light and dark; nothing sticks out of a narrow screen."""
    for is_dark in (True, False):
        set_dark(browser, is_dark=is_dark)
        check_accessible(browser)
    browser.set_window_size(400, 900)
    wide = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert browser.execute_script(wide) <= 0
    browser.set_window_size(1400, 1100)


def again(browser: Chrome, url: str) -> None:
    """Opens the address that the browser shows as if it were a link from elsewhere."""
    ready(browser, url, browser.current_url.removeprefix(f"{url}/"))


def picture(browser: Chrome, name: str, width: int) -> None:
    folder = os.environ.get("CDMPP_PICTURES")
    if folder:
        browser.set_window_size(width, 1100)
        browser.save_screenshot(str(Path(folder) / f"{name}.png"))


def test_a_program_is_predicted_and_explained_and_a_link_brings_it_back(
    browser: Chrome, url: str
) -> None:
    ready(browser, url)
    browser.set_window_size(1400, 1100)
    check_accessible(browser)
    browser.find_element(By.ID, "example").click()
    browser.find_element(By.ID, "device-filter").send_keys("epyc")
    for label in ("epyc-avx2-2c", "epyc-avx512-1c"):
        browser.find_element(By.CSS_SELECTOR, f"input[value='{label}']").send_keys(Keys.SPACE)
    browser.find_element(By.ID, "predict").send_keys(Keys.ENTER)
    answers = shown(browser, "#answers table")
    assert "dense_relu" in answers.text
    assert len(browser.find_elements(By.CSS_SELECTOR, "#answers svg")) == 2
    WebDriverWait(browser, _WAIT_S).until(lambda b: "program=" in b.current_url)
    picture(browser, "page-predict", 1400)
    browser.find_element(By.CSS_SELECTOR, "#answers button").send_keys(Keys.ENTER)
    shown(browser, "#why h2")
    hot = browser.find_element(By.CSS_SELECTOR, ".painted .heat-10")
    assert "C[vi, vj] + A[vi, vk] * B[vk, vj]" in hot.text
    assert "vectorised" in browser.find_element(By.ID, "why").text
    check_accessible(browser)
    WebDriverWait(browser, _WAIT_S).until(lambda b: "why=" in b.current_url)
    browser.execute_script("document.querySelector('#why').scrollIntoView()")
    picture(browser, "page-why", 1400)
    check_looks(browser)
    text = browser.find_element(By.ID, "why").text
    again(browser, url)
    shown(browser, "#why h2")
    assert browser.find_element(By.ID, "why").text == text
    check_quiet(browser, url)


def test_what_cannot_be_read_is_said_and_names_stay_text(
    browser: Chrome, url: str, tmp_path: Path
) -> None:
    ready(browser, url)
    browser.set_window_size(1400, 1100)
    browser.find_element(By.ID, "predict").click()
    shown(browser, "#status", "Expected a program")
    path = tmp_path / "<img src=x onerror=alert(1)>.json"
    path.write_text(_RECORDS)
    browser.find_element(By.ID, "file").send_keys(str(path))
    shown(browser, "#status", "<img src=x")
    browser.find_element(By.CSS_SELECTOR, "input[value='epyc-avx2-2c']").click()
    browser.find_element(By.ID, "predict").click()
    WebDriverWait(browser, _WAIT_S).until(
        lambda b: (
            "no latency" in b.find_element(By.ID, "answers").text
            or "error" in b.find_element(By.ID, "status").get_attribute("class")
        )
    )
    assert not browser.find_elements(By.CSS_SELECTOR, "main img, main script")
    check_accessible(browser)


def test_a_network_has_a_timeline_and_its_kernels_are_explained(
    browser: Chrome, url: str, tmp_path: Path
) -> None:
    ready(browser, url, "#view=network")
    path = small_network(tmp_path / "small.onnx")
    browser.find_element(By.ID, "net-predict").click()
    shown(browser, "#net-status", "Expected a network")
    browser.find_element(By.ID, "net-file").send_keys(str(path))
    shown(browser, "#net-name", f"small: {path.stat().st_size} bytes")
    label = "epyc-avx2-2c"
    browser.find_element(By.CSS_SELECTOR, f"#net-choice input[value='{label}']").click()
    browser.find_element(By.ID, "net-predict").send_keys(Keys.ENTER)
    shown(browser, "#net-detail table")
    calls = browser.find_elements(By.CSS_SELECTOR, ".timeline rect")
    kernels = browser.find_elements(By.CSS_SELECTOR, ".kernels tbody tr")
    assert f"Kernels: {len(kernels)}, called {len(calls)} times" in browser.page_source
    axis = browser.find_element(By.CSS_SELECTOR, ".timeline .axis").text.split("\n")
    whole = browser.find_element(By.CSS_SELECTOR, "#net-detail p").text.split(" [")[0]
    assert (axis[0], axis[-1]) == ("0", whole)
    assert browser.find_elements(By.CSS_SELECTOR, ".legend li")
    WebDriverWait(browser, _WAIT_S).until(lambda b: "network=" in b.current_url)
    picture(browser, "page-network", 1400)
    max(calls, key=lambda call: call.size["width"]).click()
    shown(browser, "#net-why h2", "matmul")
    assert browser.find_elements(By.CSS_SELECTOR, "#net-why .painted .heat-10")
    WebDriverWait(browser, _WAIT_S).until(lambda b: "kernel=" in b.current_url)
    check_looks(browser)
    text = [browser.find_element(By.ID, part).text for part in ("net-detail", "net-why")]
    again(browser, url)
    shown(browser, "#net-why h2")
    assert [browser.find_element(By.ID, part).text for part in ("net-detail", "net-why")] == text
    check_quiet(browser, url)


def test_a_transformer_is_compared_on_devices(browser: Chrome, url: str) -> None:
    ready(browser, url, "#view=compare")
    browser.find_element(By.CSS_SELECTOR, "#compare button").click()
    assert "h100" in shown(browser, "#compared table").text.lower()
    assert browser.find_elements(By.CSS_SELECTOR, "svg.front circle.dot")
    picture(browser, "page-compare", 1400)
    check_accessible(browser)
    text = browser.find_element(By.ID, "compared").text
    again(browser, url)
    assert shown(browser, "#compared table")
    assert browser.find_element(By.ID, "compared").text == text
    check_quiet(browser, url)


def test_results_are_narrowed_down_and_sorted(browser: Chrome, url: str) -> None:
    ready(browser, url, "#view=results&table=tenset&group=test&device=all")
    shown(browser, "#results-board table")
    Select(browser.find_element(By.ID, "results-device")).select_by_value("xeon-avx2-2c")
    WebDriverWait(browser, _WAIT_S).until(lambda b: "device=xeon-avx2-2c" in b.current_url)
    column = "#results-board th:nth-child(4) button"
    for state in ("ascending", "descending"):
        browser.find_element(By.CSS_SELECTOR, column).send_keys(Keys.ENTER)
        shown(browser, f"#results-board th[aria-sort={state}]")
        cells = browser.find_elements(By.CSS_SELECTOR, "#results-board td:nth-child(4)")
        values = [float(cell.text.split()[0]) for cell in cells]
        assert values == sorted(values, reverse=state == "descending")
    assert "sort=mape" in browser.current_url
    picture(browser, "page-results", 1400)
    check_looks(browser)
    text = browser.find_element(By.ID, "results-board").text
    again(browser, url)
    shown(browser, "#results-board table")
    assert browser.find_element(By.ID, "results-board").text == text
    Select(browser.find_element(By.ID, "results-table")).select_by_value("cross-model")
    shown(browser, "#results-board details", "ahead")
    check_quiet(browser, url)


def test_runs_are_compared_and_lead_to_their_reports(browser: Chrome, url: str) -> None:
    ready(browser, url, "#view=runs")
    for box in browser.find_elements(By.CSS_SELECTOR, "#runs-choice input"):
        box.send_keys(Keys.SPACE)
    browser.find_element(By.CSS_SELECTOR, "#runs button").send_keys(Keys.ENTER)
    shown(browser, "#runs-compared .warning", "do not compare")
    assert len(browser.find_elements(By.CSS_SELECTOR, "svg.curves polyline")) == 4
    browser.execute_script("document.querySelector('#runs-compared h2').scrollIntoView()")
    picture(browser, "page-runs", 1400)
    check_looks(browser)
    text = browser.find_element(By.ID, "runs-compared").text
    for heading in ("Learning curves", "Errors by task", "Worst programs"):
        assert heading in text
    again(browser, url)
    shown(browser, "#runs-compared table")
    assert browser.find_element(By.ID, "runs-compared").text == text
    report = browser.find_element(By.CSS_SELECTOR, "#runs-compared a").get_attribute("href")
    browser.get(str(report))
    shown(browser, "h1", "Run roofline-0")
    assert "system-ui" in browser.find_element(By.TAG_NAME, "body").value_of_css_property("font")
    check_quiet(browser, url)


def test_devices_and_models_can_be_looked_at(browser: Chrome, url: str) -> None:
    ready(browser, url, "#view=devices&filter=epyc")
    browser.get_log("browser")
    rows = browser.find_elements(By.CSS_SELECTOR, "#registry tbody tr")
    assert rows
    assert all("epyc" in row.text.lower() for row in rows)
    check_accessible(browser)
    browser.find_element(By.CSS_SELECTOR, "[data-view=models]").click()
    shown(browser, "#model-list", "ensemble")
    check_accessible(browser)
    set_dark(browser, is_dark=True)
    check_accessible(browser)
    browser.find_element(By.CSS_SELECTOR, "[data-view=predict]").click()
    assert Select(browser.find_element(By.ID, "model")).first_selected_option.text == "pretrained"
    check_accessible(browser)
    check_quiet(browser, url)
