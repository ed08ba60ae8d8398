"""Every page of results is of today's code, or is listed as known to be stale."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cdmpp.report.stamp import stamp
from lab import evidence

_NOT_RESULTS = {"README", "claims"}


def test_every_page_is_in_the_table() -> None:
    there = {path.stem for path in evidence.RESULTS.glob("*.md")} - _NOT_RESULTS
    listed = [name for one in evidence.made() for name in one.pages]
    assert sorted(listed) == sorted(there)
    assert [one.pages for one in evidence.made() if not one.cpu_time[0].isdigit()] == []


def test_stale_pages_are_those_that_are_listed_with_a_reason() -> None:
    listed = evidence.known()
    names = [name for one in evidence.made() for name in one.pages]
    stale = {name for name in names if evidence.why_stale(evidence.RESULTS / f"{name}.json")}
    assert stale - set(listed) == set(), "make them again, or list them with the reason"
    assert set(listed) - stale == set(), "of today's code: take them off the list"
    assert all(len(reason) > 20 for reason in listed.values())


def _stamped(path: Path, **changes: Any) -> Path:
    found = stamp("make it", schemas=["leaf"], models=["pretrained"], **changes)
    path.write_text(json.dumps({"stamp": found}))
    return path


def test_why_a_page_is_stale(tmp_path: Path) -> None:
    page = tmp_path / "page.json"
    assert evidence.why_stale(page) == "never stamped"
    page.write_text("{}")
    assert evidence.why_stale(page) == "never stamped"
    assert evidence.why_stale(_stamped(page)) == ""
    value = json.loads(page.read_text())
    value["stamp"]["schema"]["leaf"] = 99
    value["stamp"]["models"] = {"pretrained": "0" * 16, "runs/mine": "1" * 16}
    page.write_text(json.dumps(value))
    assert evidence.why_stale(page) == "leaf columns 99, now 1; another pretrained"
    older = stamp("a cell", schemas=["leaf"])
    older["schema"] = {"leaf": 98}
    assert evidence.why_stale(_stamped(page, parts=[older, None])) == (
        "leaf columns 98, now 1; a part was never stamped"
    )


_TABLE = """| page | what | command | CPU time, about |
| --- | --- | --- | --- |
| [good](good.md) | a page | `cp there.json good.json` | 1 min |
| [bad](bad.md) | another | `cp nowhere.json bad.json`, `touch never` | 1 min |
| [hand](hand.md) | a third | by hand | 1 min |
"""


def test_stale_pages_are_made_and_leave_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "README.md").write_text(_TABLE)
    (tmp_path / "stale.yaml").write_text("# why\ngood: old\nbad: old\nhand: old\n")
    _stamped(tmp_path / "there.json")
    for name, value in {"ROOT": "", "RESULTS": "", "STALE": "stale.yaml", "LOGS": "logs"}.items():
        monkeypatch.setattr(evidence, name, tmp_path / value)
    assert evidence.main(["run"]) == 1
    assert (tmp_path / "stale.yaml").read_text() == "# why\nbad: old\nhand: old\n"
    assert not (tmp_path / "never").exists(), "the step after one that failed"
    said = capsys.readouterr().out
    assert "good: of today's code; exit code 0" in said
    assert "bad: still stale (never stamped); exit code 1" in said
    assert evidence.main(["run", "good"]) == 0, "nothing is left to do there"
    assert evidence.main([]) == 0
    assert "2 of 3 pages are stale" in capsys.readouterr().out
