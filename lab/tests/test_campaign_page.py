"""The page of the studies' benchmark, from results whose numbers are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lab.experiments.autotune import FINISHED, report, studies
from lab.journal import Journal


def result(group: str, seed: int, *, best: float, steps: int, test: float | None) -> dict[str, Any]:
    scores = {"mape": test, "median_ape": 0.3, "spearman_by_task": 0.7}
    return {
        "group": group, "seed": seed, "best": {"values": [best], "model": "transformer"},
        "first": {"values": [0.5]}, "trials": 9, "done": 5, "cpu_s": 120.0, "steps": steps,
        "test": None if test is None else scores, "commit": "c", "machine": {"cores": "1"},
    }  # fmt: skip


def test_every_study_has_a_name_of_its_own() -> None:
    names = [study.name for study in studies()]
    assert len(set(names)) == len(names)


def test_the_page_says_what_was_found(tmp_path: Path) -> None:
    found = (
        result("tpe", 0, best=0.4, steps=100, test=0.45),
        result("tpe", 1, best=0.3, steps=100, test=0.35),
        result("ended-early", 0, best=0.4, steps=60, test=None),
        result("never-ended", 0, best=0.4, steps=100, test=None),
        result("ended-early", 1, best=0.4, steps=80, test=None),
        result("never-ended", 1, best=0.3, steps=100, test=None),
    )
    report({(one["group"], one["seed"]): one for one in found}, folder=tmp_path)
    page = (tmp_path / "autotune.md").read_text()
    assert "| tpe | 0 | 2.0 | 5 / 9 | 50.0% | 40.0% | 20.0% | 45.0% / 30.0% / 0.70 |" in page
    assert "| **tpe** | mean of 2 | | | | **35.0%** | **30.0%** | **40.0%** |" in page
    assert "| 0 | 60 | 100 | 40% | 40.0% | 40.0% |" in page
    assert "| **mean** | | | **30%** | **40.0%** | **35.0%** |" in page
    assert "random |" not in page
    rows = (tmp_path / "autotune.csv").read_text().splitlines()
    assert "autotune,tenset-cpu,task,all,tpe,transformer,1,test_mape,0.35,9" in rows


def test_every_study_is_finished() -> None:
    assert set(Journal(FINISHED).cells()) == {study.name for study in studies()}
