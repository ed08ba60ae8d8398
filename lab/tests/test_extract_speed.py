"""The extraction benchmark runs, and its parts add up to the same records."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lab.experiments.extract_speed import (
    CONVOLUTION_DEVICE,
    SHIPPED,
    make_convolutions,
    outcomes_text,
    report_text,
)
from lab.shell import in_process

pytestmark = pytest.mark.exhaustive


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five convolution tasks, every record with two pragmas."""
    whole, few = tmp_path_factory.mktemp("whole") / "x", tmp_path_factory.mktemp("few")
    make_convolutions(whole, variants=2)
    folder = few / "measure_records" / CONVOLUTION_DEVICE
    folder.mkdir(parents=True)
    (few / "network_info").symlink_to(SHIPPED / "network_info")
    for path in sorted((whole / "measure_records" / CONVOLUTION_DEVICE).iterdir())[:5]:
        shutil.copy(path, folder)
    return few


def test_the_benchmark(few: Path, tmp_path: Path) -> None:
    module = "lab.experiments.extract_speed"
    run = in_process(f"{module}:extract_here", few, tmp_path / "out", 1)
    phases = in_process(f"{module}:phases_here", few, tmp_path / "phases")
    assert run["records"] == phases["records"] > 50
    assert run["programs"] == phases["programs"] == run["featurised"]
    assert sum(run["outcomes"][CONVOLUTION_DEVICE].values()) == run["records"]
    for name in ("gunzip", "replay", "lower", "walk", "write", "program ids"):
        assert phases["seconds"][name] >= 0
    assert phases["seconds"]["walk"] > 0
    row = {"dataset": "few", "jobs_1": run, "jobs_2": run, "phases": phases}
    probe = {"records": 1, "peak_bytes": 1}
    result = {
        "load_before": 0.0,
        "datasets": [row],
        "memory": {"1x": probe, "10x": probe, "ratio": 1.0},
        "full_tenset_device": {"from": "few", "minutes_1_core": 1.0, "minutes_2_cores": 0.5},
    }
    machine = {"processor": "p", "cores": "2"}
    stamp = {"command": "python -m lab run extract-speed", "machine": machine}
    page = report_text(result, stamp)
    assert f"| few | {run['records']:,} | {run['programs']:,} |" in page
    assert "| valid |" in outcomes_text(row, stamp)
