"""Stamps of results pages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cdmpp.errors import DataError
from cdmpp.report.page import Page, Section
from lab.pages import write_page
from lab.stamp import PROGRAMS, SCHEMAS, model_digest, stamp


def test_a_stamp_names_what_it_was_given() -> None:
    found = stamp("make it", schemas=PROGRAMS, models=["pretrained"], data={"few": "12ab"})
    assert found["command"] == "make it"
    assert found["schema"] == {name: SCHEMAS[name] for name in ("leaf", "leaf_extra", "device")}
    assert found["models"] == {"pretrained": model_digest("pretrained")}
    assert found["data"] == {"few": "12ab"}
    assert "parts" not in found


def test_parts_are_kept_once_each_and_those_without_a_stamp_too() -> None:
    part = stamp("a cell", schemas=["leaf"])
    older = {**part, "commit": "0" * 40}
    found = stamp("all", parts=[part, None, older, part, None])
    assert [None if one is None else one["commit"] for one in found["parts"]] == [
        part["commit"], None, "0" * 40,
    ]  # fmt: skip
    assert all(set(one) == {"commit", "schema", "models"} for one in found["parts"] if one)


def test_the_digest_is_of_what_a_model_says_not_of_its_card(tmp_path: Path) -> None:
    for name in ("model.json", "card.json", "parts/trees.xz"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    before = model_digest(tmp_path)
    (tmp_path / "card.json").write_text("other words")
    assert model_digest(tmp_path) == before
    (tmp_path / "parts" / "trees.xz").write_text("other trees")
    assert model_digest(tmp_path) != before
    with pytest.raises(DataError, match="no files of a model"):
        model_digest(tmp_path / "nothing")


@pytest.mark.parametrize("is_page", [True, False])
def test_page_and_numbers_have_the_same_stamp(tmp_path: Path, is_page: bool) -> None:
    page = Page("Title", "Lead.", [Section("Part", "note")]) if is_page else "# Title\n\nLead.\n"
    found = stamp("make it", schemas=["leaf"], data={"few": "12ab"})
    text = write_page("name", page, {"error": 0.5}, found, folder=tmp_path / "new")
    assert (tmp_path / "new" / "name.md").read_text() == text
    assert f"- schema: leaf {SCHEMAS['leaf']}\n- data: few 12ab\n" in text
    value = json.loads((tmp_path / "new" / "name.json").read_text())
    assert value == {"stamp": found, "error": 0.5}
