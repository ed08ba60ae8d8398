"""Searches become one packed campaign, and the packed campaign a dataset."""

from __future__ import annotations

import tarfile
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tvm", reason="apache-tvm is not installed")

from cdmpp.datasets.cache import load_samples
from cdmpp.datasets.extraction.machine_code import read_machine_code
from cdmpp.errors import UsageError
from lab.experiments.pack_campaign import experiment
from tests.tvm_helper.search.search_runs import search
from tvm_helper.measure.journal import read_journal
from tvm_helper.measure.tables import write_tables

pytestmark = [pytest.mark.tvm, pytest.mark.exhaustive]

OTHER = "matmul:m=16,n=48,k=32"


def test_searches_become_one_dataset(tmp_path: Path) -> None:
    first, second, packed = tmp_path / "first", tmp_path / "second", tmp_path / "packed"
    search(first, trials=4, machine_code=True)
    search(second, trials=4, machine_code=True, task=(OTHER,))
    experiment((first, second, first), packed)
    with tarfile.open(packed / "campaign.tar.xz") as archive:
        archive.extractall(packed, filter="data")
    write_tables(packed)
    samples = load_samples(packed, cache_dir=tmp_path / "cache")
    measured = [
        entry
        for folder in (first, second)
        for entry in read_journal(folder)
        if entry["kind"] == "measured"
    ]
    names = [str(name) for name in samples.programs.program_id[samples.program]]
    assert sorted(names) == sorted(entry["program_id"] for entry in measured)
    assert len(samples.programs.tasks) == 2
    seconds = {entry["program_id"]: np.mean(entry["costs_s"]) for entry in measured}
    assert samples.latency_s == pytest.approx([seconds[name] for name in names], rel=1e-4)
    (code,) = read_machine_code(packed)
    assert sorted(code.columns) == sorted(names)


def test_tasks_of_judged_networks_stay_outside(tmp_path: Path) -> None:
    judged, other, packed = tmp_path / "judged" / "search", tmp_path / "other", tmp_path / "packed"
    search(judged, trials=4)
    search(other, trials=8, task=("matmul:m=32,n=32,k=32", OTHER))
    experiment((other,), packed, judged.parent)
    with tarfile.open(packed / "campaign.tar.xz") as archive:
        (name,) = (name for name in archive.getnames() if name.startswith("tasks/"))
    assert not (judged / name).exists()
    assert (other / name).exists()


def test_folders_of_several_devices_are_refused(tmp_path: Path) -> None:
    search(tmp_path / "first", trials=4)
    search(tmp_path / "second", trials=4, device="xeon-avx2-2c")
    with pytest.raises(UsageError, match="second: device is xeon-avx2-2c; expected that of the"):
        experiment((tmp_path / "first", tmp_path / "second"), tmp_path / "packed")
