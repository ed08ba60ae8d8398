"""What the page consists of: its size, its libraries and their licences, nothing from elsewhere."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

from tests.paths import ROOT

PAGE = ROOT / "cdmpp/serve/page"
_LOCK = ROOT / "scripts/page/package-lock.json"
_MOST_GZIPPED = 700_000
_LICENCES = {"MIT", "ISC", "BSD-3-Clause", "Apache-2.0"}
_NOTICE = re.compile(r"^== (\S+) (\S+) \((.+)\)$", re.MULTILINE)


def own_files(suffix: str) -> list[Path]:
    """Returns the page's own files of a kind."""
    found = sorted(PAGE.glob(f"*{suffix}"))
    assert found
    return found


def test_the_whole_page_is_small() -> None:
    files = [path for path in PAGE.rglob("*") if path.is_file()]
    files.append(ROOT / "cdmpp/report/style.css")
    sizes = {path.name: len(gzip.compress(path.read_bytes())) for path in files}
    assert sizes["libraries.js"] > 100_000
    assert sum(sizes.values()) <= _MOST_GZIPPED, sizes


def test_libraries_are_of_exact_versions_and_each_has_its_licence() -> None:
    lock = json.loads(_LOCK.read_text("utf-8"))
    asked = json.loads((_LOCK.parent / "package.json").read_text("utf-8"))
    versions = {**asked["dependencies"], **asked["devDependencies"]}
    assert all(re.fullmatch(r"[\d.]+", version) for version in versions.values()), versions
    installed = {
        name.removeprefix("node_modules/"): one for name, one in lock["packages"].items() if name
    }
    assert all("integrity" in one for one in installed.values())
    text = (PAGE / "vendor/LICENCES.txt").read_text("utf-8")
    bundled = {name: (version, licence) for name, version, licence in _NOTICE.findall(text)}
    assert set(asked["dependencies"]) <= set(bundled)
    for name, (version, licence) in bundled.items():
        assert installed[name]["version"] == version, name
        assert installed[name]["license"] == licence, name
        assert licence in _LICENCES, name
    parts = _NOTICE.split(text)[4::4]
    assert all("copyright" in part.lower() for part in parts)


def test_nothing_is_asked_of_others_and_nothing_runs_that_the_policy_refuses() -> None:
    for path in own_files(".js"):
        urls = set(re.findall(r"https?://[^\"'`\s]+", path.read_text("utf-8")))
        assert urls <= {"http://www.w3.org/2000/svg"}, path
    for path in own_files(".css"):
        assert not re.findall(r"url\(|@import", path.read_text("utf-8")), path
    text = (PAGE / "index.html").read_text("utf-8")
    assert not re.findall(r"<style|\son\w+=|\sstyle=|<script>|(?:src|href)=\"(?:http|//)", text)
    library = (PAGE / "vendor/libraries.js").read_text("utf-8")
    assert not re.findall(r"\bnew Function\(|[^.\w]eval\(", library)


def test_modules_and_examples_are_there() -> None:
    for path in own_files(".js"):
        for name in re.findall(r"from \"\./([^\"]+)\"", path.read_text("utf-8")):
            assert (PAGE / name).is_file(), f"{path.name} imports {name}"
    gallery = json.loads((PAGE / "gallery/gallery.json").read_text("utf-8"))
    texts = {form["file"] for example in gallery for form in example["forms"]}
    assert texts == {path.name for path in (PAGE / "gallery").glob("*.txt")}
    (listed,) = re.findall(r"SAMPLES = (.+);", (PAGE / "network.js").read_text("utf-8"))
    assert {f"{name}.onnx" for name, _ in json.loads(listed)} == {
        path.name for path in (PAGE / "gallery").glob("*.onnx")
    }
