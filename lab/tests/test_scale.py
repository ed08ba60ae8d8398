"""The scale experiment makes records of new programs and tasks; the times of its steps add up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cdmpp.datasets.read_report import ReadReport
from cdmpp.datasets.tenset.record_file import read_records
from cdmpp.datasets.tenset.task_index import load_tasks
from lab.experiments import scale
from lab.experiments.scale import DEVICE, exponent, make_records, report_text, summed


def test_records_are_distinct_programs_of_known_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = tmp_path / "few"
    for part in ("network_info", f"measure_records/{DEVICE}"):
        paths = sorted((scale.SHIPPED / part).iterdir())
        (sources / part).mkdir(parents=True)
        for path in paths if part == "network_info" else paths[:2]:
            if part != "network_info" or "resnet" in path.name or "bert" in path.name:
                (sources / part / path.name).symlink_to(path)
    monkeypatch.setattr(scale, "SHIPPED", sources)
    make_records(tmp_path / "out", records=200, tasks=3)
    report, keys, programs = ReadReport(), set(), set()
    for path in (tmp_path / "out" / "measure_records" / DEVICE).iterdir():
        for record in read_records(path, report):
            keys.add(record.workload_key)
            programs.add((record.workload_key, record.schedule))
    assert (report.records, report.skipped_total) == (200, 0)
    assert len(keys) == 3
    assert len(programs) > 150
    shipped = {key for key, _ in load_tasks(sources / "network_info").tasks}
    made = {key for key, _ in load_tasks(tmp_path / "out" / "network_info").tasks}
    assert shipped < made
    assert len(made) == 2 * len(shipped)


def _steps(cpu_s: float) -> dict[str, Any]:
    lines = ["0\t0\trest", f"1\t{cpu_s}\ttrain an epoch", f"3\t{2 * cpu_s}\tend"]
    return summed(lines, [(0.5, 10, 20), (2.0, 30, 40), (2.5, 25, 60), (9.0, 5, 5)])


def test_time_and_memory_go_to_the_step_that_was_on() -> None:
    steps = _steps(4.0)
    assert steps["rest"] == {"wall_s": 1.0, "cpu_s": 4.0, "anonymous": 10, "resident": 20}
    assert steps["train an epoch"]["anonymous"] == 30
    assert steps["whole"]["resident"] == 60
    assert exponent((10, 3.0), (100, 300.0)) == pytest.approx(2.0)


def test_the_page_has_a_row_a_step() -> None:
    sizes = []
    for records, cpu_s in ((1000, 4.0), (10_000, 40.0)):
        steps = _steps(cpu_s)
        steps["whole"]["cpu_s"] = 2 * cpu_s
        extract = {"programs": records, "featurised": records, "valid": records, "steps": steps}
        sizes.append({"records": records, "extract": extract, "train": {"steps": steps}})
    page = report_text({"sizes": sizes, "walks": []})
    assert "| train an epoch | 4.0 | 0 | 40.0 | 0 | 1.00 | 11.11 |\n" in page
