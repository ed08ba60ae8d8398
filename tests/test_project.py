"""What the project says of itself agrees: version, changes, citation, extras, the wheel."""

from __future__ import annotations

import ast
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path
from unittest import mock

import pytest
import yaml
from packaging.requirements import Requirement
from setuptools import find_packages

from cdmpp import __version__
from cdmpp.config import read_yaml
from cdmpp.errors import CdmppError, UsageError
from cdmpp.files import places
from tests import house, licences
from tests.paths import ROOT

EXTRAS = set(
    tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
)


def test_the_version_is_the_same_everywhere() -> None:
    versions = re.findall(r"^## \[(\d[^]]*)\]", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.M)
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert versions[0] == __version__ == citation["version"]


@pytest.mark.parametrize("lock", ["", "LOCKED=cpu"])
def test_an_install_says_its_size_and_finds_a_cpu_build(tmp_path: Path, lock: str) -> None:
    words = ["make", "-n", "venv", f"VENV={tmp_path}/venv", "TORCH_WHEELS=wheels", *lock.split()]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "about 7 GB with the CUDA build" in done.stdout
    (install,) = [line for line in done.stdout.splitlines() if "--no-compile" in line]
    assert "--find-links wheels" in install


def test_a_tag_of_this_commit_is_the_version() -> None:
    done = subprocess.run(
        ["git", "tag", "--points-at", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    tags = [tag for tag in done.stdout.split() if re.fullmatch(r"v\d+(\.\d+)*.*", tag)]
    assert tags in ([], [f"v{__version__}"])


def test_the_changelog_keeps_its_form() -> None:
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert text.startswith("# Changelog\n")
    assert re.findall(r"^## (.*)", text, re.M)[0] == "[Unreleased]"
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security", "Known limits"}
    assert set(re.findall(r"^### (.*)", text, re.M)) <= kinds


def test_the_citation_has_the_keys_of_its_schema() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert set(citation) <= {
        "abstract", "authors", "cff-version", "commit", "contact", "date-released", "doi",
        "identifiers", "keywords", "license", "license-url", "message", "preferred-citation",
        "references", "repository", "repository-artifact", "repository-code", "title", "type",
        "url", "version",
    }  # fmt: skip
    (paper,) = citation["references"]
    assert {"type", "title", "authors"} <= set(paper)
    assert paper["type"] == "conference-paper"
    assert re.fullmatch(r"10\.\d{4,9}/\S+", paper["doi"])
    for person in paper["authors"]:
        assert set(person) == {"family-names", "given-names"}


def test_the_constraints_of_the_environment_are_within_the_ranges() -> None:
    ranges = {one.name: one.specifier for one, name in licences.requirements()}
    lines = (ROOT / "requirements.txt").read_text("utf-8").splitlines()
    pins = [Requirement(line) for line in lines if not line.startswith("#")]
    assert {one.name for one in pins} == {"torch", "apache-tvm", "apache-tvm-ffi"}
    for pin in pins:
        assert ranges[pin.name].contains(*[one.version for one in pin.specifier])


def extras_asked_for() -> set[str]:
    """Returns the extras in the product's calls of `require`."""
    found = set()
    asking = [one for one in house.modules().values() if "require(" in one.read_text("utf-8")]
    for path in asking:
        for node in ast.walk(house.tree_of(path)):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "require":
                extra = next(word.value for word in node.keywords if word.arg == "extra")
                found.add(ast.literal_eval(extra))
    return found


def test_the_product_names_only_extras_that_exist() -> None:
    texts = (path.read_text("utf-8") for path in house.modules().values())
    named = extras_asked_for() | {
        extra for text in texts for extra in re.findall(r"cdmpp\[(\w+)\]", text)
    }
    assert EXTRAS - {"tvm"} <= named <= EXTRAS


def test_a_missing_extra_is_one_sentence_with_the_command(tmp_path: Path) -> None:
    """Those of ray, nvml and nvrtc are in the tests of their packages."""
    from cdmpp.analytic.conv.seer.workbook import read_workbook
    from cdmpp.autotune.storage import open_storage
    from cdmpp.networks.graph.network_file import onnx_batch
    from cdmpp.networks.onnx_files.sizes import InputSizes

    file = tmp_path / "file.onnx"
    book = tmp_path / "book.xlsx"
    for path in (file, book):
        path.touch()
    hidden = dict.fromkeys(("onnx", "openpyxl", "psycopg"))
    with mock.patch.dict(sys.modules, hidden):
        calls = {
            "onnx": lambda: onnx_batch(file, InputSizes()),
            "analytic": lambda: read_workbook(book),
            "autotune": lambda: open_storage("postgresql://user@host/name", lease_s=60.0),
        }
        for extra, call in calls.items():
            with pytest.raises(UsageError) as caught:
                call()
            assert_one_sentence(caught.value, extra)


def test_a_server_without_its_extra(capsys: pytest.CaptureFixture[str]) -> None:
    from cdmpp.cli.main import main

    with mock.patch.dict(sys.modules, {"uvicorn": None}):
        assert main(["serve"]) == 2
    text = capsys.readouterr().err
    assert text.count("\n") == 1
    assert "pip install 'cdmpp[serve]'" in text


def assert_one_sentence(error: CdmppError, extra: str) -> None:
    text = str(error)
    assert f"pip install 'cdmpp[{extra}]'" in text
    assert "\n" not in text


def test_a_source_distribution_holds_what_a_wheel_is_made_of() -> None:
    with mock.patch("setuptools.setup"):
        shipped = runpy.run_path(str(ROOT / "setup.py"))["SHIPPED"]
    lines = (ROOT / "MANIFEST.in").read_text("utf-8").splitlines()
    assert {f"graft {folder}" for folder in shipped} == {x for x in lines if x.startswith("graft")}
    assert all((ROOT / folder).is_dir() for folder in shipped)


def test_no_wheel_and_no_source_distribution_holds_the_laboratory() -> None:
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]
    found = find_packages(str(ROOT), include=tools["setuptools"]["packages"]["find"]["include"])
    assert {name.split(".")[0] for name in found} == set(house.PACKAGES)
    assert "lab" not in (ROOT / "MANIFEST.in").read_text("utf-8").split()


def test_shipped_files_are_found_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "configs/train/quick.yaml"
    assert "transformer" in read_yaml(Path(name))
    (tmp_path / "configs" / "train").mkdir(parents=True)
    (tmp_path / name).write_text("model: gbdt", "utf-8")
    assert read_yaml(Path(name)) == {"model": "gbdt"}
    with pytest.raises(UsageError, match=r"^configs/train/quack\.yaml: cannot read"):
        read_yaml(Path("configs/train/quack.yaml"))


def test_an_installed_package_has_its_own_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder `configs` of somebody else in site-packages is not ours."""
    monkeypatch.setattr(places, "package_folder", lambda package: tmp_path / "site" / package)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "site" / "configs").mkdir(parents=True)
    assert places.shipped_places("configs") == [
        tmp_path / "site" / "cdmpp" / "shipped" / "configs",
        tmp_path / "configs",
    ]
