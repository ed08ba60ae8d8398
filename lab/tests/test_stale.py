"""Results of earlier models or features are found and rerun."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lab import registry, stale
from lab.__main__ import main
from lab.paths import ROOT
from lab.registry import Experiment
from lab.stamp import stamp


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
        f"path = Path({str(tmp_path)!r}) / 'stamps.json'\n"
        "path.write_text(json.dumps({sys.argv[1]: stamp('c')}))\n"
    )

    class Made(Experiment):
        def command(self) -> str:
            return f"python {made if self.name == 'good' else tmp_path / 'nowhere.py'} {self.name}"

    ones = (Made("good", "a page", "1 min"), Made("bad", "another", "1 min"))
    monkeypatch.setattr(registry, "EXPERIMENTS", ones)
    (tmp_path / "stamps.json").write_text("{}")
    reasons = stale.reasons
    monkeypatch.setattr(stale, "reasons", lambda: reasons(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert stale.rerun([]) == 1
    said = capsys.readouterr().out
    assert "good: current; exit code 0" in said
    assert "bad: still stale (never stamped); exit code 2" in said
    assert stale.rerun(["good"]) == 0, "nothing is left to do there"
    assert stale.show([]) == 0
    assert "1 of 2 results are stale" in capsys.readouterr().out


def test_a_line_says_where_numbers_are_from() -> None:
    found = _stamp() | {
        "commit": "0123456789abc",
        "is_changed": False,
        "machine": {"processor": "CPU", "cores": "2"},
    }
    line = stale.provenance("bounds", found)
    assert line.startswith("- `python -m lab run bounds` (3 min): commit 012345678, 20")
    assert line.endswith(", CPU, 2 cores.")
    changed = stale.provenance("bounds", {**found, "is_changed": True})
    assert "commit 012345678 and uncommitted changes, 20" in changed
    older = {**found, "models": {"pretrained": "0" * 16}}
    assert stale.provenance("bounds", older).endswith(", made with an earlier model.")
    assert stale.provenance("bounds", None).endswith(": never run.")


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
