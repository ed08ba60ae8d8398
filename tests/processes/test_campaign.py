"""What every campaign does: settings that stay, failures that add up, time that is left."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from cdmpp.errors import DataError, DeviceError, UsageError
from cdmpp.processes.campaign import (
    CAMPAIGN_FILE,
    JOURNAL_FILE,
    Clock,
    SameFailures,
    campaign_folder,
    check_unchanged,
    read_campaign,
    settle,
)


def begin(folder: Path, **values: object) -> None:
    settle(
        folder,
        {"device": "box", "seed": 0, "jobs": 1, **values},
        fixed=("device", "seed"),
        machine=lambda: {"cpu_count": os.getpid()},
        command="cdmpp measure",
    )


def test_a_campaign_goes_on_with_its_settings_and_its_first_machine(tmp_path: Path) -> None:
    begin(tmp_path)
    path = tmp_path / CAMPAIGN_FILE
    value = json.loads(path.read_text())
    path.write_text(json.dumps({**value, "machine": {"cpu_count": 99}}))
    begin(tmp_path, jobs=7)
    there = read_campaign(tmp_path, "cdmpp measure")
    assert (there["machine"], there["jobs"]) == ({"cpu_count": 99}, 7)
    with pytest.raises(UsageError, match=r"other settings \(seed: 0 there, 3 now"):
        begin(tmp_path, seed=3)


def test_only_the_setting_that_differs_is_named(tmp_path: Path) -> None:
    there = {"timing": {"spread": 0.02, "budget_s": 0.2}, "seed": 0}
    now = {"timing": {"spread": 0.02, "budget_s": 3.0}}
    with pytest.raises(UsageError, match=r"settings \(timing\.budget_s: 0\.2 there, 3\.0 now\)"):
        check_unchanged(tmp_path, "search", there, now)


def test_the_journal_of_another_kind_of_work_is_left_alone(tmp_path: Path) -> None:
    """`measure` into the folder of a search appended to its journal, and both were lost."""
    journal = tmp_path / JOURNAL_FILE
    journal.write_text("")
    with campaign_folder(tmp_path, what="measuring campaign"):
        pass  # begun, and killed before its settings were written
    journal.write_text("{}\n")
    (tmp_path / "search.json").write_text("{}")
    with campaign_folder(tmp_path, what="search", settings="search.json"):
        pass
    with (
        pytest.raises(UsageError, match=r"campaign\.json is missing\); choose another --out"),
        campaign_folder(tmp_path, what="measuring campaign"),
    ):
        pass


@pytest.mark.parametrize("text", [None, "{", "[]", '{"device": 3}'])
def test_what_is_no_campaign_names_the_command(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / CAMPAIGN_FILE).write_text(text)
    with pytest.raises(DataError, match=r"campaign.*`cdmpp measure`"):
        read_campaign(tmp_path, "cdmpp measure")


def test_a_folder_is_held_by_one_and_cleared_of_what_killed_ones_left(tmp_path: Path) -> None:
    (tmp_path / "build.999999999.tmp").mkdir()
    with campaign_folder(tmp_path, what="campaign"):
        assert not list(tmp_path.glob("*.tmp"))
        with (
            pytest.raises(UsageError, match="running in this folder"),
            campaign_folder(tmp_path, what="campaign"),
        ):
            pass


def test_failures_of_one_kind_in_a_row_are_too_many() -> None:
    failures = SameFailures(3, "; see the log")
    for kind in ("crash", "crash", "time-out", "crash", "crash"):
        failures.add(kind, f"first {kind}")
    failures.add("", "")
    failures.add("crash", "bang")
    failures.add("crash", "boom")
    with pytest.raises(DeviceError, match=r"3 consecutive failures .*\(crash\).*bang.*see the log"):
        failures.add("crash", "crunch")
    never = SameFailures(0, "")
    for _ in range(9):
        never.add("crash", "bang")


def test_the_time_that_is_left_follows_from_the_parts_that_are_done() -> None:
    clock = Clock(4)
    assert clock.seconds_left() is clock.seconds_each() is None
    clock.add(3)
    left, each = clock.seconds_left(), clock.seconds_each()
    assert left is not None
    assert each is not None
    assert 0 < left <= each
    clock.add()
    assert clock.seconds_left() == 0
