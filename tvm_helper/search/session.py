"""One run of a search, driven by TVM's task scheduler.

TVM's gradient scheduler chooses the task of each round. Its search strategy, builder, runner and
cost model (`tvm_hooks`) delegate to the session. A rerun first replays every round of the journal
with its results to the scheduler, which restores the state of the scheduler and the cost model.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import numpy as np

from cdmpp.processes.campaign import SameFailures
from tvm_helper.compat import meta_schedule, shash2hex
from tvm_helper.measure.failures import BUILD_CODES, failure_name
from tvm_helper.measure.trials import DiskFullError, Outcome, TrialRunner
from tvm_helper.search.expected_gain import (
    WINDOW,
    Gain,
    advice,
    is_settled,
    predicted_gain,
    total_gain,
    trend,
)
from tvm_helper.search.options import SearchOptions
from tvm_helper.search.progress import SearchProgress, TaskProgress
from tvm_helper.search.store import FAILED_S, SearchStore
from tvm_helper.search.tasks import SearchTask
from tvm_helper.search.verifier import Verifier

#: Consecutive rounds without a new program from TVM after which a task is exhausted.
_EMPTY_ROUNDS = 5
#: Maximum number of spare drafts of a task, used when TVM proposes too few programs.
_MOST_SPARE = 64
_NOT_RUN = "not measured: out of time"


@dataclass
class TaskState:
    """State of a task.

    Attributes:
        task: the task.
        replays: rounds of the journal that TVM has not seen yet, as lists of (entry, candidate).
        known: hashes of the measured programs.
        latencies_s: latency of every trial in order; infinity for a failed trial.
        measured: (candidate, seconds) of the last successful trials.
        spare: (predicted seconds, candidate) of drafts that were not run, fastest first.
        gain: expected gain of further trials.
        failed: number of failed trials.
        is_exhausted: whether TVM proposes no new programs.
    """

    task: SearchTask
    replays: list[list[tuple[dict[str, Any], Any]]] = field(default_factory=list)
    known: set[str] = field(default_factory=set)
    latencies_s: list[float] = field(default_factory=list)
    measured: list[tuple[Any, float]] = field(default_factory=list)
    spare: list[tuple[float, Any]] = field(default_factory=list)
    gain: Gain = field(default_factory=lambda: Gain(None, None))
    failed: int = 0
    is_exhausted: bool = False

    @property
    def best_s(self) -> float | None:
        """Shortest latency so far; None without one."""
        best = min(self.latencies_s, default=math.inf)
        return None if math.isinf(best) else best

    def add(self, entry: dict[str, Any], candidate: Any) -> None:
        """Adds a trial."""
        latency_s = float(np.mean(entry["costs_s"])) if entry["costs_s"] else math.inf
        self.latencies_s.append(latency_s)
        self.failed += entry["error_code"] != 0
        self.known.add(shash2hex(candidate.sch.mod))
        if entry["error_code"] == 0:
            self.measured = [*self.measured, (candidate, latency_s)][-WINDOW:]


@dataclass
class _Round:
    """A round of one task: candidates, names of their files, journal entries and builds."""

    state: TaskState
    number: int
    candidates: list[Any]
    names: list[str]
    entries: list[dict[str, Any] | None]
    built: dict[int, Outcome] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        state: TaskState,
        number: int,
        candidates: list[Any],
        entries: list[dict[str, Any] | None] | None = None,
    ) -> _Round:
        """Returns a round; without `entries`, its candidates were not measured yet."""
        names = [f"{number}-{place}" for place in range(len(candidates))]
        return cls(state, number, candidates, names, entries or [None] * len(candidates))

    def take(self, places: Sequence[int]) -> _Round:
        """Returns the round with some of the candidates, in the given order."""
        return _Round(
            self.state, self.number, [self.candidates[p] for p in places],
            [self.names[p] for p in places], [self.entries[p] for p in places],
            {place: self.built[p] for place, p in enumerate(places) if p in self.built},
        )  # fmt: skip


class SearchSession:
    """A running search.

    Args:
        options: options of the search.
        store: its folder.
        tasks: its tasks, in order.
        runner: builds and times programs.
        model: the cost model that TVM calls.
        show: called after every step.
        verifier: chooses the candidates to run among the built ones; None = all are run.

    Attributes:
        error: first error raised inside TVM's calls.
        reason: reason why no more candidates are drawn; empty while they are.
        seconds: seconds of each activity since the last `round` entry of the journal.
    """

    def __init__(
        self,
        options: SearchOptions,
        store: SearchStore,
        tasks: Sequence[SearchTask],
        runner: TrialRunner,
        model: Any,
        show: Callable[[SearchProgress], None],
        *,
        verifier: Verifier | None = None,
    ) -> None:
        self._options = options
        self._store = store
        self._runner = runner
        self._model = model
        self._show = show
        self._verifier = verifier
        self._size = options.round_size(len(tasks))
        self._failures = SameFailures(
            options.stop_after_failures, f"; finished measurements are in {store.folder}"
        )
        self._round: _Round | None = None
        self._began = time.monotonic()
        self._last = self._began
        self._before = store.journal.measured_count
        self._rounds = 1 + max((e.get("round", 0) for e in store.journal.entries), default=-1)
        self._is_interrupted = self._is_waiting = False
        self.error: BaseException | None = None
        self.reason = ""
        self.seconds = dict.fromkeys(("cost_model", "draw", "build", "verify", "run"), 0.0)
        self.states = [TaskState(task) for task in tasks]
        for state in self.states:
            self._read(state)

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Stores the first error: TVM re-raises errors as other types."""
        try:
            if self._is_interrupted:
                raise KeyboardInterrupt
            yield
        except BaseException as error:
            self.error = self.error or error
            raise

    @contextmanager
    def guard_tuning(self) -> Iterator[None]:
        """Raises the first stored error instead of TVM's error.

        An interrupt waits until TVM calls the session, because TVM would turn it into another
        error.
        """
        is_main = threading.current_thread() is threading.main_thread()
        handler = signal.signal(signal.SIGINT, self._interrupt) if is_main else None
        try:
            yield
        except BaseException as error:
            if self._is_interrupted:
                raise KeyboardInterrupt from None
            if self.error is not None and self.error is not error:
                raise self.error from None
            raise
        finally:
            if is_main:
                signal.signal(signal.SIGINT, handler)

    def finish(self) -> None:
        """Records the reason for the end of the search, and the times since its last round."""
        self.end_round()
        self.note_times(None, self._rounds)
        if not self.reason:
            is_empty = all(state.is_exhausted for state in self.states)
            self.reason = "nothing new to measure" if is_empty else "stopped early"

    @contextmanager
    def clock(self, name: str) -> Iterator[None]:
        """Adds the seconds of the block to an activity, without those of nested clocks."""
        before = sum(self.seconds.values())
        started = time.perf_counter()
        try:
            yield
        finally:
            inner = sum(self.seconds.values()) - before
            self.seconds[name] += time.perf_counter() - started - inner

    @property
    def trials(self) -> int:
        """Number of measured programs, including earlier runs."""
        return self._store.journal.measured_count

    # Calls of TVM.

    def candidates(self, number: int, context: Any, draw: Callable[[], Any]) -> list[Any] | None:
        """Returns the next candidates of a task; None if it gets no more.

        Args:
            number: index of the task.
            context: TVM's tuning context.
            draw: returns new candidates of the evolutionary search.

        Raises:
            CdmppError: see `SearchStore`.
        """
        self.end_round()
        state = self.states[number]
        if state.replays:
            pairs = state.replays.pop(0)
            self._round = _Round.of(
                state, pairs[0][0]["round"], [c for _, c in pairs], [e for e, _ in pairs]
            )
            return self._round.candidates
        found = self._draw(state, context, draw)
        if not found:
            return None
        current = _Round.of(state, self._rounds, found)
        self._rounds += 1
        self._round = self._verified(current) if len(found) > self._wanted() else current
        return self._round.candidates

    def build(self, modules: Sequence[Any]) -> list[Outcome]:
        """Returns the results of building the round's candidates.

        Raises:
            CdmppError: the disk is full, or a worker cannot be started.
        """
        current = self._current()
        for place, entry in enumerate(current.entries):
            if entry is not None:
                is_build = entry["error_code"] in BUILD_CODES
                current.built[place] = Outcome(
                    entry["error_code"] if is_build else 0, entry["error"] or "", 0.0
                )
        if len(current.built) < len(modules):
            self._build(current, modules, machine_code=self._options.machine_code)
        for place, outcome in sorted(current.built.items()):
            if outcome.error_code and current.entries[place] is None:
                self._note(current, place, outcome, build_s=outcome.seconds)
        return [current.built[place] for place in range(len(modules))]

    def run(self) -> list[tuple[list[float] | None, str | None]]:
        """Returns (seconds, error) of every built program of the round.

        Raises:
            CdmppError: the disk is full, or a worker cannot be started.
        """
        current = self._current()
        results: list[tuple[list[float] | None, str | None]] = []
        for place, built in sorted(current.built.items()):
            if built.error_code:
                continue
            entry = current.entries[place]
            if entry is None and self._is_late():
                results.append((None, _NOT_RUN))
                continue
            if entry is None:
                with self.clock("run"), self._workers():
                    outcome = self._runner.run(current.names[place], built.arguments)
                entry = self._note(current, place, outcome, build_s=built.seconds)
                is_kept = self._options.machine_code and bool(built.machine_code)
                if is_kept and not outcome.error_code:
                    self._store.add_code(entry["program_id"], built.machine_code)
                self._show(self.progress("measuring"))
            results.append((list(entry["costs_s"]) or None, entry["error"]))
        self.end_round()
        return results

    def end_round(self) -> None:
        """Records the times of the round."""
        current = self._round
        if current is None or all(entry is not None for entry in current.entries):
            self._round = None
            return
        self._round = None
        self.note_times(current.state, current.number)

    def note_times(self, state: TaskState | None, number: int) -> None:
        """Writes the times since the last `round` entry into the journal."""
        now = time.monotonic()
        gain = Gain(None, None) if state is None else state.gain
        self._store.journal.append(
            {"kind": "round", "round": number, "task": None if state is None else state.task.key,
             "wall_s": now - self._last, "predicted_gain": gain.predicted,
             "xgb_share": self._xgb_share(),
             **{f"{name}_s": value for name, value in self.seconds.items()}}
        )  # fmt: skip
        self._store.save_code()
        self._last = now
        self.seconds.update(dict.fromkeys(self.seconds, 0.0))

    def _xgb_share(self) -> float | None:
        """Returns the current weight of TVM's XGB model in the scores; None if it does not run."""
        if self._options.cost_model != "cdmpp" or not self._options.safety_net:
            return None
        return float(self._model.model.net.peer_share)

    def progress(self, stage: str) -> SearchProgress:
        """Returns the progress of the search."""
        rows = tuple(
            TaskProgress(
                name=state.task.task.name, weight=state.task.weight,
                trials=len(state.latencies_s), failed=state.failed, best_s=state.best_s,
                gain=state.gain.expected,
            )
            for state in self.states
        )  # fmt: skip
        return SearchProgress(
            stage=stage, trials=self.trials, total=self._options.trials,
            seconds_left=self._seconds_left(), gain=self.expected_gain(), advice=self.advice(),
            tasks=rows,
        )  # fmt: skip

    def expected_gain(self) -> float | None:
        """Returns the expected gain of all tasks together."""
        return total_gain(
            [state.gain for state in self.states],
            [None if s.best_s is None else s.task.weight * s.best_s for s in self.states],
        )

    def advice(self) -> str | None:
        """Returns the advice to stop; None if more trials are worthwhile."""
        if all(state.is_exhausted for state in self.states):
            return f"all programs proposed by TVM are measured: stop after {self.trials} trials"
        gains = [state.gain for state in self.states if not state.is_exhausted]
        return advice(gains, self._options.stop_gain, self.trials)

    # Implementation.

    def _read(self, state: TaskState) -> None:
        """Reads the trials of earlier runs."""
        for entry, candidate in self._store.trials(state.task.key):
            if not state.replays or state.replays[-1][0][0]["round"] != entry["round"]:
                state.replays.append([])
            state.replays[-1].append((entry, candidate))
            state.add(entry, candidate)
        predicted = [
            entry["predicted_gain"]
            for entry in self._store.journal.entries
            if entry["kind"] == "round" and entry["task"] == state.task.key
        ]
        state.gain = Gain(trend(state.latencies_s), predicted[-1] if predicted else None)

    def _draw(self, state: TaskState, context: Any, draw: Callable[[], Any]) -> list[Any]:
        """Returns programs that were not measured yet; an empty list if the task gets no more."""
        if not self.reason and self.trials >= self._options.trials:
            self.reason = "finished"
        if not self.reason and self._is_late():
            self.reason = "out of time"
        if self.reason:
            return []
        if self._options.stop_early and is_settled(state.gain, self._options.stop_gain):
            return []
        self._show(self.progress("drawing"))
        fresh: list[Any] = []
        with self.clock("draw"):
            for _ in range(_EMPTY_ROUNDS):
                found = draw()
                if found is None:
                    break
                fresh = [c for c in found if shash2hex(c.sch.mod) not in state.known]
                if fresh:
                    break
            fresh = fresh[: self._options.verify * self._wanted()]
            missing = max(0, self._wanted() - len(fresh))
            fresh += [candidate for _, candidate in state.spare[:missing]]
            state.spare = state.spare[missing:]
            if fresh:
                state.gain = Gain(
                    trend(state.latencies_s), self._predicted_gain(state, context, fresh)
                )
                is_stopped = self._options.stop_early and is_settled(
                    state.gain, self._options.stop_gain
                )
                return [] if is_stopped else fresh
        state.is_exhausted = True
        state.gain = Gain(0.0, None)
        return []

    def _wanted(self) -> int:
        """Returns the number of programs that the next round runs."""
        return min(self._size, self._options.trials - self.trials)

    def _verified(self, drafted: _Round) -> _Round:
        """Builds the drafts of a round; returns those with the lowest predictions.

        Drafts that fail to build become trials only if there are too few others. Other drafts do
        not become trials and are hidden from TVM; the built ones are kept as spares for rounds in
        which it proposes too few programs.
        """
        assert self._verifier is not None
        modules = [candidate.sch.mod for candidate in drafted.candidates]
        self._build(drafted, modules, machine_code=True)
        outcomes = [drafted.built[place] for place in range(len(modules))]
        with self.clock("verify"):
            latency_s = self._verifier.latency_s(modules, [one.machine_code for one in outcomes])
        is_built = [not one.error_code for one in outcomes]
        self._store.journal.append(
            {"kind": "drafted", "round": drafted.number, "task": drafted.state.task.key,
             "drafted": len(modules), "built": sum(is_built)}
        )  # fmt: skip
        order = sorted(range(len(modules)), key=lambda p: (not is_built[p], latency_s[p]))
        count = self._wanted()
        spare = [p for p in order[count:] if is_built[p]]
        for place in spare:
            self._runner.remove(drafted.names[place])
        state = drafted.state
        state.spare += [(float(latency_s[p]), drafted.candidates[p]) for p in spare]
        state.spare = sorted(state.spare, key=lambda one: one[0])[:_MOST_SPARE]
        return drafted.take(order[:count])

    def _build(self, current: _Round, modules: Sequence[Any], *, machine_code: bool) -> None:
        """Builds the round's candidates that were not built yet."""
        places = {
            current.names[place]: place
            for place in range(len(modules))
            if place not in current.built
        }
        self._show(self.progress("building"))
        with self.clock("build"), self._workers():
            programs = self._runner.of_modules({name: modules[p] for name, p in places.items()})
            asked = {name: {**one, "machine_code": machine_code} for name, one in programs.items()}
            for name, outcome in self._runner.build(asked):
                current.built[places[name]] = outcome

    def _predicted_gain(
        self, state: TaskState, context: Any, candidates: Sequence[Any]
    ) -> float | None:
        if self._options.cost_model != "cdmpp" or state.best_s is None:
            return None
        measured = [candidate for candidate, _ in state.measured]
        with self.clock("cost_model"):
            scores = self._model.predict(context, [*candidates, *measured])
        seconds = np.array([latency_s for _, latency_s in state.measured])
        count = len(candidates)
        return predicted_gain(scores[:count], scores[count:], seconds, state.best_s)

    def _note(
        self, current: _Round, place: int, outcome: Outcome, *, build_s: float
    ) -> dict[str, Any]:
        is_build = bool(current.built[place].error_code)
        entry: dict[str, Any] = {
            "round": current.number, "error_code": outcome.error_code,
            "error": outcome.error or None, "costs_s": list(outcome.costs_s), "build_s": build_s,
            "run_s": 0.0 if is_build else outcome.seconds, "measured_at": int(time.time()),
        }  # fmt: skip
        state = current.state
        entry["program_id"] = self._store.add(state.task.key, current.candidates[place], entry)
        state.add(entry, current.candidates[place])
        state.gain = Gain(trend(state.latencies_s), state.gain.predicted)
        self._failures.add(failure_name(outcome.error_code), outcome.error)
        return entry

    def _current(self) -> _Round:
        assert self._round is not None
        return self._round

    def _is_late(self) -> bool:
        minutes = self._options.minutes
        return minutes > 0 and time.monotonic() - self._began >= 60.0 * minutes

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        is_second = self._is_interrupted
        self._is_interrupted = True
        if self._is_waiting or is_second:
            raise KeyboardInterrupt

    @contextmanager
    def _workers(self) -> Iterator[None]:
        """Makes interrupts take effect at once, and reports a full disk, while workers run."""
        self._is_waiting = True
        try:
            yield
        except DiskFullError:
            raise self._store.journal.disk_full() from None
        finally:
            self._is_waiting = False

    def _seconds_left(self) -> float | None:
        new = self.trials - self._before
        passed = time.monotonic() - self._began
        by_budget = 60.0 * self._options.minutes - passed if self._options.minutes else math.inf
        by_trials = math.inf
        if new:
            by_trials = passed / new * max(0, self._options.trials - self.trials)
        left = min(by_budget, by_trials)
        return None if math.isinf(left) else max(0.0, left)


def runner_result(costs_s: list[float] | None, error: str | None) -> Any:
    """Returns TVM's result object for the seconds or the error of a program."""
    if costs_s is None:
        return meta_schedule.runner.RunnerResult(None, error or f"failed ({FAILED_S:g} s)")
    return meta_schedule.runner.RunnerResult(costs_s, None)
