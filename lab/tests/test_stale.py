"""Every page of results is of today's code, or is listed as known to be stale."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lab import registry, stale
from lab.__main__ import main
from lab.pages import kept, write_page
from lab.paths import RESULTS
from lab.registry import EXPERIMENTS, Experiment
from lab.stamp import stamp

_NOT_RESULTS = {"README", "claims"}


def test_every_page_has_an_experiment_and_a_stamp() -> None:
    there = {path.stem for path in RESULTS.glob("*.md")} - _NOT_RESULTS
    written = [name for one in EXPERIMENTS for name in one.written]
    assert sorted(written) == sorted(there) == sorted(kept())
    assert [one.name for one in EXPERIMENTS if one.written and not one.cpu_time[0].isdigit()] == []


def test_stale_pages_are_those_that_are_listed_with_a_reason() -> None:
    listed, found = stale.known(), stale.reasons()
    assert set(found) - set(listed) == set(), "make them again, or list them with the reason"
    assert set(listed) - set(found) == set(), "of today's code: take them off the list"
    assert all(len(reason) > 20 for reason in listed.values())


def _stamp(**changes: Any) -> dict[str, Any]:
    return stamp("make it", schemas=["leaf"], models=["pretrained"], **changes)


def test_why_a_page_is_stale() -> None:
    assert stale.why_stale(None) == "never stamped"
    found = _stamp()
    assert stale.why_stale(found) == ""
    found["schema"]["leaf"] = 99
    found["models"] = {"pretrained": "0" * 16, "runs/mine": "1" * 16}
    assert stale.why_stale(found) == "leaf columns 99, now 1; another pretrained"
    older = stamp("a cell", schemas=["leaf"])
    older["schema"] = {"leaf": 98}
    assert stale.why_stale(_stamp(parts=[older, None])) == (
        "leaf columns 98, now 1; a part was never stamped"
    )


def test_stale_pages_are_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / "made.py"
    made.write_text(
        "import json, sys; from pathlib import Path; from lab.stamp import stamp\n"
        "from lab.pages import write_page\n"
        f"write_page(sys.argv[1], '# It', {{}}, stamp('c'), folder=Path({str(tmp_path)!r}))\n"
    )

    class Made(Experiment):
        def command(self) -> str:
            return f"python {made if self.name == 'good' else tmp_path / 'nowhere.py'} {self.name}"

    ones = (Made("good", "a page", "1 min"), Made("bad", "another", "1 min"))
    monkeypatch.setattr(registry, "EXPERIMENTS", ones)
    for name in ("reasons", "known"):
        function = getattr(stale, name)
        monkeypatch.setattr(stale, name, lambda found=function: found(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(registry.RESULTS.parents[1]))
    assert stale.rerun([]) == 1
    said = capsys.readouterr().out
    assert "good: of today's code; exit code 0" in said
    assert "bad: still stale (never stamped); exit code 2" in said
    assert stale.rerun(["good"]) == 0, "nothing is left to do there"
    assert stale.show([]) == 0
    assert "1 of 2 pages are stale" in capsys.readouterr().out


@pytest.mark.parametrize(("words", "expected"), [([], "shown"), (["--run"], "made again")])
def test_only_run_makes_stale_pages_again(
    words: list[str],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, text in (("show", "shown"), ("rerun", "made again")):
        monkeypatch.setattr(stale, name, lambda wanted, text=text: print(text, wanted) or 0)
    assert main(["stale", *words, "conv"]) == 0
    assert capsys.readouterr().out == f"{expected} ['conv']\n"


def test_a_page_keeps_its_stamp_and_the_numbers_of_claims(tmp_path: Path) -> None:
    (tmp_path / "claims.yaml").write_text(
        "- {readme: 'a {}', page: few, numbers: [{at: a/1, interval: [b, c]}]}\n"
    )
    values = {"a": [0.1, 0.2], "b": 0.15, "c": 0.25, "d": 1}
    rows = [("s", "d", "x", "v100", "g", "m", 0, "mape", 0.123456789, 5)]
    write_page("few", "# Few", values, _stamp(), rows=rows, folder=tmp_path)
    found = kept(tmp_path)["few"]
    assert found["numbers"] == {"a/1": 0.2, "b": 0.15, "c": 0.25}
    assert stale.why_stale(found["stamp"]) == ""
    assert "## Stamp" in (tmp_path / "few.md").read_text("utf-8")
    assert "v100,g,m,0,mape,0.1234568,5" in (tmp_path / "few.csv").read_text("utf-8")
