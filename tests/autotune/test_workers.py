"""Two workers share a study; one is killed in the middle of a trial."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from optuna.storages import RDBStorage
from optuna.trial import TrialState

from cdmpp.autotune import worker
from cdmpp.autotune.leases import Lease
from cdmpp.autotune.objective import Parts
from cdmpp.autotune.slots import (
    CHOSEN,
    DIED,
    DUPLICATE,
    FAULT,
    PUT_BACK,
    RETRY_OF,
    SLOT,
    DuplicateTrialError,
    fault_of,
    fill_slots,
    recover,
    taken_slot,
)
from cdmpp.autotune.storage import new_sampler, open_storage, open_study
from cdmpp.autotune.study import first_settings
from cdmpp.autotune.trial_rows import trial_rows
from cdmpp.errors import DataError
from cdmpp.testing.synthetic import make_samples
from tests.autotune.postgres import running_server
from tests.autotune.study_child import BEGUN, OPTIONS, TRIALS
from tests.paths import ROOT

REPOSITORY = ROOT
PARTS = Parts(make_samples(2, 2), make_samples(2, 2))
CHILD = Path(__file__).with_name("study_child.py")


@contextmanager
def storage_place(kind: str, folder: Path) -> Iterator[str]:
    if kind == "journal":
        yield str(folder / "journal.log")
    else:
        with running_server() as url:
            yield url


def start(place: str, log: Path, first_trial_s: float, other_trial_s: float):
    command = [sys.executable, CHILD, place, log, str(first_trial_s), str(other_trial_s)]
    return subprocess.Popen(command, cwd=REPOSITORY, env={**os.environ, "PYTHONPATH": "."})


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["journal", pytest.param("postgresql", marks=pytest.mark.exhaustive)]
)
def test_a_killed_worker_loses_nothing_and_doubles_nothing(kind, tmp_path):
    log = tmp_path / "begun.txt"
    log.touch()
    with storage_place(kind, tmp_path) as place:
        storage = open_storage(place, lease_s=OPTIONS.lease_s)
        study = open_study(OPTIONS, storage)
        fill_slots(study, TRIALS, first_settings(OPTIONS))
        victim = start(place, log, 600.0, 600.0)
        wait_for_line(log, victim)
        survivor = start(place, log, 0.2, 0.2)
        wait_for_line(log, survivor)
        os.kill(victim.pid, signal.SIGKILL)
        victim.wait()
        assert survivor.wait(timeout=240) == 0
        trials = study.get_trials()
        if isinstance(storage, RDBStorage):
            storage.remove_session()
            storage.engine.dispose()
    done = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    assert sorted(trial.user_attrs[SLOT] for trial in done) == list(range(TRIALS))
    failed = [trial for trial in trials if trial.state == TrialState.FAIL]
    assert [fault_of(trial) for trial in failed] == [DIED]
    retried = next(trial for trial in done if RETRY_OF in trial.user_attrs)
    assert retried.user_attrs[RETRY_OF] == [failed[0].number]
    assert retried.params == failed[0].params
    assert len(trials) == TRIALS + 1
    begun = [line.split() for line in log.read_text().splitlines()]
    assert Counter(slot for _, _, slot in begun) == {
        str(slot): 2 if slot == retried.user_attrs[SLOT] else 1 for slot in range(TRIALS)
    }


def wait_for_line(log: Path, process: subprocess.Popen[bytes]) -> None:
    for _ in range(1200):
        assert process.poll() is None, "the worker ended"
        if any(line.startswith(f"{process.pid} ") for line in log.read_text().splitlines()):
            return
        time.sleep(0.1)
    raise AssertionError("the worker began no trial")


def study_at(folder, **changes):
    options = replace(OPTIONS, lease_s=0.1, **changes)
    return open_study(options, open_storage(str(folder / "journal.log"), lease_s=0.1))


def take_one(study, options=OPTIONS, lease_s=0.1):
    """Returns a trial as a worker has it that takes it and then is silent."""
    trial = study.ask()
    with Lease(trial, lease_s):
        study.sampler = new_sampler(options, taken_slot(study, trial))
    return trial


def requeue(study):
    recover(study, most_deaths=2, lease_s=0.1)


def states(study):
    return [trial.state for trial in study.get_trials()]


def test_a_trial_that_kills_its_workers_is_given_up(tmp_path):
    study = study_at(tmp_path)
    fill_slots(study, 1, [{}])
    for _ in range(2):
        take_one(study)
        time.sleep(0.15)
        requeue(study)
    assert states(study) == [TrialState.FAIL] * 2
    assert {row.reason for row in trial_rows(study)} == {"its worker died"}


def test_a_worker_that_died_before_its_first_sign_of_life_is_missed_too(tmp_path):
    study = study_at(tmp_path)
    fill_slots(study, 1, [{}])
    study.ask()
    requeue(study)
    assert states(study) == [TrialState.RUNNING]
    time.sleep(0.15)
    requeue(study)
    assert states(study) == [TrialState.FAIL, TrialState.WAITING]


def draw(trial, names="abc"):
    return {name: trial.suggest_float(name, 0.0, 1.0) for name in names}


@pytest.mark.parametrize("sampler", ["random", "tpe"])
@pytest.mark.parametrize("chosen_before_death", ["", "a", "abc"])
def test_a_slot_whose_worker_died_has_the_same_settings(tmp_path, sampler, chosen_before_death):
    """Were others, where it died before all of them were chosen."""
    options = replace(OPTIONS, sampler=sampler)

    def draws(folder, names):
        study = study_at(folder, sampler=sampler)
        fill_slots(study, 2, [{}])
        found = {}
        while TrialState.WAITING in states(study):
            trial = take_one(study, options)
            if len(study.get_trials()) == 2 and trial.number == 0 and names is not None:
                draw(trial, names)
                if names == "abc":
                    trial.set_user_attr(CHOSEN, "gbdt")
                time.sleep(0.15)
                requeue(study)
                continue
            slot = study.get_trials()[trial.number].user_attrs[SLOT]
            found[slot] = draw(trial)
            study.tell(trial, 1.0)
        return found

    undisturbed = draws(tmp_path / "one", None)
    assert draws(tmp_path / "other", chosen_before_death) == undisturbed
    assert len(undisturbed) == 2


def test_a_live_lease_is_left_alone(tmp_path):
    study = study_at(tmp_path)
    fill_slots(study, 1, [{}])
    take_one(study, lease_s=60.0)
    requeue(study)
    assert states(study) == [TrialState.RUNNING]


def test_a_lease_of_a_clock_that_was_ahead_is_none(tmp_path, monkeypatch):
    """Was waited for until then: ten days."""
    study = study_at(tmp_path)
    fill_slots(study, 1, [{}])
    now = time.time()
    with monkeypatch.context() as patch:
        patch.setattr("cdmpp.autotune.leases.time", SimpleNamespace(time=lambda: now + 864_000.0))
        take_one(study, lease_s=60.0)
    requeue(study)
    assert states(study) == [TrialState.FAIL, TrialState.WAITING]


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_the_command(number, tmp_path):
    """Was waited for after an interrupt, and left working after a kill."""
    command = [sys.executable, CHILD, "workers", tmp_path / "journal.log"]
    # A job in the background ignores interrupts, and so would what it starts.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    parent = subprocess.Popen(command, cwd=REPOSITORY, env={**os.environ, "PYTHONPATH": "."})
    signal.signal(signal.SIGINT, before)
    try:
        study, until = None, time.monotonic() + 240
        while study is None or not any(BEGUN in one.user_attrs for one in study.get_trials()):
            assert parent.poll() is None
            assert time.monotonic() < until
            time.sleep(0.1)
            if (tmp_path / "journal.log").exists():
                study = study_at(tmp_path)
        workers = psutil.Process(parent.pid).children(recursive=True)
        assert len(workers) >= 2
        parent.send_signal(number)
        parent.wait(60)
    finally:
        parent.kill()
        parent.wait()
    assert psutil.wait_procs(workers, timeout=30)[1] == []
    put_back = [one.user_attrs.get(FAULT) for one in study.get_trials()]
    assert (PUT_BACK in put_back) == (number == signal.SIGINT)


def test_a_slot_that_was_queued_twice_is_done_once(tmp_path, monkeypatch):
    study = study_at(tmp_path)
    for _ in range(2):
        study.enqueue_trial({}, user_attrs={SLOT: 0})
    monkeypatch.setattr(worker, "run_trial", lambda *_: [1.0])
    told = []
    worker.work(OPTIONS, tmp_path / "journal.log", PARTS, on_trial=told.append)
    assert [trial.number for trial in told] == [0]
    assert study.get_trials()[1].user_attrs[FAULT] == DUPLICATE


def test_only_trials_that_somebody_queued_are_done(tmp_path):
    """Optuna makes one for the worker that comes second to the last waiting one."""
    study = study_at(tmp_path)
    study.enqueue_trial({"x": 1.0})
    assert taken_slot(study, study.ask()) == 0
    with pytest.raises(DuplicateTrialError, match="last waiting trial"):
        taken_slot(study, study.ask())


def test_the_result_of_a_lost_trial_is_dropped(tmp_path, monkeypatch):
    study = study_at(tmp_path)
    fill_slots(study, 1, [{}])
    begun = []

    def sleeper(trial, *_):
        begun.append(trial.number)
        if trial.number == 0:
            study.tell(0, state=TrialState.FAIL)  # another worker thinks that this one is dead
        return [float(trial.number)]

    monkeypatch.setattr(worker, "run_trial", sleeper)
    worker.work(OPTIONS, tmp_path / "journal.log", PARTS)
    assert begun == [0, 1]
    assert [trial.values for trial in study.get_trials()] == [None, [1.0]]


def test_slots_are_filled_once(tmp_path):
    study = study_at(tmp_path)
    fill_slots(study, 2, [{}])
    fill_slots(study, 3, [{}])
    assert [trial.user_attrs[SLOT] for trial in study.get_trials()] == [0, 1, 2]


def test_a_line_that_was_cut_off_costs_itself_only(tmp_path):
    """Was the end of the study: nothing after it could be read."""
    study = study_at(tmp_path)
    fill_slots(study, 1, [{}])
    with (tmp_path / "journal.log").open("a") as stream:
        stream.write('{"op_code":4,"wor')
    fill_slots(study, 2, [{}])
    assert [trial.user_attrs[SLOT] for trial in study_at(tmp_path).get_trials()] == [0, 1]


def test_a_full_disk_leaves_the_journal_as_it_was(tmp_path, monkeypatch):
    study = study_at(tmp_path)
    fill_slots(study, 1, [{}])
    before = (tmp_path / "journal.log").read_bytes()
    write = os.pwrite

    def full(file, data, place):
        if len(data) < 20:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data[: len(data) // 2], place)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(DataError, match=r"journal\.log: .*No space left.*trials are kept"):
            fill_slots(study, 2, [{}])
    assert (tmp_path / "journal.log").read_bytes() == before
    (tmp_path / "journal.log").unlink()
    with pytest.raises(DataError, match="No such file"):
        fill_slots(study, 2, [{}])
