"""The pages name only what is there: files, modules, other pages."""

from __future__ import annotations

import re
from functools import reduce
from pathlib import Path

import pytest

import cdmpp
import tvm_helper
from tests.paths import ROOT

#: Folders of docs/ with pages for users: the navigation names each page.
GUIDES = ("tutorials", "how-to", "explanation", "reference")
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").glob("*.md"),
        *(page for folder in GUIDES for page in (ROOT / "docs" / folder).glob("*.md")),
    ]
)
_FILE = re.compile(
    r"(?<![\w/.-])(?:cdmpp|tvm_helper|lab|tests|docs|configs)(?:/[\w-]+)+\.(?:py|md|ya?ml)\b"
)
_DOTTED = re.compile(r"(?<![\w/.])(?:cdmpp|tvm_helper|lab)(?:\.\w+)+")
_CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LINK_AND_ANCHOR = re.compile(r"\]\((?!https?:)([^)#\s]*)(#[^)\s]+)?\)")
_LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_what_a_page_names_is_there(page: Path) -> None:
    text = page.read_text("utf-8")
    missing = [
        name
        for name in _FILE.findall(text)
        if not (ROOT / name).exists() and not (page.parent / name).exists()
    ]
    missing += [name for name in _DOTTED.findall(text) if not _is_there(name)]
    assert missing == []


@pytest.mark.parametrize(
    "page",
    sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]),
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
def test_links_lead_somewhere(page: Path) -> None:
    text = _CODE.sub("", page.read_text("utf-8"))
    missing = [
        f"{link}{anchor}"
        for link, anchor in _LINK_AND_ANCHOR.findall(text)
        if not (page.parent / link).exists()
        or (anchor and anchor[1:] not in _anchors(page.parent / link if link else page))
    ]
    assert missing == []


def _anchors(page: Path) -> set[str]:
    """Returns the anchors of a page's headings, as repository hosts and the site make them."""
    headings = re.findall(r"^#+ (.*)$", _CODE.sub("", page.read_text("utf-8")), re.MULTILINE)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading).strip().replace(" ", "-") for heading in plain}


def _is_there(name: str) -> bool:
    """Whether it is a module, or a name in one, or in a class of one."""
    path = ROOT.joinpath(*name.split("."))
    if path.with_suffix(".py").exists() or path.is_dir():
        return True
    parts = name.split(".")
    if parts[0] == "cdmpp" and parts[1] in dir(cdmpp):
        try:
            return reduce(getattr, parts[1:], cdmpp) is not None
        except AttributeError:
            pass  # a module that nobody has imported
    for end in range(len(parts) - 1, 0, -1):
        place = ROOT.joinpath(*parts[:end])
        for module in (place.with_suffix(".py"), place / "__init__.py"):
            if module.is_file():
                return all(part in module.read_text("utf-8") for part in parts[end:])
    return False


def test_every_guide_is_in_the_index() -> None:
    text = (ROOT / "docs" / "README.md").read_text("utf-8")
    docs = ROOT / "docs"
    guides = {page.relative_to(docs).as_posix() for page in PAGES if docs in page.parents}
    missing = guides - {"README.md"} - set(_LINK.findall(text))
    assert missing == set()


def test_pages_that_people_read_are_short() -> None:
    most = {ROOT / "README.md": 700}
    most |= dict.fromkeys((ROOT / "docs" / "how-to").glob("*.md"), 600)
    words = {page: len(page.read_text("utf-8").split()) for page in most}
    assert len(most) > 20
    assert {page.name: words[page] for page in most if words[page] > most[page]} == {}


def test_public_names_of_the_plug_ins_load() -> None:
    pytest.importorskip("tvm", reason="apache-tvm is not installed")
    from tvm_helper.cost_model.tune import tune_tir

    assert tvm_helper.tune_tir is tune_tir
    assert {"Predictor", "CdmppCostModel", "CdmppPythonModel", "tune_relax"} <= set(dir(tvm_helper))
    assert tvm_helper.Predictor.__name__ == "Predictor"
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        tvm_helper.no_such_name  # noqa: B018
