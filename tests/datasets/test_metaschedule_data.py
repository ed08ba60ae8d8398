"""The measured MetaSchedule programs that come with the repository."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

from cdmpp.datasets.cache import load_samples
from tests.benchmarks.search_campaign import TASKS

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("name", "programs", "tasks"),
    [
        ("metaschedule-cpu", 1743, 32),
        ("metaschedule-cpu-wide", 2033, 174),
        ("metaschedule-cpu-found", 1377, 173),
        ("metaschedule-cpu-networks", 2172, 1193),
        ("metaschedule-cpu-large", 1368, 762),
        ("metaschedule-cpu-batched", 1245, 671),
        ("metaschedule-cpu-many", 2144, 2144),
    ],
)
def test_they_load_without_an_extraction(
    name: str, programs: int, tasks: int, tmp_path: Path
) -> None:
    samples = load_samples(ROOT / "data" / name, cache_dir=tmp_path)
    assert len(samples) == programs
    assert [spec.name for spec in samples.devices] == ["epyc-avx512-1c"]
    assert len(np.unique(samples.programs.task_id)) == tasks


@pytest.mark.parametrize(
    "config",
    [
        "measure/metaschedule-cpu.yaml",
        "measure/metaschedule-cpu-wide.yaml",
        "search/metaschedule-cpu-found.yaml",
    ],
)
def test_searches_are_judged_on_other_tasks(config: str) -> None:
    options = yaml.safe_load((ROOT / "configs" / config).read_text(encoding="utf-8"))
    measured = options.get("sample") or options["task"]
    sizes = {task: dict(_sizes(task)) for task in measured}
    for task in TASKS.values():
        same_kind = [other for other in measured if other.split(":")[0] == task.split(":")[0]]
        assert same_kind, task  # the model has seen the kind ...
        assert dict(_sizes(task)) not in [sizes[other] for other in same_kind]  # ... not the shape


def _sizes(task: str) -> list[tuple[str, int]]:
    parts = (part.partition("=") for part in task.split(":")[1].split(","))
    return [(name, int(value)) for name, _, value in parts]
