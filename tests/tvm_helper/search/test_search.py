"""Searches whose trials are measured by a worker without TVM: resuming, faults, the folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.paths import ROOT

pytest.importorskip("tvm", reason="apache-tvm is not installed")

from cdmpp.cli.search.text import summary_text
from cdmpp.datasets.extraction.machine_code import read_machine_code
from cdmpp.errors import DataError, DeviceError, UsageError
from cdmpp.files.journal import folder_lock
from tests.tvm_helper.search.fake_worker import TUNED_S, UNTUNED_S
from tests.tvm_helper.search.search_runs import interrupted, plan, search
from tvm_helper.measure.journal import read_journal
from tvm_helper.search import run as search_module
from tvm_helper.search.options import SearchOptions
from tvm_helper.search.session import SearchSession
from tvm_helper.search.summary import search_summary

pytestmark = pytest.mark.tvm

RUNS = "tests.tvm_helper.search.search_runs"
RECORDS = "database_tuning_record.json"


def plan_deeds(monkeypatch: pytest.MonkeyPatch, **deeds: str) -> None:
    """Trials by round and place (`0-3`) do what is said."""
    named = {name.replace("_", "-").lstrip("t"): deed for name, deed in deeds.items()}
    monkeypatch.setenv("CDMPP_FAKE", json.dumps(named))


def trials(folder: Path) -> list[dict[str, Any]]:
    return [entry for entry in read_journal(folder) if entry["kind"] == "measured"]


def database_lines(folder: Path) -> list[Any]:
    return [json.loads(line) for line in (folder / RECORDS).read_text().splitlines()]


class Told:
    """A cost model that remembers what it was told."""

    def __init__(self) -> None:
        self.costs_s: list[list[float | None]] = []
        self._chance = np.random.default_rng(0)

    def predict(self, context: Any, candidates: list[Any]) -> Any:
        return self._chance.random(len(candidates))

    def update(self, context: Any, candidates: list[Any], results: list[Any]) -> None:
        self.costs_s.append([float(r.run_secs[0]) if r.run_secs else None for r in results])


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Told]:
    made: list[Told] = []

    def make(*_: Any) -> Told:
        made.append(Told())
        return made[-1]

    monkeypatch.setattr(search_module, "_cost_model", make)
    return made


def test_a_search_and_its_summary(tmp_path: Path) -> None:
    summary = search(tmp_path / "out")
    assert (summary["trials"], summary["failed"], summary["state"]) == (8, 0, "finished")
    (task,) = summary["tasks"]
    assert task["shapes"] == ["32x32", "32x32", "32x32"]
    assert (task["tuned_s"], task["untuned_s"]) == pytest.approx((TUNED_S, UNTUNED_S))
    assert task["speedup"] == pytest.approx(2.0)
    assert len(task["best_by_trial_s"]) == 8
    assert summary["seconds"]["wall"] >= summary["seconds"]["draw"] > 0
    out = tmp_path / "out"
    assert (out / "module.so").is_file()
    assert "T.prim_func" in (out / "schedules" / f"{task['symbol']}.py").read_text()
    assert json.loads((out / "summary.json").read_text()) == summary == search_summary(out)
    assert sorted(path.name for path in out.glob("*.tmp")) == []


def test_a_second_run_has_nothing_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = search(tmp_path / "out", trials=4)
    monkeypatch.setattr(search_module, "_search", None)
    monkeypatch.setattr(search_module, "make_final", None)
    assert search(tmp_path / "out", trials=4) == first


def test_machine_code_of_what_was_measured_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_deeds(monkeypatch, t0_1="build-fail", t0_2="run-fail")
    for number in (4, 8):  # the second run adds to the first one's
        search(tmp_path / "out", trials=number, machine_code=True)
        (table,) = read_machine_code(tmp_path / "out")
        good = {entry["program_id"] for entry in trials(tmp_path / "out") if entry["costs_s"]}
        assert len(good) == number - 2
        assert table.columns.keys() == good
    fixed = json.loads((tmp_path / "out" / "search.json").read_text())["fixed"]
    assert table.targets == {fixed["device"]: fixed["target"]}


def test_a_search_that_ends_within_a_round_keeps_its_machine_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_deeds(monkeypatch, t0_2="run-full")
    with pytest.raises(DataError, match="2 measured programs are kept"):
        search(tmp_path / "out", machine_code=True)
    (table,) = read_machine_code(tmp_path / "out")
    assert table.columns.keys() == {entry["program_id"] for entry in trials(tmp_path / "out")}
    assert len(table.columns) == 2


def test_machine_code_is_that_of_cpus() -> None:
    with pytest.raises(UsageError, match="t4 is compiled for cuda; expected a CPU"):
        plan(device="t4", machine_code=True)


def test_more_trials_go_on_where_scheduler_and_model_were(tmp_path: Path, told: list[Told]) -> None:
    tasks = ("matmul:m=32,n=32,k=32", "softmax:m=16,n=32")
    search(tmp_path / "out", task=tasks, trials=8, trials_per_round=2)
    before = trials(tmp_path / "out")
    search(tmp_path / "out", task=tasks, trials=12, trials_per_round=2)
    after = trials(tmp_path / "out")
    assert after[:8] == before
    assert len(after) == 12
    assert len({entry["program_id"] for entry in after}) == 12, "nothing is measured twice"
    first, second = told
    assert second.costs_s[: len(first.costs_s)] == first.costs_s, "the model learns it again"
    assert [entry["record"] for entry in after] == database_lines(tmp_path / "out")


@pytest.mark.exhaustive
def test_failures_are_named_and_the_search_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: list[Told]
) -> None:
    plan_deeds(monkeypatch, t0_0="build-loop", t0_1="run-loop", t0_2="run-crash", t0_3="run-killed",
               t1_0="build-crash", t1_1="run-fail")  # fmt: skip
    summary = search(tmp_path / "out", run_timeout_s=1.0, build_timeout_s=1.0)
    found = {kind["name"]: (kind["count"], kind["first_text"]) for kind in summary["failures"]}
    assert found == {
        "build timeout": (1, "killed after 1 s"),
        "run timeout": (1, "killed after 1 s"),
        "runtime error (device)": (2, "killed by SIGSEGV"),
        "unknown error": (1, "killed by SIGKILL"),
        "compile error (host)": (1, "killed by SIGSEGV"),
    }
    assert (summary["trials"], summary["failed"], summary["state"]) == (8, 6, "finished")
    assert [cost for batch in told[0].costs_s for cost in batch if cost] == [1e-3, 1e-3]
    failed = [line for line in database_lines(tmp_path / "out") if line[1][1] == [1e10]]
    assert len(failed) == 6, "as TVM writes them"


def test_a_search_in_which_everything_fails_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_deeds(monkeypatch, **{f"t0_{place}": "run-fail" for place in range(4)})
    with pytest.raises(DeviceError, match=r"3 consecutive failures .*misaligned tensor"):
        search(tmp_path / "out", stop_after_failures=3)
    assert len(trials(tmp_path / "out")) == 3
    plan_deeds(monkeypatch)
    assert search(tmp_path / "out", stop_after_failures=3)["trials"] == 8


def test_no_measured_program_is_no_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan_deeds(monkeypatch, **{f"t0_{place}": "run-fail" for place in range(4)})
    with pytest.raises(DataError, match=r"no program could be measured \(4 runtime error"):
        search(tmp_path / "out", trials=4)


def drafts(folder: Path) -> list[tuple[int, int]]:
    """Candidates that were drafted and built, a pair a round."""
    lines = read_journal(folder)
    return [(line["drafted"], line["built"]) for line in lines if line["kind"] == "drafted"]


def test_of_a_draft_the_best_that_are_built_are_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: list[Told]
) -> None:
    # Of eight drafts the last are run first; one does not build, one fails when it is run.
    plan_deeds(monkeypatch, t0_0="run-fail", t0_6="build-fail", t0_7="run-fail")
    out = tmp_path / "out"
    summary = search(out, verify=2, population=16, trials=6)
    assert (summary["trials"], summary["failed"], summary["verify"]) == (6, 1, 2)
    assert [entry["error_code"] for entry in trials(out)] == [4, 0, 0, 0, 0, 0]
    assert [entry["round"] for entry in trials(out)] == [0, 0, 0, 0, 1, 1]
    assert drafts(out) == [(8, 7), (4, 4)], "two trials are left for the second round"
    assert (summary["drafted"], summary["built"]) == (12, 11)
    assert summary["seconds"]["verify"] > 0
    assert [len(batch) for batch in told[0].costs_s] == [4, 2], "of the others nothing is told"
    assert len(database_lines(out)) == 6
    assert read_machine_code(out) == (), "which was not asked for"
    assert "12 candidates were drafted, 11 built, 6 taken as trials" in summary_text(summary)
    listening = summary_text({**summary, "xgb_shares": [0.0, 0.7]})
    assert (
        "XGB model was mixed into the scores after 1 of 2 rounds, current weight 0.70" in listening
    )


def test_drafts_that_do_not_build_are_trials_where_nothing_else_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_deeds(monkeypatch, **{f"t0_{place}": "build-fail" for place in range(1, 8)})
    out = tmp_path / "out"
    summary = search(out, verify=2, population=16, trials=4)
    assert (summary["trials"], summary["failed"], drafts(out)) == (4, 3, [(8, 1)])
    with pytest.raises(DeviceError, match="3 consecutive failures"):
        search(tmp_path / "other", verify=2, population=16, trials=4, stop_after_failures=3)


def test_what_was_left_over_is_run_when_tvm_proposes_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    candidates = SearchSession.candidates
    drawn: list[Any] = []

    def once(self: SearchSession, number: int, context: Any, draw: Any) -> Any:
        def draw_once() -> Any:
            drawn.append(None if drawn else draw())
            return drawn[-1]

        return candidates(self, number, context, draw_once)

    monkeypatch.setattr(SearchSession, "candidates", once)
    plan_deeds(monkeypatch, t0_7="build-fail")
    out = tmp_path / "out"
    summary = search(out, trials_per_round=2, verify=4, trials=64)
    assert (summary["trials"], summary["state"]) == (7, "nothing new to measure")
    assert [entry["round"] for entry in trials(out)] == [0, 0, 1, 1, 2, 2, 3]
    assert drafts(out) == [(8, 7)]


def test_a_draft_that_was_cut_off_goes_on_where_scheduler_and_model_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: list[Told]
) -> None:
    out = tmp_path / "out"
    plan_deeds(monkeypatch, t1_6="run-full")  # the second one of the second round
    with pytest.raises(DataError, match="5 measured programs are kept"):
        search(out, verify=2, population=16, trials=8)
    before = trials(out)
    plan_deeds(monkeypatch)
    summary = search(out, verify=2, population=16, trials=8)
    after = trials(out)
    assert after[:5] == before
    assert [entry["round"] for entry in after] == [0, 0, 0, 0, 1, 2, 2, 2]
    assert len({entry["program_id"] for entry in after}) == 8
    assert [len(batch) for batch in told[1].costs_s] == [4, 1, 3]
    assert told[1].costs_s[0] == told[0].costs_s[0]
    assert drafts(out) == [(8, 8), (8, 8), (6, 6)]
    assert (summary["drafted"], summary["built"], summary["trials"]) == (22, 22, 8)


@pytest.mark.slow
@pytest.mark.parametrize("verify", [pytest.param(1, marks=pytest.mark.exhaustive), 2])
def test_kill_9_loses_nothing(verify: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    monkeypatch.setenv("CDMPP_FAKE", json.dumps({"pause": "0.7"}))
    process = subprocess.Popen(
        [sys.executable, "-m", RUNS, "search", str(out), str(verify)], cwd=ROOT
    )
    deadline = time.monotonic() + 300
    while not out.is_dir() or len(trials(out)) < 2:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = trials(out)
    assert 2 <= len(before) < 8
    with (out / RECORDS).open("a") as stream:
        stream.write('[0, [[["GetSBl')
    with (out / "journal.jsonl").open("a") as stream:
        stream.write('{"kind": "meas')
    monkeypatch.setenv("CDMPP_FAKE", "{}")
    summary = search(out, run_timeout_s=600.0, verify=verify)
    after = trials(out)
    assert summary["trials"] == len(after) == 8
    assert after[: len(before)] == before
    assert len({entry["program_id"] for entry in after}) == 8
    lines = database_lines(out)
    assert sorted(map(str, lines)) == sorted(str(entry["record"]) for entry in after)
    assert not list(out.glob("*.tmp"))


def test_a_lost_database_is_made_anew_from_the_journal(tmp_path: Path) -> None:
    out = tmp_path / "out"
    search(out, trials=4)
    lines = database_lines(out)
    for name in (RECORDS, "database_workload.json"):
        (out / name).unlink()
    search(out, trials=8)
    assert database_lines(out)[:4] == lines


def test_a_trial_that_only_the_database_has_is_dropped_from_it(tmp_path: Path) -> None:
    """Was left there by a kill between database and journal, and was measured a second time."""
    out = tmp_path / "out"
    search(out, trials=4)
    journal = out / "journal.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    kinds = [json.loads(line)["kind"] for line in lines]
    last = max(place for place, kind in enumerate(kinds) if kind == "measured")
    assert kinds[last - 1] == "begun"
    journal.write_text("".join(lines[:last]))
    own = json.dumps([0, "what the user has put there"]) + "\n"
    with (out / RECORDS).open("a") as stream:
        stream.write(own)
    with pytest.raises(DataError, match="cannot be read"):  # TVM does not know such a line
        search(out, trials=8)
    assert (out / RECORDS).read_text().endswith(own)
    kept = (out / RECORDS).read_text().removesuffix(own)
    assert len(kept.splitlines()) == 3
    (out / RECORDS).write_text(kept)
    assert search(out, trials=8)["trials"] == 8
    found = sorted(json.dumps(entry["record"]) for entry in trials(out))
    assert sorted(map(json.dumps, database_lines(out))) == found


def test_two_searches_on_one_folder(tmp_path: Path) -> None:
    out = tmp_path / "out"
    search(out, trials=4)
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    with (
        folder_lock(out),
        pytest.raises(UsageError, match=rf"running in this folder \(process {os.getpid()}"),
    ):
        search(out, trials=8)
    after = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    assert {**after, ".lock": b""} == {**before, ".lock": b""}
    assert search(out, trials=8)["trials"] == 8


def test_another_search_does_not_fit_the_folder(tmp_path: Path) -> None:
    search(tmp_path / "out", trials=4)
    with pytest.raises(UsageError, match="seed: 0 there, 1 now"):
        search(tmp_path / "out", trials=4, seed=1)
    with pytest.raises(UsageError, match="other settings"):
        search(tmp_path / "out", trials=4, task=("softmax:m=16,n=32",))


@pytest.mark.exhaustive
def test_a_full_disk(tmp_path: Path) -> None:
    disk, keep = tmp_path / "disk", tmp_path / "keep"
    disk.mkdir()
    probe = subprocess.run(
        ["unshare", "-rm", "sh", "-c", f"mount -t tmpfs -o size=1m none {disk}"],
        capture_output=True, text=True,
    )  # fmt: skip
    if probe.returncode:
        pytest.skip(f"cannot mount a small disk here: {probe.stderr.strip()}")
    script = (
        f"mount -t tmpfs -o size=2m none {disk} && exec {sys.executable} -m {RUNS} small-disk "
        f"{disk} {keep}"
    )
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    first, error, last = done.stdout.splitlines()
    assert (first, last) == ("3", "8")
    assert error.startswith("DataError: ")
    assert "the disk is full" in error
    assert "measured programs are kept" in error
    assert len({entry["program_id"] for entry in trials(keep)}) == 8


def test_too_little_space_for_a_round_stops_before_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the disk is full; 0 measured programs are kept"):
        search(tmp_path / "out", least_free_bytes=1 << 60)


def test_the_wall_time_ends_a_search(tmp_path: Path) -> None:
    search(tmp_path / "out", trials=4)
    summary = search(tmp_path / "out", trials=1000, minutes=0.02)
    assert summary["state"] == "out of time"
    assert 4 <= summary["trials"] < 1000
    assert summary["tasks"][0]["tuned_s"] is not None


def test_stop_early_follows_the_advice(tmp_path: Path) -> None:
    # All programs of the worker take the same time: nothing is gained after the first.
    summary = search(tmp_path / "out", trials=80, trials_per_round=8, stop_early=True)
    assert summary["state"] == "stopped early"
    assert 32 < summary["trials"] <= 48
    assert "stop after" in summary["advice"]
    assert summary["gain"] == 0.0


def test_a_space_that_is_exhausted_ends_the_search(tmp_path: Path) -> None:
    summary = search(tmp_path / "out", task=("relu:m=4,n=4",), trials=64)
    assert summary["state"] == "nothing new to measure"
    assert 1 <= summary["trials"] < 64


def test_tasks_come_by_their_expected_share() -> None:
    tasks = ("softmax:m=4,n=4", "matmul:m=64,n=64,k=64")
    found = plan(task=tasks)
    assert [task.task.operator for task in found.tasks] == ["dense", "softmax"]
    assert "no-such-model" in found.model_note
    assert [task.predicted_s for task in found.tasks] == [None, None]
    assert isinstance(found.options, SearchOptions)


@pytest.mark.parametrize("stage", ["drawing", "measuring"])
def test_an_interrupt_keeps_what_was_measured(
    stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    plan_deeds(monkeypatch, pause="0.1")
    assert interrupted(out, stage)
    kept = trials(out)
    assert 4 <= len(kept) < 8
    monkeypatch.setenv("CDMPP_FAKE", "{}")
    search(out, run_timeout_s=600.0)
    assert trials(out)[: len(kept)] == kept
    assert len(trials(out)) == 8
