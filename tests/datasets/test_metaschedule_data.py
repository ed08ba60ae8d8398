"""The measured MetaSchedule programs that come with the repository."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from cdmpp.datasets.cache import load_samples
from cdmpp.datasets.extraction.machine_code import read_machine_code
from cdmpp.errors import DataError
from cdmpp.predict.machine_code.cold_memory import read_in_network
from lab.experiments.search import TASKS
from tests.paths import ROOT

#: Number of searched programs whose machine code is kept: the fastest ones.
_FASTEST = {"metaschedule-cpu-searched": 195, "metaschedule-cpu-searched-icelake": 62}

#: Least share of programs with machine code, of sets with loops as relax leaves them.
_LEAST_CODE = {"metaschedule-cpu-icelake": 0.96, "metaschedule-cpu-zen4-untuned": 0.94}


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "device", "programs", "tasks"),
    [
        ("metaschedule-cpu", "epyc-avx512-1c", 1743, 32),
        ("metaschedule-cpu-found", "epyc-avx512-1c", 1377, 173),
        ("metaschedule-a100", "a100", 9203, 13),
    ],
)
def test_they_load_without_an_extraction(
    name: str, device: str, programs: int, tasks: int, tmp_path: Path
) -> None:
    samples = load_samples(ROOT / "data" / name, cache_dir=tmp_path)
    assert len(samples) == programs
    assert [spec.name for spec in samples.devices] == [device]
    assert len(np.unique(samples.programs.task_id)) == tasks


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "programs", "tasks"),
    [
        pytest.param("metaschedule-cpu-networks", 2172, 1193, marks=pytest.mark.exhaustive),
        pytest.param("metaschedule-cpu-large", 1368, 761, marks=pytest.mark.exhaustive),
        pytest.param("metaschedule-cpu-batched", 1245, 671, marks=pytest.mark.exhaustive),
        pytest.param("metaschedule-cpu-broad", 3558, 3558, marks=pytest.mark.exhaustive),
        pytest.param("metaschedule-cpu-broad2", 4859, 4859, marks=pytest.mark.exhaustive),
        ("metaschedule-cpu-chosen", 998, 499),
        pytest.param("metaschedule-cpu-searched", 5844, 195, marks=pytest.mark.exhaustive),
        pytest.param("metaschedule-cpu-wide", 2033, 174, marks=pytest.mark.exhaustive),
        pytest.param("metaschedule-cpu-wider", 5429, 4190, marks=pytest.mark.exhaustive),
        pytest.param("metaschedule-cpu-opened", 2325, 2312, marks=pytest.mark.exhaustive),
        ("pasted-cpu-zen4-opened", 757, 746),
        ("pasted-cpu-zen4-opened-more", 427, 427),
        pytest.param("metaschedule-cpu-opened-more", 1100, 1100, marks=pytest.mark.exhaustive),
        ("metaschedule-cpu-icelake-kinds", 2249, 2249),
        pytest.param("metaschedule-cpu-icelake", 5536, 3229, marks=pytest.mark.exhaustive),
        pytest.param("sealed3-cpu", 499, 499, marks=pytest.mark.exhaustive),
        pytest.param("sealed9-cpu", 599, 599, marks=pytest.mark.exhaustive),
        pytest.param("metaschedule-cpu-kinds", 1824, 1824, marks=pytest.mark.exhaustive),
        pytest.param("metaschedule-cpu-kinds-more", 818, 818, marks=pytest.mark.exhaustive),
        pytest.param("metaschedule-cpu-drawn", 6004, 3553, marks=pytest.mark.exhaustive),
        pytest.param("metaschedule-cpu-zen3", 3481, 3481, marks=pytest.mark.exhaustive),
        pytest.param("metaschedule-cpu-zen4", 2822, 2822, marks=pytest.mark.exhaustive),
        pytest.param("metaschedule-cpu-zen4-more", 3735, 3735, marks=pytest.mark.exhaustive),
        pytest.param("metaschedule-cpu-zen4-third", 3456, 3456, marks=pytest.mark.exhaustive),
        pytest.param("metaschedule-cpu-zen4-fourth", 3491, 3491, marks=pytest.mark.exhaustive),
        pytest.param("metaschedule-cpu-zen4-fifth", 2603, 2603, marks=pytest.mark.exhaustive),
        pytest.param("metaschedule-cpu-zen4-untuned", 4760, 4760, marks=pytest.mark.exhaustive),
        pytest.param("pasted-cpu-sealed", 198, 198, marks=pytest.mark.exhaustive),
        pytest.param("pasted-cpu-zen3", 3355, 3355, marks=pytest.mark.exhaustive),
        pytest.param("pasted-cpu-sealed9", 294, 294, marks=pytest.mark.exhaustive),
        pytest.param("pasted-cpu-zen4", 3492, 3492, marks=pytest.mark.exhaustive),
        pytest.param("pasted-cpu-zen4-more", 3501, 3501, marks=pytest.mark.exhaustive),
        pytest.param("pasted-cpu-zen4-registers", 2857, 2857, marks=pytest.mark.exhaustive),
        pytest.param("pasted-cpu-zen4-parallel", 1980, 1980, marks=pytest.mark.exhaustive),
        pytest.param("pasted-cpu-zen4-strides", 3193, 3193, marks=pytest.mark.exhaustive),
        ("zen5-kernels", 488, 268),
        ("icelake-kernels", 400, 400),
        ("icelake-pasted", 249, 249),
        pytest.param("icelake-convolutions", 498, 498, marks=pytest.mark.exhaustive),
        ("metaschedule-cpu-searched-icelake", 1646, 101),
        ("zen5-records", 3659, 307),
    ],
)
def test_packed_campaigns_have_the_machine_code_of_their_programs(
    name: str, programs: int, tasks: int
) -> None:
    entries = _journal(name)
    measured = [e for e in entries if e["kind"] == "measured" and not e["error_code"]]
    assert len(measured) == programs
    assert len({entry["task"] for entry in measured}) == tasks
    tables = read_machine_code(ROOT / "data" / name)
    assert len(tables) == (name != "metaschedule-cpu-wide")
    for code in tables:
        wanted = {entry["program_id"] for entry in measured}
        if name in _FASTEST:
            assert code.columns.keys() <= wanted
            assert len(code.columns) == _FASTEST[name]
        elif name.endswith(
            (
                "wider",
                "broad2",
                "zen3",
                "zen4",
                "more",
                "third",
                "fourth",
                "fifth",
                "opened",
                "sealed",
                "pasted-cpu-sealed9",
                "sealed3-cpu",
                "icelake-pasted",
                "icelake-kinds",
                "icelake",
                "untuned",
            )
        ):
            # Some only call memcpy.
            assert code.columns.keys() <= wanted
            assert len(code.columns) > _LEAST_CODE.get(name, 0.97) * len(wanted)
        else:
            assert code.columns.keys() == wanted


@pytest.mark.parametrize(
    ("name", "least", "rounds"),
    [("metaschedule-cpu-searched", 150, 3), ("metaschedule-cpu-searched-icelake", 80, 2)],
)
def test_the_fastest_searched_programs_were_timed_in_their_networks(
    name: str, least: int, rounds: int
) -> None:
    kernels = read_in_network(ROOT / "data" / name)
    measured = {one.workload_key for one in kernels}
    assert len(measured) > least
    assert len(kernels) >= rounds * len(measured)
    assert all(one.latency_s > 0 and one.argument_bytes > 0 for one in kernels)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.tvm
def test_tables_come_from_a_packed_campaign(tmp_path: Path) -> None:
    pytest.importorskip("tvm", reason="apache-tvm is not installed")
    from tvm_helper.measure.tables import write_tables

    name = "metaschedule-cpu-chosen"
    with tarfile.open(ROOT / "data" / name / "campaign.tar.xz") as archive:
        archive.extractall(tmp_path / "out", filter="data")
    journal = tmp_path / "out" / "journal.jsonl"
    entries = [json.loads(line) for line in journal.read_text("utf-8").splitlines()]
    few = [entry for entry in entries if entry["kind"] == "measured"][:12]
    tasks = {entry["task"] for entry in few}
    drawn = [entry for entry in entries if entry["kind"] == "drawn" and entry["task"] in tasks]
    journal.write_text("".join(f"{json.dumps(entry)}\n" for entry in [*drawn, *few]), "utf-8")
    write_tables(tmp_path / "out")
    samples = load_samples(tmp_path / "out", cache_dir=tmp_path / "cache")
    assert len(samples) == 12
    (code,) = read_machine_code(ROOT / "data" / name)
    assert set(samples.programs.program_id) <= set(code.columns)


def test_a_packed_campaign_says_how_its_tables_are_made(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="it is packed; run: make tables, then use cache/data/meta"):
        load_samples(ROOT / "data" / "metaschedule-cpu-chosen", cache_dir=tmp_path)


def _journal(name: str) -> list[dict[str, Any]]:
    with tarfile.open(ROOT / "data" / name / "campaign.tar.xz") as archive:
        stream = archive.extractfile("journal.jsonl")
        assert stream is not None
        return [json.loads(line) for line in stream]


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
