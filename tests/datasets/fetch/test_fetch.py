"""Fetching a source: what lies where afterwards, from where it may come, what is refused."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from cdmpp.datasets.autotvm.logs import find_logs, is_autotvm_log, read_autotvm_log
from cdmpp.datasets.fetch.fetch import fetch
from cdmpp.datasets.fetch.registry import RecordSource
from cdmpp.datasets.fetch.resume import Patience
from cdmpp.datasets.fetched import FETCHED_FILE, fetched_in
from cdmpp.datasets.read_report import ReadReport
from cdmpp.errors import DataError
from tests.datasets.fetch.conftest import COMMIT, unpack
from tests.datasets.fetch.server import Served, serving

QUICK = Patience(connect_s=2.0, read_s=0.5, wait_s=0.01)


def records(path: Path) -> int:
    return sum(1 for _ in read_autotvm_log(path, ReadReport()))


def check_whole(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == [
        FETCHED_FILE, "platinum-8124m.json", "t4.json",
    ]  # fmt: skip
    assert (records(folder / "t4.json"), records(folder / "platinum-8124m.json")) == (340, 7)


def test_from_a_server_joined_by_device_and_recorded(
    source: RecordSource, archive: bytes, tmp_path: Path
) -> None:
    name = source.downloads[0].path
    with serving({name: Served(archive)}) as server:
        result = fetch(source, tmp_path, origin=server.url, patience=QUICK)
    assert result.is_new
    assert result.folder == tmp_path / "fetched" / "logs"
    check_whole(result.folder)
    written = json.loads((result.folder / FETCHED_FILE).read_text())
    content = (result.folder / "t4.json").read_bytes()
    assert {
        "path": "t4.json",
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    } in written["files"]
    assert written["downloads"] == [
        {"path": name, "bytes": len(archive), "sha256": hashlib.sha256(archive).hexdigest()}
    ]
    assert (written["kind"], written["commit"]) == ("autotvm", COMMIT)
    assert [path.name for path in find_logs(result.folder)] == ["platinum-8124m.json", "t4.json"]
    assert is_autotvm_log(result.folder)
    assert [place for place, _ in fetched_in(tmp_path)] == [result.folder]
    assert [path.name for path in (tmp_path / "fetched" / ".logs").iterdir()] == [".lock"]


@pytest.mark.parametrize("kind", ["clone", "above the clone", "mirror", "file"])
def test_from_what_was_downloaded_by_hand(
    kind: str, source: RecordSource, files: dict[str, bytes], archive: bytes, tmp_path: Path
) -> None:
    place = tmp_path / "by-hand"
    if "clone" in kind:
        unpack(files, place / "repo" if "above" in kind else place)
    else:
        place = unpack({source.downloads[0].path: archive}, place)
    if kind == "file":
        place = (place / source.downloads[0].path).rename(place / "v1.tgz")
    result = fetch(source, tmp_path / "cache", origin=str(place))
    check_whole(result.folder)


def test_a_second_fetch_asks_nobody(source: RecordSource, archive: bytes, tmp_path: Path) -> None:
    with serving({source.downloads[0].path: Served(archive)}) as server:
        fetch(source, tmp_path, origin=server.url)
    again = fetch(source, tmp_path, origin=server.url)
    assert not again.is_new
    check_whole(again.folder)


def test_without_a_network_it_is_one_sentence(source: RecordSource, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"connection was refused.*--from"):
        fetch(source, tmp_path, patience=QUICK)
    assert not (tmp_path / "fetched" / "logs").exists()
