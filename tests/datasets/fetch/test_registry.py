"""The registry of sources: every entry can be fetched as it stands there, and says what it is."""

from __future__ import annotations

import hashlib
import lzma
import re
from pathlib import Path

import pytest

from cdmpp.datasets.fetch.registry import (
    PublicSource,
    known_sources,
    read_sources,
    sources_of,
    wanted_sources,
)
from cdmpp.devices.registry import find_device
from cdmpp.errors import DataError, UsageError
from tests.paths import ROOT

SOURCES = known_sources()
NAMES = [source.name for source in SOURCES]
ENTRY = """
logs:
  title: Logs
  kind: autotvm
  devices: [t4]
  licence: MIT
  citation: nobody
  homepage: https://example.org
  commit: 0123456789abcdef0123456789abcdef01234567
  most_bytes: 1000
  downloads:
    - {path: "a-{commit}.tar.gz", url: "https://example.org/{commit}"}
  parts:
    - {files: "*.log", into: t4.json}
"""


@pytest.mark.parametrize("source", SOURCES, ids=NAMES)
def test_every_entry_says_what_it_is(source: PublicSource) -> None:
    assert source.licence
    assert source.citation
    assert re.match(r"https://(github\.com|figshare\.com)/", source.homepage)
    assert len(source.name) <= 20, "the table of --list is 80 columns wide"
    for label in source.devices:
        assert find_device(label) is not None, label
    assert set(source.default_for) <= set(source.devices)


@pytest.mark.parametrize("source", SOURCES, ids=NAMES)
def test_every_entry_is_pinned_or_says_how_it_is_had_by_hand(source: PublicSource) -> None:
    """A URL names the commit; a host of single files has no commit, and may ask for a browser."""
    for item in source.downloads:
        assert item.url.startswith("https://")
        if source.commit is None:
            assert source.by_hand.startswith("https://")
        else:
            assert source.commit in item.url


@pytest.mark.parametrize("source", SOURCES, ids=NAMES)
def test_every_entry_becomes_what_its_kind_is_read_as(source: PublicSource) -> None:
    made = {part.into for part in source.parts}
    if source.kind == "autotvm":
        assert made == {f"{label}.json" for label in source.devices}
    elif source.kind == "tenset":
        assert made == {"network_info/", "measure_records/"}
    elif source.kind == "metaschedule":
        assert made == {"database_workload.json", "database_tuning_record.json"}
    if not any(item.is_archive for item in source.downloads):
        assert {item.path for item in source.downloads} == {part.files for part in source.parts}


def test_a_checksum_is_that_of_the_shipped_copy() -> None:
    """`data/metaschedule-a100` has the file as it was, compressed."""
    source = next(source for source in SOURCES if source.name == "bennu-a100")
    item = source.downloads[0]
    name = item.path.rpartition("/")[2]
    content = lzma.decompress((ROOT / "data/metaschedule-a100" / f"{name}.xz").read_bytes())
    assert item.bytes == len(content)
    assert item.checksum == f"sha256:{hashlib.sha256(content).hexdigest()}"


def test_no_machine_is_named_in_the_registry() -> None:
    text = (ROOT / "cdmpp/datasets/fetch/sources.yaml").read_text("utf-8")
    assert not re.search(r"(?<![\w.])/(work|home|tmp|root|opt)/|localhost|127\.0\.0\.1", text)


def test_the_registry_is_in_the_wheel() -> None:
    assert '"datasets/fetch/*.yaml"' in (ROOT / "pyproject.toml").read_text("utf-8")


def test_sources_of_a_device_by_label_or_alias() -> None:
    assert [source.name for source in sources_of("t4")] == ["tlcbench", "tenset-gpu-full"]
    assert [source.name for source in wanted_sources("t4")] == ["tlcbench"]
    assert wanted_sources("Tesla T4") == wanted_sources("t4")
    assert sources_of("a100-40gb") == sources_of("a100") != []
    assert sources_of("nothing") == []


def test_a_name_that_is_no_source() -> None:
    with pytest.raises(UsageError, match="did you mean 'tlcbench'"):
        wanted_sources("tlcbensh")
    with pytest.raises(UsageError, match="no known source has records of 'h100'"):
        wanted_sources("h100")
    with pytest.raises(UsageError, match="must be fetched by name: cdmpp dataset fetch cdmpp-pap"):
        wanted_sources("p100")


def read(text: str, tmp_path: Path) -> tuple[PublicSource, ...]:
    path = tmp_path / "sources.yaml"
    path.write_text(text)
    return read_sources(path)


def test_a_commit_is_put_into_paths_and_urls(tmp_path: Path) -> None:
    [source] = read(ENTRY, tmp_path)
    assert source.downloads[0].path == "a-0123456789abcdef0123456789abcdef01234567.tar.gz"
    assert source.downloads[0].url == "https://example.org/0123456789abcdef0123456789abcdef01234567"
    assert not source.has_checksums


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("title: Logs", "titel: Logs", "unknown field 'titel', did you mean 'title'"),
        ("  title: Logs\n", "", "no title"),
        ("kind: autotvm", "kind: logs", "kind is 'logs', expected one of autotvm"),
        ("most_bytes: 1000", "most_bytes: 1e3", "most_bytes is '1e3', expected a whole number"),
        ("01234567\n", "0123456\n", "commit is .*, expected 40 hexadecimal digits"),
        ("path: \"a-", "path: \"../a-", "is not a plain relative path"),
        ("into: t4.json", "into: /t4.json", "is not a plain relative path"),
        ("https://example.org/{commit}", "file:///etc/passwd", "url is 'file:"),
        ("files:", "checksum: x, files:", "unknown field 'checksum'"),
        ("path:", "checksum: 'crc:1', path:", "checksum is 'crc:1', expected sha256:HEX"),
        ("logs:", "Logs of mine:", "a name consists of lower-case letters"),
        ("\nlogs:", "\n- logs:", "expected a mapping"),
        ("\nlogs:", "\n{", "cannot read the sources"),
    ],
)  # fmt: skip
def test_a_wrong_entry_is_one_sentence(old: str, new: str, said: str, tmp_path: Path) -> None:
    assert old in ENTRY
    with pytest.raises(DataError, match=said) as error:
        read(ENTRY.replace(old, new), tmp_path)
    assert "\n" not in str(error.value)
