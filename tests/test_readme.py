"""What the README shows is what its commands print."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdmpp.cli.main import main
from tests.paths import ROOT

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.M | re.S)
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
#: What a search measures differs from run to run and machine to machine.
_MEASURES = ("search",)


def _shown() -> Iterator[tuple[str, str]]:
    """Yields (command, output) of every command of cdmpp in a console block."""
    for language, text in _BLOCK.findall((ROOT / "README.md").read_text("utf-8")):
        if language == "console":
            for part in re.split(r"^\$ ", text, flags=re.M)[1:]:
                command, _, output = part.partition("\n")
                if command.startswith("cdmpp "):
                    yield command, output


@pytest.fixture(autouse=True)
def _clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs in a folder in which the README's commands find their files, and write their own."""
    for name in ("examples", "configs", "data", "cdmpp", "tvm_helper"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
@pytest.mark.tvm
@pytest.mark.parametrize(
    ("command", "output"), [pytest.param(*one, id=one[0].split()[1]) for one in _shown()]
)
def test_a_command_prints_what_is_shown(
    command: str, output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tvm", reason="apache-tvm is not installed")
    assert main(shlex.split(command)[1:]) == 0
    printed = capsys.readouterr().out
    if command.split()[1] in _MEASURES:
        assert [line.split()[:1] for line in _words(printed)] == [
            line.split()[:1] for line in _words(output)
        ]
        return
    assert _words(printed) == _words(output)
    for got, shown in zip(_NUMBER.findall(printed), _NUMBER.findall(output), strict=True):
        assert float(got) == pytest.approx(float(shown), rel=0.03), (got, shown)


def _words(text: str) -> list[str]:
    """Returns the lines without their numbers and spaces."""
    lines = (re.sub(r"[\s-]+", " ", _NUMBER.sub("#", line)).strip() for line in text.splitlines())
    return [line for line in lines if line]


@pytest.mark.slow
@pytest.mark.tvm
def test_the_python_of_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tvm", reason="apache-tvm is not installed")
    code = [text for language, text in _BLOCK.findall((ROOT / "README.md").read_text("utf-8"))
            if language == "python"]  # fmt: skip
    assert len(code) == 1
    exec(compile(code[0], "README.md", "exec"), {"__name__": "__main__"})
    latency_s, low_s, high_s = map(float, capsys.readouterr().out.split())
    assert 0 < low_s < latency_s < high_s < 1
