"""Every table fits a terminal of 80 columns."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from cdmpp.cli.main import main
from cdmpp.cli.shared.tables import print_metric_tables
from cdmpp.metrics import METRIC_NAMES
from cdmpp.report.tables import COLUMNS, metric_table
from tests.cli.test_search import search_folder
from tests.paths import ROOT

WIDTH = 80
LAYERS = ("--layer", "32,64,56,128,3,1,1", "--layer", "128,2048,112,2048,11,4,2")


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))


def widest(capsys: pytest.CaptureFixture[str]) -> int:
    """Returns the characters of the longest line of a table: one with a gap between columns."""
    return max(len(line) for line in capsys.readouterr().out.splitlines() if "  " in line)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_the_table_of_the_demo(
    is_terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Was `tran… │ 1,2…`."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: is_terminal)
    line: dict[str, Any] = dict.fromkeys(METRIC_NAMES, 0.123456)
    line |= {"n": 123_456, "tasks": 1234}
    kinds = ("transformer", "recursive-lstm", "oracle")
    table = metric_table("all devices", {kind: [line] for kind in kinds}, model="transformer")
    print_metric_tables([table])
    captured = capsys.readouterr().out
    plain = re.sub(r"\033\[\d+m", "", captured)
    assert (plain != captured) == is_terminal
    assert max(map(len, plain.splitlines())) <= WIDTH
    assert "…" not in plain
    assert "123,456" in plain
    for column in COLUMNS:
        assert column.title in plain


@pytest.mark.parametrize(
    "words",
    [
        ["device", "list"],
        ["analytic", "conv", "predict", *LAYERS, "--device", "t4"],
        ["networks", "statistics", str(ROOT / "data" / "networks-cpu")],
        ["replay", str(ROOT / "configs" / "replay" / "dlrm-default.yaml"), "--device", "v100"],
    ],
    ids=" ".join,
)
def test_tables_of_commands(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    assert widest(capsys) <= WIDTH


def test_tables_of_a_search(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", "show", str(search_folder(tmp_path))]) == 0
    table = capsys.readouterr().out.split("\n\n")[1]
    assert "matmul:m=8" in table
    assert max(map(len, table.splitlines())) <= WIDTH


def test_tables_have_one_maker() -> None:
    """Tables that squeeze their columns are for what is shown live, not for results."""
    found = [
        path.relative_to(ROOT).as_posix()
        for folder in ("cdmpp", "tvm_helper")
        for path in (ROOT / folder).rglob("*.py")
        if "rich.table" in path.read_text("utf-8")
    ]
    assert found == ["cdmpp/cli/search/command.py"]
