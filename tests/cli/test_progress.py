"""Progress as plain lines: what is not on a terminal."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from cdmpp.cli.shared import progress as module
from cdmpp.cli.shared.progress import campaign_progress, progress, training_progress
from cdmpp.models.loop.progress import TrainProgress


@dataclass(frozen=True)
class Campaign:
    stage: str
    done: int
    total: int
    failed: int = 1
    seconds_left: float | None = None


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def test_a_line_when_something_begins_or_ends_and_now_and_then(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with campaign_progress(is_quiet=False) as show:
        for second, done in ((0, 1), (5, 2), (11, 3), (12, 4), (13, 9)):
            clock[0] = second
            show(Campaign("measuring", done, 9, seconds_left=120.0 if done > 2 else None))
        show(Campaign("writing", 0, 1))
    assert capsys.readouterr().err.splitlines() == [
        "measuring: 1 of 9, 1 failed",
        "measuring: 3 of 9, 1 failed, about 2 min left",
        "measuring: 9 of 9, 1 failed, about 2 min left",
        "writing: 0 of 1, 1 failed",
    ]


def test_a_training_says_its_epoch_and_loss(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    step = TrainProgress(5, 20, 2, 0.25, 0.5, steps_per_s=0.5, parameters=9)
    with training_progress(is_quiet=False) as show:
        show("training gbdt", None)
        clock[0] = 20.0
        show("training gbdt", step)
    assert capsys.readouterr().err.splitlines() == [
        "training gbdt",
        "training gbdt: 5 of 20, epoch 2, loss 0.250, best validation 0.500, at most 30 s left",
    ]


def test_quiet_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress(is_quiet=True) as show:
        show("reading", 1, 2, "a note")
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_a_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module.sys.stderr, "isatty", lambda: True, raising=False)
    with progress(is_quiet=False) as show:
        show("reading", 1, 2, "a note")
        show("writing", 3, 4, "another")
    shown = capsys.readouterr().err
    assert "writing" in shown
    assert "3/4" in shown
    assert "another" in shown
