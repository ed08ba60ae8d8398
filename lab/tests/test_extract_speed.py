"""The extraction benchmark runs, and reports the outcome of every record."""

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
    run = in_process("lab.experiments.extract_speed:extract_here", few, tmp_path / "out", 1)
    assert run["records"] > 50
    assert run["programs"] == run["featurised"]
    assert sum(run["outcomes"][CONVOLUTION_DEVICE].values()) == run["records"]
    row = {"jobs_1": run, "jobs_2": run}
    stamp = {"command": "python -m lab run extract-speed", "machine": {"processor": "p"}}
    assert f"| few | {run['records']:,} | {run['programs']:,} |" in report_text({"few": row})
    assert "| valid |" in outcomes_text("few", row, stamp)
