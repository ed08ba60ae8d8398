"""Downloads over connections that are cut, slow, refused or answered wrongly."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cdmpp.datasets.fetch import resume
from cdmpp.datasets.fetch.resume import Patience, ResumingDownloader
from cdmpp.errors import DataError
from tests.datasets.fetch.server import Served, Server, serving
from tests.paths import ROOT

QUICK = Patience(connect_s=2.0, read_s=0.3, wait_s=0.01)
CONTENT = bytes(range(256)) * 4000


@pytest.fixture
def served() -> Served:
    return Served(CONTENT)


@pytest.fixture
def server(served: Served) -> Iterator[Server]:
    with serving({"file.bin": served, "old": Served(redirect="/file.bin")}) as found:
        yield found


@pytest.fixture
def get(server: Server, tmp_path: Path) -> Callable[..., bytes]:
    def run(path: str = "file.bin", *, most_bytes: int = 10**9) -> bytes:
        part, out = tmp_path / "file.bin.part", tmp_path / "file.bin"
        loader = ResumingDownloader(part, most_bytes=most_bytes, patience=QUICK)
        loader(f"{server.url}/{path}", str(out), None)
        assert [left.name for left in tmp_path.iterdir()] == ["file.bin"]
        return out.read_bytes()

    return run


def ranges(server: Server) -> list[str]:
    return [asked for _, asked in server.asked]


def test_a_cut_connection_is_continued(get, served: Served, server: Server) -> None:
    served.cut_after = [262_144, 196_608]
    assert get() == CONTENT
    assert ranges(server) == ["", "bytes=262144-", "bytes=458752-"]


def test_a_server_that_cannot_continue_sends_it_again(get, served: Served, server: Server) -> None:
    served.cut_after, served.has_ranges = [262_144], False
    assert get() == CONTENT
    assert ranges(server) == ["", "bytes=262144-"]


def test_a_cut_is_seen_where_nobody_says_how_long_it_is(
    get, served: Served, server: Server
) -> None:
    """As an archive that its host packs while it sends it."""
    served.is_chunked, served.etag, served.cut_after = True, 'W/"1"', [262_144, 500_000]
    assert get() == CONTENT
    assert ranges(server) == ["", "", ""]


@pytest.mark.parametrize("etag", ["", 'W/"1"'])
def test_what_may_be_another_file_is_not_continued(
    etag: str, get, served: Served, server: Server
) -> None:
    served.cut_after, served.etag = [262_144], etag
    assert get() == CONTENT
    assert ranges(server) == ["", ""]


def test_a_file_that_changed_meanwhile_is_taken_whole(
    get, served: Served, server: Server, tmp_path: Path
) -> None:
    served.cut_after = [262_144] + [0] * 9
    with pytest.raises(DataError, match="cut"):
        get()
    assert (tmp_path / "file.bin.part").stat().st_size == 262_144
    served.content, served.etag, served.cut_after = CONTENT[::-1], '"2"', []
    assert get() == CONTENT[::-1]


def test_a_kill_between_the_last_byte_and_the_end(get, served: Served, tmp_path: Path) -> None:
    served.cut_after = [262_144] + [0] * 9
    with pytest.raises(DataError):
        get()
    served.cut_after = []
    (tmp_path / "file.bin.part").write_bytes(CONTENT)
    assert get() == CONTENT


def test_a_connection_that_is_cut_again_and_again(get, served: Served, server: Server) -> None:
    served.cut_after = [1000] + [0] * 20
    with pytest.raises(
        DataError, match=r"cut, 5 times in a row. The received part is kept.*--from"
    ):
        get()


def test_a_server_that_is_busy_for_a_moment(get, served: Served, server: Server) -> None:
    served.statuses = [503, 429, 500]
    assert get() == CONTENT
    assert len(server.asked) == 4


def test_a_redirect_is_followed(get, server: Server) -> None:
    assert get("old") == CONTENT


def test_a_file_that_is_not_there_is_asked_for_once(get, server: Server) -> None:
    with pytest.raises(DataError, match="404"):
        get("nothing")
    assert len(server.asked) == 1


def test_a_web_page_is_no_file(get, served: Served) -> None:
    served.content_type = "text/html; charset=utf-8"
    with pytest.raises(DataError, match="web page"):
        get()


def test_a_server_that_falls_silent(get, served: Served, server: Server) -> None:
    served.pause_s, served.piece = 0.6, 262_144
    assert get() == CONTENT  # every call brings one piece
    assert ranges(server)[1] == "bytes=262144-"


def test_more_than_the_registry_allows(get, served: Served, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="more than 1000 bytes"):
        get(most_bytes=1000)
    assert not (tmp_path / "file.bin.part").exists()


def test_a_host_that_cannot_be_called(tmp_path: Path) -> None:
    loader = ResumingDownloader(tmp_path / "part", most_bytes=1, patience=QUICK)
    with pytest.raises(DataError, match="refused, 2 times in a row"):
        loader("http://127.0.0.1:9/file", str(tmp_path / "file"), None)


def test_a_full_disk_keeps_what_has_arrived(
    get, served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(number: int) -> None:
        if os.readlink(f"/proc/self/fd/{number}").endswith(".part"):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(resume.os, "fsync", full)
    with pytest.raises(DataError, match=r"No space left on device.*free some space"):
        get()
    assert not (tmp_path / "file.bin").exists()
    monkeypatch.undo()
    assert get() == CONTENT


def test_progress_counts_from_what_was_there(
    server: Server, served: Served, tmp_path: Path
) -> None:
    seen: list[tuple[int, int | None]] = []
    served.cut_after = [262_144]
    ResumingDownloader(
        tmp_path / "part",
        most_bytes=10**9,
        on_bytes=lambda done, total: seen.append((done, total)),
        patience=QUICK,
    )(f"{server.url}/file.bin", str(tmp_path / "out"), None)
    assert {total for _, total in seen} == {len(CONTENT)}
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1][0] == len(CONTENT)


PROGRAM = """
import sys
from pathlib import Path
from cdmpp.datasets.fetch.resume import ResumingDownloader
ResumingDownloader(Path(sys.argv[2] + ".part"), most_bytes=10**9)(sys.argv[1], sys.argv[2], None)
"""


def test_kill_9_in_the_middle_and_again(
    get, served: Served, server: Server, tmp_path: Path
) -> None:
    served.pause_s, served.piece = 0.02, 8192
    part = tmp_path / "file.bin.part"
    words = [sys.executable, "-c", PROGRAM, f"{server.url}/file.bin", str(tmp_path / "file.bin")]
    process = subprocess.Popen(words, cwd=ROOT)
    until = time.monotonic() + 30
    while not (part.exists() and part.stat().st_size) and time.monotonic() < until:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    size = part.stat().st_size
    assert 0 < size < len(CONTENT)
    served.pause_s, served.piece = 0.0, 1 << 14
    assert get() == CONTENT
    assert ranges(server)[-1] == f"bytes={size}-"
