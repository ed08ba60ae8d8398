"""A short run of the fuzzer (`tests/fuzz/fuzz_readers.py` does the long one), and what it found."""

from __future__ import annotations

import importlib.util
import json
import time
from pathlib import Path
from typing import Any

import pytest

from cdmpp.datasets.tenset.flops import flop_count
from cdmpp.datasets.tenset.operator_name import operator_name
from cdmpp.datasets.tenset.record_line import RecordLineError, parse_record
from cdmpp.datasets.tenset.task_index import TaskIndex, load_tasks
from cdmpp.devices.device_file import read_device_file
from cdmpp.errors import DataError, DeviceError
from cdmpp.files.restricted_pickle import load_restricted
from cdmpp.programs.ansor.json_graph import JsonGraph
from tests.fuzz import fuzz_models, fuzz_names, fuzz_texts
from tests.fuzz.attack import page, run_campaign
from tests.fuzz.bombs import PICKLE_BOMBS
from tests.fuzz.fuzz_native import fuzz_native_lines
from tests.fuzz.fuzz_readers import (
    fuzz_extraction,
    fuzz_graphs,
    fuzz_lines,
    fuzz_other_lines,
    fuzz_pickles,
    seed_lines,
    small_pickles,
)
from tests.fuzz.outcome import Outcome

needs_tvm_helper = pytest.mark.skipif(
    importlib.util.find_spec("tvm_helper") is None, reason="tvm_helper is not installed"
)


@pytest.fixture(scope="module")
def lines(shipped: Path) -> list[str]:
    """Real record lines of two devices."""
    folders = [shipped / "measure_records" / label for label in ("epyc-avx2-1c", "xeon-avx512-2c")]
    return seed_lines([p for f in folders for p in sorted(f.iterdir())[:6]], per_file=5)


@pytest.fixture(scope="module")
def tasks(shipped: Path) -> TaskIndex:
    """The shipped tasks."""
    return load_tasks(shipped / "network_info")


@pytest.mark.slow
def test_mutated_lines(lines: list[str], tmp_path: Path) -> None:
    outcome = fuzz_lines(lines, tmp_path, count=500, seed=1)
    assert outcome.is_clean, outcome.to_json()
    assert outcome.total == 500
    assert outcome.accepted > 25
    assert len(outcome.rejected) > 10


@pytest.mark.exhaustive
@pytest.mark.slow
@needs_tvm_helper
def test_mutated_lines_in_the_native_code(lines: list[str], tasks: TaskIndex) -> None:
    outcome = fuzz_native_lines(lines, tasks, count=500, seed=1)
    assert outcome.is_clean, outcome.to_json()
    assert outcome.total == 500
    assert outcome.accepted > 25
    assert any(reason.startswith("no record: ") for reason in outcome.rejected)
    assert any(reason.startswith("program: ") for reason in outcome.rejected)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"CI", ', '"CI", 1e999, '),
        ('"CI", ', '"CI", ' + "[" * 17 + "]" * 17 + ", "),
        ('[["[', '[["\\ud800['),
        ('[["[', '[["\\uDFFF['),
    ],
)
def test_lines_of_odd_numbers_and_texts_are_refused(lines: list[str], old: str, new: str) -> None:
    line = next(line for line in lines if '"CI", ' in line)
    parse_record(line)
    with pytest.raises(RecordLineError):
        parse_record(line.replace(old, new, 1))


def test_mutated_lines_of_autotvm_and_metaschedule() -> None:
    outcome = fuzz_other_lines(3000, seed=1)
    assert outcome.is_clean, outcome.to_json()
    assert outcome.total == 3000
    assert outcome.accepted > 100
    assert len(outcome.rejected) > 10


def test_mutated_pickles(tmp_path: Path) -> None:
    outcome = fuzz_pickles(small_pickles(), tmp_path, count=150, seed=1)
    assert outcome.is_clean, outcome.to_json()
    assert outcome.total == 150
    refused = (n for text, n in outcome.rejected.items() if text.startswith("rejected"))
    assert sum(refused) > 10
    assert outcome.accepted > 0


@needs_tvm_helper
def test_mutated_computations(tasks: TaskIndex) -> None:
    outcome = fuzz_graphs(tasks, count=400, seed=1)
    assert outcome.is_clean, outcome.to_json()
    assert outcome.accepted > 50


@needs_tvm_helper
@pytest.mark.slow
def test_mutated_lines_are_extracted(lines: list[str], tmp_path: Path) -> None:
    outcome = fuzz_extraction(lines, tmp_path, count=300, seed=1)
    assert outcome.is_clean, outcome.to_json()
    assert any(reason.startswith("program: replay") for reason in outcome.rejected)


@pytest.mark.slow
@needs_tvm_helper
@pytest.mark.parametrize(
    ("cases", "count"),
    [
        (fuzz_texts.configurations, 250), (fuzz_texts.device_files, 150),
        (fuzz_texts.profiles, 200), (fuzz_texts.archives, 30), (fuzz_models.datasets, 60),
        (fuzz_models.tuning_databases, 150), (fuzz_names.names, 100),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)  # fmt: skip
@pytest.mark.filterwarnings("ignore")  # of numbers that are nonsense
def test_mutated_files(cases: Any, count: int, tmp_path: Path) -> None:
    outcome = fuzz_texts.fuzz(cases, tmp_path, count=count, seed=1)
    assert outcome.is_clean, outcome.to_json()
    assert outcome.total == count
    assert outcome.accepted > 0
    assert len(outcome.rejected) > 2 or cases is fuzz_names.names


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.training
@needs_tvm_helper
@pytest.mark.filterwarnings("ignore")
def test_mutated_run_folders(tmp_path: Path) -> None:
    outcome = fuzz_texts.fuzz(fuzz_models.run_folders, tmp_path, count=40, seed=1)
    assert outcome.is_clean, outcome.to_json()
    assert outcome.accepted > 0
    assert len(outcome.rejected) > 5


@pytest.mark.slow
@pytest.mark.tvm
def test_mutated_scripts_and_networks(tmp_path: Path) -> None:
    outcome = fuzz_texts.fuzz(fuzz_models.scripts, tmp_path, count=100, seed=1, bound_s=60)
    outcome.add(fuzz_texts.fuzz(fuzz_models.networks, tmp_path, count=20, seed=1, bound_s=60))
    assert outcome.is_clean, outcome.to_json()
    assert outcome.accepted > 0
    assert len(outcome.rejected) > 5


@pytest.mark.parametrize("number", range(len(PICKLE_BOMBS)))
def test_a_pickle_made_by_hand_is_quick_to_read_or_to_refuse(number: int, tmp_path: Path) -> None:
    path = tmp_path / "a.pkl"
    path.write_bytes(PICKLE_BOMBS[number])
    outcome = Outcome()
    outcome.run(60.0, PICKLE_BOMBS[number], lambda: load_restricted(path) and None)
    assert outcome.is_clean, outcome.to_json()


def test_a_deep_device_file_does_not_end_the_process(tmp_path: Path) -> None:
    for text in ("[" * 600_000, "- " * 600_000, *fuzz_texts.YAML_BOMBS):
        path = tmp_path / "device.yaml"
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        with pytest.raises(DeviceError):
            read_device_file(path)


@pytest.mark.exhaustive
def test_the_campaigns_of_a_whole_attack_go_on_where_they_were_stopped(tmp_path: Path) -> None:
    found = run_campaign("other lines", 40, 3, tmp_path)
    assert (found["cases"], found["crashes"], found["seeds"]) == (40, {}, [3, 3])
    (part,) = tmp_path.iterdir()
    part.write_text(part.read_text().replace('"hangs": 0', '"hangs": 7'))
    assert run_campaign("other lines", 40, 3, tmp_path)["hangs"] == 7  # it was not run again
    text = page({"other lines": found}, "make attack", "x")
    assert "| other lines | 40 | 100,000 |" in text


def test_the_fuzzer_sees_crashes_hangs_and_globals(tmp_path: Path) -> None:
    outcome = Outcome()
    outcome.run(1.0, b"x", lambda: [][1])
    outcome.run(0.05, b"x", lambda: time.sleep(5))  # type: ignore[func-returns-value]
    outcome.run(1.0, b"x", lambda: "reason")
    outcome.run(1.0, b"x", lambda: None)
    assert (outcome.hangs, outcome.accepted, outcome.total) == (1, 1, 4)
    assert outcome.rejected == {"reason": 1}
    assert next(iter(outcome.crashes)).startswith("IndexError at test_fuzz.py")
    assert not outcome.is_clean


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ([["SP", json.loads("[" * 300 + "]" * 300)]], "malformed step"),
        ([["SP", {"a": float("nan")}]], "malformed step"),
        ([["SP", [[float("inf")]]]], "malformed step"),
    ],
)
def test_steps_that_crashed_the_reader(lines: list[str], steps: list[object], reason: str) -> None:
    value = json.loads(lines[0])
    value["i"][1][1] = steps
    with pytest.raises(RecordLineError) as caught:
        parse_record(json.dumps(value))
    assert caught.value.reason == reason


@pytest.mark.parametrize("place", [0, 1])
def test_half_a_character_in_a_name(lines: list[str], place: int) -> None:
    value = json.loads(lines[0])
    value["i"][0][place] += "\ud800"
    if place == 0:
        value["i"][0][place] = value["i"][0][place].replace("[", "", 1)
    with pytest.raises(RecordLineError, match="an incomplete UTF-16 character"):
        parse_record(json.dumps(value))


@pytest.mark.parametrize(
    ("number", "change"),
    [
        (1, {"data": [float("inf")]}),
        (1, {"data": [[]]}),
        (2, {"attrs": -1}),
        (4, {"attrs": {"value": ""}}),
    ],
)
def test_graphs_that_crashed_the_reader(
    tasks: TaskIndex, number: int, change: dict[str, object]
) -> None:
    text = next(iter(tasks.tasks.values())).dag_json
    value = json.loads(text)
    value["nodes"][number].update(change)

    def read() -> None:
        graph = JsonGraph(json.dumps(value))
        operator_name(graph)
        flop_count(graph)
        graph.integer(number)

    with pytest.raises(DataError):
        read()


def test_a_root_that_is_no_number() -> None:
    for root in ("-Infinity", "[[0]]", '"{}"'):
        with pytest.raises(DataError):
            JsonGraph(f'{{"root": {root}, "nodes": []}}')
