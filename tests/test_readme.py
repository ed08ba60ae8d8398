"""What the README and the tutorials show is what their commands print."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.paths import ROOT
from tests.shown import TUTORIALS, check_output, link_inputs, printed_by, steps

pytestmark = [pytest.mark.slow, pytest.mark.tvm]

pytest.importorskip("tvm", reason="apache-tvm is not installed")

README = ROOT / "README.md"
#: They train or search for minutes.
LONG = ("fine-tuning", "first-search")


@pytest.fixture(autouse=True)
def _clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs in a folder in which the commands find their files, and write their own."""
    link_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.parametrize(
    ("command", "output"),
    [
        pytest.param(command, output, id=command.split()[1])
        for command, output in steps(README)
        if command.startswith("cdmpp ")
    ],
)
def test_a_command_prints_what_is_shown(command: str, output: str) -> None:
    check_output(command, printed_by(command), output)


def test_the_python_of_the_readme_runs() -> None:
    (code,) = (step for step, _ in steps(README) if not step.startswith("cdmpp "))
    latency_s, low_s, high_s = map(float, printed_by(code).split())
    assert 0 < low_s < latency_s < high_s < 1


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.stem, marks=[pytest.mark.exhaustive] * (page.stem in LONG))
        for page in TUTORIALS
    ],
)
def test_a_tutorial_works_from_top_to_bottom(page: Path) -> None:
    found = steps(page)
    assert found
    for command, shown in found:
        printed = printed_by(command)
        if shown.strip():
            check_output(command, printed, shown)
