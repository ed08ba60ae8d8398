"""Campaigns: what is measured is what was asked for, and no fault costs more than its program."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdmpp.cli.main import main
from cdmpp.datasets.extraction.extracted import read_table
from cdmpp.datasets.read_report import ReadReport
from cdmpp.datasets.tenset.record_file import read_records
from cdmpp.errors import DataError, DeviceError, UsageError
from cdmpp.files.journal import folder_lock
from cdmpp.processes.campaign import CampaignProgress
from cdmpp.processes.serve import first_error_text
from cdmpp.processes.worker import Worker
from cdmpp.records import ERROR_CODE_NAMES, program_id_of_text
from tests.paths import ROOT
from tests.tvm_helper.measure.campaigns import (
    FAKE_WORKER,
    FILES,
    PROGRAMS,
    RECORDED,
    TARGET,
    campaign,
    options,
    program_ids,
    replayed_tasks,
    small_dataset,
)
from tvm_helper.measure.campaign import Campaign
from tvm_helper.measure.health import mean_slowdown
from tvm_helper.measure.journal import Journal, read_journal
from tvm_helper.measure.tables import read_task, write_tables
from tvm_helper.measure.target import MeasureTarget
from tvm_helper.measure.trials import TrialRunner

pytestmark = pytest.mark.slow  # processes start, hang and are killed

CAMPAIGNS = Path(__file__).with_name("campaigns.py")
CHILD_ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def plan(monkeypatch: pytest.MonkeyPatch, **deeds: str) -> None:
    monkeypatch.setenv("CDMPP_FAKE", json.dumps(deeds))


def rows(folder: Path, table: str, columns: list[str]) -> list[dict[str, Any]]:
    return [row for part in read_table(folder, table, columns) for row in part.to_pylist()]


def codes(folder: Path) -> dict[str, int]:
    found = rows(folder, "measurements", ["program_id", "error_code"])
    assert len(found) == len({row["program_id"] for row in found}), "a program measured twice"
    return {row["program_id"]: row["error_code"] for row in found}


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1]
    except OSError:
        return False
    return state not in ("Z", "X")


def children(pid: int) -> list[int]:
    found = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False
    )
    return [int(word) for word in found.stdout.split()]


def wait_for(condition: Any, what: str) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.05)


def test_a_gpu_error_costs_one_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = program_ids()[1]
    plan(monkeypatch, **{bad: "run-fail"})
    target = MeasureTarget("t4", {"kind": "cuda", "arch": "sm_75"}, None)
    Campaign(
        options(device="t4"), tmp_path, replayed_tasks(), target, command=FAKE_WORKER,
        least_free_bytes=0,
    ).run()  # fmt: skip
    assert [name for name, code in codes(tmp_path).items() if code] == [bad]


def test_a_replayed_campaign_is_a_dataset_with_the_programs_of_the_records(tmp_path: Path) -> None:
    steps: list[CampaignProgress] = []
    report = campaign(tmp_path / "out").run(steps.append)
    original = {
        program_id_of_text("tenset", record.workload_key, record.schedule, record.target_kind)
        for name in FILES
        for record in read_records(
            small_dataset_file(tmp_path, name), ReadReport(), device=RECORDED
        )
    }
    measured = rows(tmp_path / "out", "measurements", ["program_id", "device", "costs_s"])
    assert {row["program_id"] for row in measured} <= original
    assert [row["program_id"] for row in measured] == program_ids()
    assert {row["device"] for row in measured} == {"epyc-avx2-2c"}
    assert measured[0]["costs_s"] == pytest.approx([1e-3, 1.1e-3, 0.9e-3])
    programs = rows(tmp_path / "out", "programs", ["program_id", "valid", "leaf_position"])
    assert all(row["valid"] and row["leaf_position"] for row in programs)
    assert (report.measured, report.before, report.failures) == (3 * PROGRAMS, 0, [])
    assert steps[-1].done == steps[-1].total == 3 * PROGRAMS
    assert steps[-1].seconds_left == 0
    assert not list((tmp_path / "out").glob("*.tmp"))


def small_dataset_file(tmp_path: Path, name: str) -> Path:
    folder = tmp_path / "tenset"
    if not folder.exists():
        small_dataset(folder)
    return folder / "measure_records" / RECORDED / name


def test_the_tables_can_be_trained_on(tmp_path: Path) -> None:
    from cdmpp.datasets.cache import load_samples

    campaign(tmp_path / "out").run()
    samples = load_samples(tmp_path / "out", None)
    assert len(samples) == 3 * PROGRAMS
    assert samples.latency_s.tolist() == pytest.approx([1e-3] * len(samples))


@pytest.mark.parametrize(
    ("deed", "code", "text"),
    [
        ("build-crash", 2, "killed by SIGSEGV"),
        ("run-crash", 4, "killed by SIGSEGV"),
        ("build-killed", 8, "killed by SIGKILL"),
        ("run-killed", 8, "killed by SIGKILL"),
        ("run-exit", 8, "ended with code 7: fatal error: out of tensors"),
        pytest.param("build-loop", 6, "killed after 1 s", marks=pytest.mark.exhaustive),
        ("run-loop", 7, "killed after 1 s"),
        ("run-fail", 4, "RuntimeError: misaligned tensor"),
    ],
)
def test_a_fault_costs_its_own_program_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deed: str, code: int, text: str
) -> None:
    ids = program_ids()
    plan(monkeypatch, **{ids[1]: deed})
    limit: dict[str, Any] = {"run_timeout_s": 1.0, "build_timeout_s": 1.0} if "loop" in deed else {}
    report = campaign(tmp_path / "out", most_programs=6, **limit).run()
    assert codes(tmp_path / "out") == {one: code if one == ids[1] else 0 for one in ids[:6]}
    (failure,) = report.failures
    assert failure["count"] == 1
    assert failure["first_text"] == text
    assert ERROR_CODE_NAMES[code] in report.summary()
    assert text in report.summary()


def test_build_faults_on_two_builders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = program_ids()
    plan(monkeypatch, **{ids[0]: "build-crash", ids[4]: "build-killed"})
    campaign(tmp_path / "out", build_jobs=2, batch=6).run()
    found = codes(tmp_path / "out")
    assert found == {one: {ids[0]: 2, ids[4]: 8}.get(one, 0) for one in ids}


@pytest.mark.exhaustive
def test_waiting_for_a_device_is_not_part_of_the_run_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan(monkeypatch, queue="1.5")
    report = campaign(tmp_path / "out", most_programs=3, run_timeout_s=1.0).run()
    assert report.failures == []


def test_a_device_that_is_never_free_stops_the_campaign_without_blaming_a_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan(monkeypatch, queue="600")
    waiting = Worker(FAKE_WORKER, tmp_path / "log", queue_timeout_s=60.0)
    waiting.start()
    waiting._queue_timeout_s = 0.5
    with pytest.raises(DeviceError, match="not free within"):
        waiting.ask({"op": "run"}, timeout_s=5.0)
    assert waiting.pid is None


def test_a_worker_that_cannot_start_is_named(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit('no tensor compiler here, error')"]
    with pytest.raises(DeviceError, match="no tensor compiler here"):
        Worker(command, tmp_path / "log", queue_timeout_s=60.0).start()


def test_a_campaign_in_which_everything_fails_stops_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = program_ids()
    plan(monkeypatch, **dict.fromkeys(ids[2:], "run-fail"))
    with pytest.raises(DeviceError, match=r"4 consecutive failures.*misaligned tensor.*doctor"):
        campaign(tmp_path / "out", stop_after_failures=4).run()
    assert len(codes(tmp_path / "out")) == 6, "what was measured is in the tables all the same"
    plan(monkeypatch)
    assert campaign(tmp_path / "out", stop_after_failures=4).run().measured == len(ids)


def test_failures_of_two_kinds_in_turn_do_not_stop_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deeds = {one: ("run-fail", "run-killed")[n % 2] for n, one in enumerate(program_ids()[:-2])}
    plan(monkeypatch, **deeds)
    report = campaign(tmp_path / "out", stop_after_failures=2).run()
    assert [kind["count"] for kind in report.failures] == [5, 5]


def test_a_campaign_that_measured_nothing_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Was exit 0 and a dataset without a single latency."""
    plan(monkeypatch, **dict.fromkeys(program_ids(), "run-fail"))
    with pytest.raises(DeviceError, match=r"none of 12 programs could be measured.*misaligned"):
        campaign(tmp_path / "out").run()


@pytest.mark.slow
def test_a_killed_campaign_leaves_no_worker_and_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = program_ids()
    out = tmp_path / "out"
    plan(monkeypatch, **{ids[4]: "run-loop"})
    process = subprocess.Popen(
        [sys.executable, str(CAMPAIGNS), "run", str(out)],
        env={**CHILD_ENVIRONMENT, "CDMPP_FAKE": os.environ["CDMPP_FAKE"]},
    )

    def is_at_the_fifth() -> bool:
        return sum(entry["kind"] == "measured" for entry in read_journal(out)) == 4

    wait_for(is_at_the_fifth, "four programs")
    workers = children(process.pid)
    assert len(workers) == 2
    process.kill()
    process.wait()
    wait_for(lambda: not any(map(is_alive, workers)), "the end of the workers, one in a loop")
    before = (out / "journal.jsonl").read_bytes()
    with (out / "journal.jsonl").open("ab") as stream:
        stream.write(b'{"kind":"measured","program_id":"cut of')
    plan(monkeypatch)
    report = campaign(out).run()
    assert (report.before, report.measured) == (4, len(ids))
    assert (out / "journal.jsonl").read_bytes().startswith(before)
    assert sorted(codes(out)) == sorted(ids)
    assert not list(out.glob("*.tmp")), "what the killed run was building"


def test_the_journal_is_not_read_again_for_every_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign(tmp_path / "out", most_programs=4).run()
    read: list[Path] = []

    def counted(folder: Path) -> list[dict[str, Any]]:
        read.append(folder)
        return read_journal(folder)

    monkeypatch.setattr("tvm_helper.measure.tables.read_journal", counted)
    monkeypatch.setattr("tvm_helper.measure.tables.SHARD_PROGRAMS", 1)
    assert write_tables(tmp_path / "out").shards == 4
    assert len(read) == 2


def test_a_task_is_read_as_its_file_is_now(tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    for name in ("first", "second"):
        (tmp_path / "tasks" / "key.json").write_text(json.dumps({"name": name}))
        assert read_task(tmp_path, "key") == {"name": name}


def test_an_interrupted_campaigns_tables_can_be_written(tmp_path: Path) -> None:
    campaign(tmp_path / "out", most_programs=3).run()
    os.remove(tmp_path / "out" / "manifest.json")
    assert write_tables(tmp_path / "out").measurements == 3


def test_times_of_a_quiet_core_are_divided_by_how_slow_the_reference_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    campaign(folder, most_programs=3).run()

    def costs() -> list[float]:
        return [
            cost for row in rows(folder, "measurements", ["costs_s"]) for cost in row["costs_s"]
        ]

    measured = costs()
    health = next(entry for entry in read_journal(folder) if entry["kind"] == "health")
    with (folder / "journal.jsonl").open("a") as stream:
        for references in ([1e-3], [1e-3, 1e-3], [1e-3], [2e-3, 6e-3], []):
            line = {**health, "reference_costs_s": references}
            stream.write(json.dumps(line) + "\n")
    last = list(read_journal(folder))[-5:]
    assert mean_slowdown(last) == pytest.approx(4 ** (1 / 4))
    assert mean_slowdown(last, rounds=2) == pytest.approx(4 ** (1 / 16))
    assert mean_slowdown([]) == 1
    assert main(["measure", "--tables-only", "--quiet-times", "--out", str(folder)]) == 0
    manifest = json.loads((folder / "manifest.json").read_text())
    assert costs() == pytest.approx([cost / manifest["slowdown"] for cost in measured])
    assert manifest["slowdown"] > 1
    assert f"times divided by {manifest['slowdown']}, " in capsys.readouterr().out
    write_tables(folder)
    assert costs() == measured
    lines = (folder / "journal.jsonl").read_text().splitlines(keepends=True)
    (folder / "journal.jsonl").write_text("".join(one for one in lines if "reference" not in one))
    assert main(["measure", "--tables-only", "--quiet-times", "--out", str(folder)]) == 0
    assert "times as measured: the reference program was not timed" in capsys.readouterr().out
    assert costs() == measured
    assert main(["measure", "--quiet-times", "--out", str(folder)]) == 2


def test_a_finished_campaign_does_nothing_more(tmp_path: Path) -> None:
    campaign(tmp_path / "out").run()
    before = (tmp_path / "out" / "journal.jsonl").read_bytes()
    assert campaign(tmp_path / "out").run().before == 3 * PROGRAMS
    assert (tmp_path / "out" / "journal.jsonl").read_bytes() == before


def test_two_campaigns_on_one_folder_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    with folder_lock(folder), pytest.raises(UsageError, match=f"process {os.getpid()}"):
        campaign(folder).run()
    assert campaign(folder, most_programs=3).run().measured == 3


def test_other_settings_in_one_folder_are_refused(tmp_path: Path) -> None:
    from tvm_helper.measure.options import TimingOptions

    campaign(tmp_path / "out", most_programs=3).run()
    with pytest.raises(UsageError, match=r"other settings \(timing"):
        campaign(tmp_path / "out", timing=TimingOptions(spread=0.5)).run()


def test_a_full_disk_takes_the_last_line_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path)
    journal.append({"kind": "measured", "program_id": "a"})
    real = os.write

    def full(file: int, data: bytes) -> int:
        if len(data) < 12:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(file, data[: len(data) // 2])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(DataError, match=r"disk is full; 1 measured program is kept"):
        journal.append({"kind": "measured", "program_id": "b" * 50})
    monkeypatch.undo()
    journal.append({"kind": "measured", "program_id": "c"})
    assert [entry["program_id"] for entry in read_journal(tmp_path)] == ["a", "c"]


def test_a_compiler_that_finds_the_disk_full_is_no_failure_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = program_ids()
    plan(monkeypatch, **{ids[3]: "build-full"})
    with pytest.raises(DataError, match="disk is full; 3 measured programs are kept"):
        campaign(tmp_path / "out").run()
    plan(monkeypatch)
    campaign(tmp_path / "out").run()
    assert set(codes(tmp_path / "out").values()) == {0}


def test_a_folder_that_is_gone_is_no_failure_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Was one: the programs counted as measured, and were never built again."""
    ids, out, away = program_ids(), tmp_path / "out", tmp_path / "away"
    build = TrialRunner.build

    def gone(self: TrialRunner, programs: Mapping[str, Any]) -> Iterator[Any]:
        for name, outcome in build(self, programs):
            if name == ids[3]:
                out.rename(away)
            yield name, outcome

    with monkeypatch.context() as patch:
        patch.setattr(TrialRunner, "build", gone)
        with pytest.raises(DataError, match=r"cannot write built programs .*are kept"):
            campaign(out).run()
    away.rename(out)
    done = [one["program_id"] for one in read_journal(out) if one["kind"] == "measured"]
    assert done == ids[:3]
    campaign(out).run()
    assert set(codes(out).values()) == {0}


@pytest.mark.exhaustive
def test_a_campaign_on_a_disk_that_fills_up_loses_nothing(tmp_path: Path) -> None:
    disk, keep = tmp_path / "disk", tmp_path / "keep"
    disk.mkdir()
    script = (
        f"mount -t tmpfs -o size=2m none {disk} && exec {sys.executable} {CAMPAIGNS} small-disk "
        f"{disk} {keep}"
    )
    probe = subprocess.run(
        ["unshare", "-rm", "sh", "-c", f"mount -t tmpfs -o size=1m none {disk}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if probe.returncode:
        pytest.skip(f"cannot mount a small disk here: {probe.stderr.strip()}")
    found = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script], capture_output=True, text=True,
        env=CHILD_ENVIRONMENT, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    first, error, last = found.stdout.splitlines()
    assert first == "3"
    assert error.startswith("DataError: ")
    assert "the disk is full" in error
    assert "are kept" in error
    assert last == str(3 * PROGRAMS)
    assert sorted(codes(keep)) == sorted(program_ids())


def test_too_little_space_is_said_before_anything_is_built(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="disk is full"):
        campaign(tmp_path / "out", least_free_bytes=1 << 60).run()
    assert not [e for e in read_journal(tmp_path / "out") if e["kind"] == "measured"]


def test_programs_take_turns_between_tasks_and_a_bound_is_kept(tmp_path: Path) -> None:
    campaign(tmp_path / "out", most_programs=5).run()
    assert list(codes(tmp_path / "out")) == program_ids()[:5]


def test_a_program_that_is_drawn_twice_is_measured_once(tmp_path: Path) -> None:
    tasks = [replace(task, programs=2 * (task.programs or ())) for task in replayed_tasks()]
    shown: list[CampaignProgress] = []
    Campaign(
        options(per_task=2 * PROGRAMS), tmp_path, tasks, TARGET, command=FAKE_WORKER,
        least_free_bytes=0,
    ).run(shown.append)  # fmt: skip
    assert list(codes(tmp_path)) == program_ids()
    assert (shown[-1].done, shown[-1].total) == (12, 12)


@pytest.mark.exhaustive
def test_the_draw_of_records_follows_from_the_seed(tmp_path: Path) -> None:
    from types import SimpleNamespace

    from tvm_helper.measure.options import MeasureOptions
    from tvm_helper.measure.sources import campaign_tasks

    folder = str(small_dataset(tmp_path / "tenset"))
    target = SimpleNamespace(kind=SimpleNamespace(name="llvm"))

    def drawn(seed: int, count: int) -> list[list[str]]:
        made = MeasureOptions(replay=(folder,), per_task=count, seed=seed)
        return [[one for one, _ in task.programs or ()] for task in campaign_tasks(made, target)]

    assert drawn(0, 4) == [[one for one, _ in task.programs or ()] for task in replayed_tasks()]
    assert drawn(0, 4) != drawn(1, 4)
    assert [ids[:2] for ids in drawn(0, 4)] == drawn(0, 2)


def test_a_worker_is_ended_by_a_signal_to_its_campaign(tmp_path: Path) -> None:
    worker = Worker(FAKE_WORKER, tmp_path / "log", queue_timeout_s=60.0)
    worker.start()
    pid = worker.pid
    assert pid is not None
    worker.stop()
    assert not is_alive(pid)
    os.kill(os.getpid(), signal.SIGCONT)  # the campaign itself has lost nothing
    worker.start()
    assert worker.pid != pid
    worker.stop()


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ('Traceback (most recent call last):\n  File "a", line 1\nValueError: x', "ValueError: x"),
        ("In file a.c\na.c:1: error: no member\nmore errors", "a.c:1: error: no member"),
        ("strange", "strange"),
        ("\n", "no error text"),
    ],
)  # fmt: skip
def test_the_first_line_that_says_something(text: str, first: str) -> None:
    assert first_error_text(text) == first


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The CPUs that workers are given, of two that there seem to be."""
    cpus: set[int] = set()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, given: cpus.update(given))
    return cpus


def test_two_cpus_measure_every_program_once_and_some_again(
    tmp_path: Path, pinned: set[int]
) -> None:
    report = campaign(tmp_path / "out", jobs=2, again_share=1.0, batch=2).run()
    assert pinned == {0, 1}
    assert sorted(codes(tmp_path / "out")) == sorted(program_ids())
    assert report.noise == {"n": 3 * PROGRAMS, "median": 0.0, "mean": 0.0}
    assert "12 programs built and timed again differ by 0.0 % (median)" in report.summary()
    kinds = [entry["kind"] for entry in read_journal(tmp_path / "out")]
    assert (kinds.count("measured"), kinds.count("again")) == (12, 12)
    before = (tmp_path / "out" / "journal.jsonl").read_bytes()
    assert campaign(tmp_path / "out", again_share=1.0).run().before == 12
    assert (tmp_path / "out" / "journal.jsonl").read_bytes() == before
    assert not list((tmp_path / "out").glob("*.tmp"))


def test_rounds_time_the_programs_of_a_batch_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tvm_helper.measure.trials import TrialRunner

    first, second, bad, *_ = program_ids()
    plan(monkeypatch, **{bad: "run-fail"})
    timed: list[str] = []
    run = TrialRunner.run

    def noted(self: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        timed.append(name)
        return run(self, name, *args, **kwargs)

    monkeypatch.setattr(TrialRunner, "run", noted)
    campaign(tmp_path / "out", rounds=2, batch=3, most_programs=3).run()
    assert timed == [first, second, bad, first, second]
    entries = [one for one in read_journal(tmp_path / "out") if one["kind"] == "measured"]
    assert {one["program_id"]: len(one["costs_s"]) for one in entries} == {
        first: 6, second: 6, bad: 0,
    }  # fmt: skip
    assert not list((tmp_path / "out").glob("*.tmp"))


def test_a_program_whose_rounds_differ_is_timed_in_further_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tvm_helper.measure.trials import TrialRunner

    restless, never, steady, bad, *_ = program_ids()
    plan(monkeypatch, **{bad: "run-fail"})
    slower = {restless: [1.0, 1.2, 1.4, 1.04], never: [1.0, 1.1, 1.2, 1.3, 1.4]}
    timed: list[str] = []
    run = TrialRunner.run

    def slowed(self: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        factor = slower.get(name, [1.0] * 5)[timed.count(name)]
        timed.append(name)
        outcome = run(self, name, *args, **kwargs)
        return replace(outcome, costs_s=tuple(factor * cost for cost in outcome.costs_s))

    monkeypatch.setattr(TrialRunner, "run", slowed)
    campaign(tmp_path / "out", rounds=2, extra_rounds=3, batch=4, most_programs=4).run()
    assert {name: timed.count(name) for name in timed} == {
        restless: 4, never: 5, steady: 2, bad: 1,
    }  # fmt: skip
    entries = [one for one in read_journal(tmp_path / "out") if one["kind"] == "measured"]
    assert {one["program_id"]: len(one["costs_s"]) for one in entries} == {
        restless: 12, never: 15, steady: 6, bad: 0,
    }  # fmt: skip
    assert not list((tmp_path / "out").glob("*.tmp"))


def test_the_time_that_is_left_counts_builds_and_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan(monkeypatch, pause="0.02")
    left: list[tuple[float, float]] = []

    def show(now: CampaignProgress) -> None:
        if now.stage == "timing" and now.seconds_left is not None:
            left.append((time.monotonic(), now.seconds_left))

    campaign(tmp_path / "out", rounds=3, batch=12, most_programs=12).run(show)
    assert len(left) == 12
    last = left[-1][0]
    assert all(said < 3 * (last - now) + 0.2 for now, said in left)


@pytest.mark.usefixtures("pinned")
def test_one_fault_stops_both_cpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan(monkeypatch, **dict.fromkeys(program_ids(), "run-fail"))
    with pytest.raises(DeviceError, match="4 consecutive failures"):
        campaign(tmp_path / "out", jobs=2, batch=2, stop_after_failures=4).run()
    assert 4 <= len(codes(tmp_path / "out")) < 12


def test_a_campaign_of_before_goes_on_with_its_timing_rules(tmp_path: Path) -> None:
    """Its file says nothing of the options that came later."""
    campaign(tmp_path / "out", most_programs=3).run()
    settings = json.loads((tmp_path / "out" / "campaign.json").read_text())
    assert set(settings["timing"]) == {
        "min_repeats", "max_repeats", "min_repeat_s", "spread", "budget_s", "flush_cache",
    }  # fmt: skip
    for name in ("schedules", "sample_random", "held_out", "again_share", "jobs"):
        del settings["options"][name]
    (tmp_path / "out" / "campaign.json").write_text(json.dumps(settings), encoding="utf-8")
    assert campaign(tmp_path / "out").run().before == 3


def test_what_needs_one_thread_is_refused_for_more() -> None:
    from tests.tvm_helper.measure.campaigns import options
    from tvm_helper.measure.options import TimingOptions

    for more in ({"jobs": 2}, {"timing": TimingOptions(clock="cpu")}):
        with pytest.raises(UsageError, match="have 2 threads; expected a label of one thread"):
            options(**more).check_threads(2)
