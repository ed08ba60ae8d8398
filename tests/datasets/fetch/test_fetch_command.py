"""`cdmpp dataset fetch`: options, output, exit codes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from cdmpp.cli.main import main
from cdmpp.datasets.fetch.registry import known_sources
from tests.datasets.fetch.conftest import log_lines, tar_of, unpack
from tests.datasets.fetch.server import Served, serving

LOG = "saved_logs/2020_01_11/autotvm/{}/bert-B1-float32.kernel.log"


def run(*arguments: str) -> int:
    return main(["dataset", "fetch", *arguments])


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone of the T4's source with two logs."""
    logs = {LOG.format(label): log_lines(5) for label in ("t4", "platinum-8124m")}
    return unpack(logs, tmp_path / "clone")


def test_the_list_fits_80_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run("--list", "--cache", str(tmp_path)) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    for source in known_sources():
        assert source.name in text
        assert source.licence.split(";")[0] in text
    assert run("--cache", str(tmp_path)) == 0
    assert capsys.readouterr().out == text + (
        "\nNothing was fetched; name one of them, or a device: cdmpp dataset fetch NAME\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_the_list_as_json(clone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache = tmp_path / "cache"
    assert run("tlcbench", "--from", str(clone), "--cache", str(cache), "-q") == 0
    capsys.readouterr()
    assert run("--list", "--json", "--cache", str(cache)) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["tlcbench"]["folder"] == str(cache / "fetched" / "tlcbench")
    assert rows["tlcbench"]["bytes"] == 2 * len(log_lines(5))
    assert rows["dropletsearch"]["folder"] is None
    assert rows["dropletsearch"]["bytes"] is None


def test_a_device_is_fetched_and_said_how_it_is_used(
    clone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = tmp_path / "cache"
    assert run("platinum-8124m", "--from", str(clone), "--cache", str(cache)) == 0
    captured = capsys.readouterr()
    folder = cache / "fetched" / "tlcbench"
    assert captured.out.splitlines() == [
        f"tlcbench: fetched: 0.0 MB in {folder}",
        "licence: the repository names none; for use as data, not to be passed on",
        "please cite: TLCBench: benchmark scripts for TVM. https://github.com/tlc-pack/TLCBench",
        f"next: cdmpp train --device platinum-8124m --cache {cache}; they are read "
        "with an old TVM, which is installed in a side environment if it is missing",
    ]
    assert captured.err.splitlines() == ["unpacking tlcbench"]
    assert run("t4", "--from", str(clone), "--cache", str(cache)) == 0
    text = capsys.readouterr().out
    assert "already fetched" in text
    assert "more of t4: cdmpp dataset fetch tenset-gpu-full" in text


def test_json_is_what_fetched_json_says(
    clone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = tmp_path / "cache"
    assert run("tlcbench", "--from", str(clone), "--cache", str(cache), "--json") == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    [value] = json.loads(captured.out)
    folder = cache / "fetched" / "tlcbench"
    assert (value.pop("folder"), value.pop("is_new")) == (str(folder), True)
    assert value == json.loads((folder / "fetched.json").read_text())
    assert value["devices"] == ["t4", "platinum-8124m"]


def test_progress_is_lines_where_there_is_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = next(s for s in known_sources() if s.name == "tlcbench")
    noise = bytes(range(256)) * 16_000
    packed = tar_of({f"x/{LOG.format('t4')}": log_lines(9), "x/n": noise}, commit=source.commit)
    packed = gzip.compress(gzip.decompress(packed), 0)
    with serving({source.downloads[0].path: Served(packed)}) as server:
        assert run("tlcbench", "--from", server.url, "--cache", str(tmp_path)) == 0
    captured = capsys.readouterr()
    assert "contains no records of platinum-8124m" in captured.out
    assert captured.err.splitlines()[0] == "fetching tlcbench: 0 of 5, MB"
    assert captured.err.splitlines()[-2].startswith("fetching tlcbench: 5 of 5, MB")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("tlcbensh",), 2, "did you mean 'tlcbench'"),
        (("h100",), 2, "no known source has records of 'h100'"),
        (("--from", "nowhere"), 2, "needs the source to fetch"),
        (("tlcbench", "--from", "nowhere"), 3, "nowhere: no such file or folder"),
        (("tlcbench", "--from", "http://127.0.0.1:9"), 3, "the connection was refused"),
        (("tlcbench", "--from", "."), 3, "has no files of tlcbench"),
    ],
)
def test_what_cannot_be_is_one_sentence(
    words: tuple[str, ...], code: int, said: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert run(*words) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    last = captured.err.splitlines()[-1]
    assert last.startswith("cdmpp: error: ")
    assert said in last
    assert not list(tmp_path.rglob("fetched.json"))
