"""Fetching a source: what lies where afterwards, from where it may come, what is refused."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import json
import tarfile
import threading
import time
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdmpp.datasets.autotvm.logs import find_logs, is_autotvm_log, read_autotvm_log
from cdmpp.datasets.fetch.fetch import FetchResult, fetch
from cdmpp.datasets.fetch.registry import Download, PublicSource, SourcePart, known_sources
from cdmpp.datasets.fetch.resume import Patience
from cdmpp.datasets.fetch.unpack import WrongContentError
from cdmpp.datasets.fetched import FETCHED_FILE, fetched_in
from cdmpp.datasets.read_report import ReadReport
from cdmpp.errors import DataError, UsageError
from tests.datasets.fetch.conftest import COMMIT, log_lines, tar_of, unpack
from tests.datasets.fetch.server import Served, serving
from tests.paths import shared

QUICK = Patience(connect_s=2.0, read_s=0.5, wait_s=0.01)


def records(path: Path) -> int:
    return sum(1 for _ in read_autotvm_log(path, ReadReport()))


def check_whole(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == [
        FETCHED_FILE, "platinum-8124m.json", "t4.json",
    ]  # fmt: skip
    assert (records(folder / "t4.json"), records(folder / "platinum-8124m.json")) == (340, 7)


def test_from_a_server_joined_by_device_and_recorded(
    source: PublicSource, archive: bytes, tmp_path: Path
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
    kind: str, source: PublicSource, files: dict[str, bytes], archive: bytes, tmp_path: Path
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


def test_a_second_fetch_asks_nobody(source: PublicSource, archive: bytes, tmp_path: Path) -> None:
    with serving({source.downloads[0].path: Served(archive)}) as server:
        fetch(source, tmp_path, origin=server.url)
    again = fetch(source, tmp_path, origin=server.url)
    assert not again.is_new
    check_whole(again.folder)


def serve(source: PublicSource, content: bytes, tmp_path: Path) -> FetchResult:
    """Fetches the source from a server that has this content in place of its archive."""
    with serving({source.downloads[0].path: Served(content)}) as server:
        return fetch(source, tmp_path, origin=server.url, patience=QUICK)


def nothing_is_left(tmp_path: Path) -> bool:
    """Whether there is no dataset and no download, only the lock."""
    found = [path.name for path in (tmp_path / "fetched").rglob("*") if path.is_file()]
    return found == [".lock"]


def with_download(source: PublicSource, **values: Any) -> PublicSource:
    return replace(source, downloads=(replace(source.downloads[0], **values),))


def test_a_known_checksum(source: PublicSource, archive: bytes, tmp_path: Path) -> None:
    right = f"sha256:{hashlib.sha256(archive).hexdigest()}"
    check_whole(serve(with_download(source, checksum=right), archive, tmp_path).folder)


def test_a_wrong_checksum_is_named_and_nothing_kept(
    source: PublicSource, archive: bytes, tmp_path: Path
) -> None:
    wrong = with_download(source, checksum="md5:" + "0" * 32)
    got = hashlib.md5(archive, usedforsecurity=False).hexdigest()
    with pytest.raises(DataError, match=f"wrong checksum.*{got}"):
        serve(wrong, archive, tmp_path)
    assert nothing_is_left(tmp_path)
    place = unpack({source.downloads[0].path: archive}, tmp_path / "by-hand")
    with pytest.raises(DataError, match=f"wrong checksum.*{got}"):
        fetch(wrong, tmp_path, origin=str(place))


def test_a_wrong_size_is_named(source: PublicSource, archive: bytes, tmp_path: Path) -> None:
    short = with_download(source, bytes=len(archive) + 1)
    with pytest.raises(DataError, match=f"has {len(archive)} bytes, expected {len(archive) + 1}"):
        serve(short, archive, tmp_path)
    assert nothing_is_left(tmp_path)


def test_git_ids_of_files(
    source: PublicSource, files: dict[str, bytes], archive: bytes, tmp_path: Path
) -> None:
    path = "logs/t4/a.kernel.log"
    content = files[path]
    right = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
    check_whole(serve(replace(source, blobs={path: right}), archive, tmp_path / "a").folder)
    with pytest.raises(WrongContentError, match=f"{path}: is git blob {right}, expected 00"):
        serve(replace(source, blobs={path: "0" * 40}), archive, tmp_path / "b")
    assert nothing_is_left(tmp_path / "b")


def test_an_archive_of_another_commit(
    source: PublicSource, files: dict[str, bytes], tmp_path: Path
) -> None:
    other = tar_of({f"repo/{path}": content for path, content in files.items()}, commit="f" * 40)
    with pytest.raises(WrongContentError, match=f"of commit ffff.*expected {COMMIT}"):
        serve(source, other, tmp_path)
    assert nothing_is_left(tmp_path)


@pytest.mark.parametrize("cut", [10, 5000])
def test_an_archive_that_is_cut_is_fetched_again(
    cut: int, source: PublicSource, archive: bytes, tmp_path: Path
) -> None:
    with pytest.raises(WrongContentError, match="not a complete archive"):
        serve(source, archive[:-cut], tmp_path)
    assert nothing_is_left(tmp_path)
    check_whole(serve(source, archive, tmp_path).folder)


def test_an_archive_with_a_wrong_byte(
    source: PublicSource, files: dict[str, bytes], tmp_path: Path
) -> None:
    """The logs would be read without a complaint, one number of them another one."""
    stored = gzip.compress(gzip.decompress(tar_of({f"repo/{p}": c for p, c in files.items()})), 0)
    assert stored.count(b"[-1, 17]") == 1
    with pytest.raises(WrongContentError, match=r"not a complete archive.*CRC"):
        serve(source, stored.replace(b"[-1, 17]", b"[-1, 71]"), tmp_path)
    assert nothing_is_left(tmp_path)


def zip_of(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        for path, content in files.items():
            archive.writestr(f"repo/{path}", content)
    return packed.getvalue()


@pytest.mark.parametrize("damage", ["none", "a byte", "cut", "a password"])
def test_a_damaged_zip(
    damage: str, source: PublicSource, files: dict[str, bytes], tmp_path: Path
) -> None:
    packed = bytearray(zip_of(files))
    if damage == "a byte":
        packed[packed.index(b"[-1, 17]") + 5] = ord("9")
    elif damage == "cut":
        packed = packed[:-200]
    elif damage == "a password":
        for mark, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
            packed[packed.index(mark) + flags] |= 1
    if damage == "none":
        check_whole(serve(source, bytes(packed), tmp_path).folder)
    else:
        with pytest.raises(WrongContentError, match="logs: not a complete archive"):
            serve(source, bytes(packed), tmp_path)
        assert nothing_is_left(tmp_path)


@pytest.mark.parametrize("name", ["logs/t4/../../../x.kernel.log", "logs/t4/..\\x.kernel.log"])
@pytest.mark.parametrize("pattern", ["logs/t4/*.kernel.log", "logs/**"])
def test_a_path_that_leads_out(
    name: str, pattern: str, source: PublicSource, tmp_path: Path
) -> None:
    part = SourcePart(pattern, "t4.json")
    bad = tar_of({f"repo/{name}": log_lines(1), "repo/logs/t4/a.kernel.log": log_lines(1)})
    if part.files == "logs/t4/*.kernel.log" and "/../" in name:
        serve(replace(source, parts=(part,)), bad, tmp_path)  # not what the pattern names
    else:
        with pytest.raises(WrongContentError, match="points outside"):
            serve(replace(source, parts=(part,)), bad, tmp_path)
    assert not list(tmp_path.rglob("x.kernel.log"))


def test_links_in_an_archive_are_left_out(source: PublicSource, tmp_path: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        link = tarfile.TarInfo("repo/logs/t4/a.kernel.log")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    with pytest.raises(WrongContentError, match="no file matches"):
        serve(source, packed.getvalue(), tmp_path)


def test_what_becomes_too_large_is_not_kept(source: PublicSource, tmp_path: Path) -> None:
    bomb = tar_of({"repo/logs/t4/a.kernel.log": b"0" * 3_000_000})
    small = replace(source, most_bytes=1_000_000)
    with pytest.raises(WrongContentError, match="more than 1000000 bytes"):
        serve(small, bomb, tmp_path)
    assert nothing_is_left(tmp_path)


def test_a_page_in_place_of_logs(source: PublicSource, tmp_path: Path) -> None:
    page = {f"logs/{device}/a.kernel.log": b"<html>sign in</html>\n" for device in source.devices}
    with pytest.raises(WrongContentError, match=r"no AutoTVM record in \S+ \(1 of 1 lines"):
        fetch(source, tmp_path, origin=str(unpack(page, tmp_path / "by-hand")))


def test_a_part_that_may_be_missing(
    source: PublicSource, files: dict[str, bytes], tmp_path: Path
) -> None:
    del files["logs/platinum-8124m/a.kernel.log"]
    place = str(unpack(files, tmp_path / "clone"))
    with pytest.raises(WrongContentError, match="no file matches logs/platinum-8124m"):
        fetch(source, tmp_path, origin=place)
    lenient = replace(source, parts=tuple(replace(p, is_optional=True) for p in source.parts))
    assert fetch(lenient, tmp_path, origin=place).fetched.devices == ("t4",)
    with pytest.raises(DataError, match="has no files of other"):
        fetch(replace(lenient, name="other"), tmp_path, origin=str(tmp_path / "fetched"))


def test_damage_is_found_and_fetched_again(
    source: PublicSource, archive: bytes, tmp_path: Path
) -> None:
    folder = serve(source, archive, tmp_path).folder
    with (folder / "t4.json").open("ab") as log:
        log.write(b"{}")
    result = serve(source, archive, tmp_path)
    assert result.is_new
    check_whole(folder)


def test_a_source_that_changed_since_is_named(
    source: PublicSource, files: dict[str, bytes], archive: bytes, tmp_path: Path
) -> None:
    folder = serve(source, archive, tmp_path).folder
    kept = (folder / "platinum-8124m.json").read_bytes()
    (folder / "t4.json").unlink()
    files["logs/t4/b.kernel.log"] = log_lines(1)
    changed = tar_of({f"repo/{path}": content for path, content in files.items()})
    with pytest.raises(WrongContentError, match=r"t4.json has sha256 \w+, and had"):
        serve(source, changed, tmp_path)
    assert (folder / "platinum-8124m.json").read_bytes() == kept


def test_another_commit_of_the_registry_is_another_source(
    source: PublicSource, archive: bytes, files: dict[str, bytes], tmp_path: Path
) -> None:
    serve(source, archive, tmp_path)
    files["logs/t4/b.kernel.log"] = log_lines(1)
    other = "f" * 40
    packed = tar_of({f"repo/{path}": content for path, content in files.items()}, commit=other)
    result = serve(replace(source, commit=other), packed, tmp_path)
    assert (result.is_new, result.fetched.commit) == (True, other)
    assert records(result.folder / "t4.json") == 301


def test_two_fetches_of_one_source(source: PublicSource, archive: bytes, tmp_path: Path) -> None:
    name = source.downloads[0].path
    may_answer = threading.Event()
    with serving({name: Served(archive, may_answer=may_answer)}) as server:
        first = threading.Thread(
            target=fetch, args=(source, tmp_path), kwargs={"origin": server.url}
        )
        first.start()
        while not server.asked:
            time.sleep(0.01)
        with pytest.raises(UsageError, match=r"logs is being fetched.*process \d+.*wait for it"):
            fetch(source, tmp_path, origin=server.url)
        may_answer.set()
        first.join()
    check_whole(tmp_path / "fetched" / "logs")


def test_a_disk_that_is_full_when_unpacking(
    source: PublicSource, archive: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*paths: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    name = source.downloads[0].path
    with serving({name: Served(archive)}) as server:
        monkeypatch.setattr("cdmpp.datasets.fetch.unpack._join", full)
        with pytest.raises(DataError, match=r"No space left.*nothing is downloaded twice"):
            fetch(source, tmp_path, origin=server.url)
        assert [path.name for path in (tmp_path / "fetched").iterdir()] == [".logs"]
        monkeypatch.undo()
        check_whole(fetch(source, tmp_path, origin=server.url).folder)
        assert len(server.asked) == 1


def test_a_cache_that_cannot_be_written(source: PublicSource, tmp_path: Path) -> None:
    (tmp_path / "fetched").write_text("a file")
    with pytest.raises(DataError, match="cannot write the fetched records"):
        fetch(source, tmp_path)


def test_what_a_killed_fetch_left_is_no_dataset(
    source: PublicSource, archive: bytes, tmp_path: Path
) -> None:
    folder = serve(source, archive, tmp_path).folder
    left = folder.with_name("logs.999999999.tmp")
    folder.rename(left)
    assert list(fetched_in(tmp_path)) == []
    check_whole(serve(source, archive, tmp_path).folder)
    assert not left.exists()


def test_a_zip_in_tensets_layout(tiny_dataset: Path, source: PublicSource, tmp_path: Path) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(tiny_dataset.rglob("*")):
            if path.is_file():
                archive.write(path, f"dataset_cpu/{path.relative_to(tiny_dataset)}")
    tenset = replace(
        source,
        kind="tenset",
        devices=("xeon-avx2-1c",),
        downloads=(Download("dataset.zip", "http://127.0.0.1:9/dataset.zip"),),
        parts=(
            SourcePart("network_info/**", "network_info/"),
            SourcePart("measure_records/**", "measure_records/"),
        ),
    )
    folder = serve(tenset, packed.getvalue(), tmp_path).folder
    for path in tiny_dataset.rglob("*"):
        if path.is_file():
            assert (folder / path.relative_to(tiny_dataset)).read_bytes() == path.read_bytes()
    wrong = replace(tenset, name="wrong", devices=("t4",))
    with pytest.raises(WrongContentError, match="no measure records of device 't4'"):
        serve(wrong, packed.getvalue(), tmp_path)


def test_single_files_one_of_them_gzipped(source: PublicSource, tmp_path: Path) -> None:
    content = {"ms/database_workload.json": b"[]\n", "ms/database_tuning_record.json.gz": b""}
    content["ms/database_tuning_record.json.gz"] = gzip.compress(b"[0]\n")
    database = replace(
        source,
        kind="metaschedule",
        strip=0,
        downloads=tuple(Download(path, f"http://127.0.0.1:9/{path}") for path in content),
        parts=tuple(
            SourcePart(path, path.removeprefix("ms/").removesuffix(".gz")) for path in content
        ),
    )
    with serving({path: Served(data) for path, data in content.items()}) as server:
        folder = fetch(database, tmp_path, origin=server.url).folder
    assert (folder / "database_tuning_record.json").read_bytes() == b"[0]\n"
    assert (folder / "database_workload.json").read_bytes() == b"[]\n"
    place = unpack({path.partition("/")[2]: data for path, data in content.items()}, tmp_path / "b")
    assert not fetch(database, tmp_path, origin=str(place)).is_new
    (place / "database_tuning_record.json.gz").write_bytes(gzip.compress(b"[0]\n" * 99)[:-9])
    with pytest.raises(
        WrongContentError, match=r"cut: database_tuning_record.json: not a complete arch"
    ):
        fetch(replace(database, name="cut"), tmp_path, origin=str(place))
    with pytest.raises(DataError, match="is a file, expected a folder with ms/"):
        fetch(replace(database, name="x"), tmp_path, origin=str(place / "database_workload.json"))


def test_real_logs_through_a_mirror(tmp_path: Path) -> None:
    """The T4's log in the place that it has in its repository, and what the reader makes of it."""
    log = shared("autotvm/t4.json.gz")
    registered = next(s for s in known_sources() if s.name == "tlcbench")
    path = "saved_logs/2020_01_11/autotvm/t4/bert-B1-float32.kernel.log"
    lines = gzip.decompress(log.read_bytes())
    packed = tar_of({f"TLCBench/{path}": lines}, commit=registered.commit or "")
    result = serve(registered, packed, tmp_path)
    assert result.fetched.devices == ("t4",)
    assert records(result.folder / "t4.json") == lines.count(b"\n") == 7016


def test_a_host_that_wants_a_browser(source: PublicSource, tmp_path: Path) -> None:
    page = "https://example.org/page"
    name = source.downloads[0].path
    with (
        serving({name: Served(b"<html>", content_type="text/html")}) as server,
        pytest.raises(DataError, match=f"web page .* --from FILE .its page: {page}"),
    ):
        fetch(replace(source, by_hand=page), tmp_path, origin=server.url)
    assert nothing_is_left(tmp_path)


def test_without_a_network_it_is_one_sentence(source: PublicSource, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"connection was refused.*--from"):
        fetch(source, tmp_path, patience=QUICK)
    assert not (tmp_path / "fetched" / "logs").exists()
