"""Progress of a search and of its tasks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TaskProgress:
    """Progress of a task.

    Attributes:
        name: name of the task.
        weight: number of calls in the network.
        trials: number of measured programs, including failed ones.
        failed: number of failed programs.
        best_s: shortest latency so far; None without one.
        gain: expected gain of further trials, as a share of the latency; None if unknown.
    """

    name: str
    weight: int
    trials: int
    failed: int
    best_s: float | None
    gain: float | None


@dataclass(frozen=True)
class SearchProgress:
    """Progress of a search.

    Attributes:
        stage: current step.
        trials: number of measured programs.
        total: requested number of trials.
        seconds_left: estimated remaining seconds; None if unknown.
        gain: expected gain of further trials of all tasks; None if unknown.
        advice: the advice to stop; None if more trials are worthwhile.
        tasks: progress of the tasks.
    """

    stage: str
    trials: int
    total: int
    seconds_left: float | None
    gain: float | None
    advice: str | None
    tasks: tuple[TaskProgress, ...]
