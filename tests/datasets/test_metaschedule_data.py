"""The measured MetaSchedule programs that come with the repository."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import yaml

from cdmpp.datasets.cache import load_samples
from tests.benchmarks.search_campaign import TASKS

ROOT = Path(__file__).resolve().parents[2]


def test_they_load_without_an_extraction(tmp_path: Path) -> None:
    samples = load_samples(ROOT / "data" / "metaschedule-cpu", cache_dir=tmp_path)
    assert len(samples) == 1743
    assert [spec.name for spec in samples.devices] == ["epyc-avx512-1c"]
    assert len(np.unique(samples.programs.task_id)) == 32


def test_searches_are_judged_on_other_tasks() -> None:
    text = (ROOT / "configs" / "measure" / "metaschedule-cpu.yaml").read_text(encoding="utf-8")
    measured = yaml.safe_load(text)["sample"]
    sizes = {task: dict(_sizes(task)) for task in measured}
    for task in TASKS.values():
        same_kind = [other for other in measured if other.split(":")[0] == task.split(":")[0]]
        assert same_kind, task  # the model has seen the kind ...
        assert dict(_sizes(task)) not in [sizes[other] for other in same_kind]  # ... not the shape


def _sizes(task: str) -> list[tuple[str, int]]:
    parts = (part.partition("=") for part in task.split(":")[1].split(","))
    return [(name, int(value)) for name, _, value in parts]
