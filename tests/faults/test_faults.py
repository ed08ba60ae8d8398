"""The faults see what is wrong, and nothing where nothing is."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.faults import kinds, run
from tests.faults.commands import COMMANDS, Command
from tests.faults.trial import Befallen, Trial


def _late(trial: Trial, rng: random.Random) -> Befallen:
    """SIGKILL when the first line is there."""
    process = trial.start()
    journal = trial.out / "journal"
    while not (journal.exists() and journal.read_bytes().endswith(b"\n")):
        time.sleep(0.01)
    process.kill()
    return Befallen("killed late", [process], {-signal.SIGKILL})


def _trial(folder: Path, deed: str) -> Trial:
    victim = Command(
        "tests.faults.victim", ("{out}", deed), "all of it",
        lambda out: {"result": (out / "result").read_text()}, "journal",
    )  # fmt: skip
    return Trial(victim, folder, {})


@pytest.mark.parametrize(
    ("deed", "wrong"),
    [
        ("behaves", []),
        ("loses", ["lines of the journal are lost"]),
        ("differs", ["another result afterwards: result"]),
        ("litters", ["left behind: part.1.tmp"]),
    ],
)
def test_what_a_kill_brings_to_light(deed: str, wrong: list[str], tmp_path: Path) -> None:
    assert _trial(tmp_path, deed).survive(_late, "seed").wrong == wrong


def test_processes_that_hide_are_found_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.faults.trial._SECONDS_TO_END", 0.2)
    with pytest.raises(AssertionError, match="leaves processes behind"):
        _trial(tmp_path, "leaves")
    left = [one for one in psutil.process_iter(["cmdline"])
            if str(tmp_path) in " ".join(one.info["cmdline"] or ())]  # fmt: skip
    assert not left


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_every_kind_is_survived_by_what_can_survive_it(kind: str, tmp_path: Path) -> None:
    if reason := kinds.why_not(kind):
        pytest.skip(reason)
    trial = _trial(tmp_path, "behaves")
    fault = trial.survive(kinds.KINDS[kind], "seed")
    said = [one for one in fault.wrong if not one.startswith("code ")]
    assert said == [], "it knows no errors, so it may end badly; but it goes on"


def test_the_page_counts_faults_and_tells_of_each_that_was_not_survived() -> None:
    name = next(iter(COMMANDS))
    entry = {"command": name, "kind": "killed", "where": "early", "codes": [-9], "wrong": []}
    bad = {**entry, "where": "late", "wrong": ["another result"]}
    text = run.page([entry, entry, bad], "make faults TIMES=3", "c0de", 7)
    assert f"| {name} | killed | 3 | 1 | 3 x -9 |" in text
    assert f"- {name}, late: another result" in text
    assert all((run.ROOT / path).is_file() for path in run.TESTS)
