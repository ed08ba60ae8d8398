"""How far a search is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TaskProgress:
    """A task of a search.

    Attributes:
        name: of the task.
        weight: how often it is called.
        trials: measured programs, failed ones included.
        failed: those that failed.
        best_s: shortest latency so far, None without one.
        gain: expected of more trials, as a share of the latency; None while not known.
    """

    name: str
    weight: int
    trials: int
    failed: int
    best_s: float | None
    gain: float | None


@dataclass(frozen=True)
class SearchProgress:
    """A search.

    Attributes:
        stage: what is being done.
        trials: measured programs, of `total`.
        total: trials that are wanted.
        seconds_left: estimate; None while nothing is known.
        gain: expected of more trials of all tasks; None while not known.
        advice: the advice to stop; None while going on is worth it.
        tasks: the tasks.
    """

    stage: str
    trials: int
    total: int
    seconds_left: float | None
    gain: float | None
    advice: str | None
    tasks: tuple[TaskProgress, ...]
