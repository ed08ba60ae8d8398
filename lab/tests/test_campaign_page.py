"""The page of the studies' benchmark, from results whose numbers are known."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import pytest

from lab.experiments.autotune_campaign import report, studies


def result(
    group: str, seed: int, *, best: float, steps: int, test: float | None
) -> dict[str, object]:
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
    for value in (
        result("tpe", 0, best=0.4, steps=100, test=0.45),
        result("tpe", 1, best=0.3, steps=100, test=0.35),
        result("ended-early", 0, best=0.4, steps=60, test=None),
        result("never-ended", 0, best=0.4, steps=100, test=None),
        result("ended-early", 1, best=0.4, steps=80, test=None),
        result("never-ended", 1, best=0.3, steps=100, test=None),
    ):
        folder = tmp_path / "studies"
        folder.mkdir(exist_ok=True)
        (folder / f"{value['group']}-{value['seed']}.json").write_text(json.dumps(value))
    report(Namespace(finished=tmp_path / "studies", results=tmp_path))
    page = (tmp_path / "autotune.md").read_text()
    assert "| tpe | 0 | 2.0 | 5 / 9 | 50.0% | 40.0% | 20.0% | 45.0% / 30.0% / 0.70 |" in page
    assert "| **tpe** | mean of 2 | | | | **35.0%** | **30.0%** | **40.0%** |" in page
    assert "| 0 | 60 | 100 | 40% | 40.0% | 40.0% |" in page
    assert "| **mean** | | | **30%** | **40.0%** | **35.0%** |" in page
    assert "random |" not in page
    rows = (tmp_path / "autotune.csv").read_text().splitlines()
    assert "autotune,tenset-cpu,task,all,tpe,transformer,1,test_mape,0.35,9" in rows


def test_a_page_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no finished study"):
        report(Namespace(finished=tmp_path, results=tmp_path))
