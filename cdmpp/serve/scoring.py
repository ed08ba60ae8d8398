"""One thread with the models: it scores waiting requests together."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from cdmpp.arrays import FloatArray
from cdmpp.models.assemble import AskedProgram, assemble_samples
from cdmpp.predict.estimates import Estimates
from cdmpp.serve.hot_models import HotModel

#: Maximum squared padded stores in a batch, which bounds the memory of a model's attention.
_MOST_WORK = 20_000_000
_PROGRAMS_TOGETHER = 512
_log = logging.getLogger("cdmpp.serve")


@dataclass(frozen=True)
class Scored:
    """Predictions for the programs of one request.

    Attributes:
        latency_s: float64 [N], the model's values; not finite if a prediction failed.
        estimates: predictions with intervals of the whole batch; None if not requested.
        start: index of the request's first program in `estimates`.
    """

    latency_s: FloatArray
    estimates: Estimates | None = None
    start: int = 0


@dataclass(frozen=True, eq=False)
class _Job:
    model: HotModel
    asked: Sequence[AskedProgram]
    has_estimates: bool
    own_batch: bool
    answer: Future[Scored] = field(default_factory=Future)

    def goes_with(self, other: _Job) -> bool:
        return (
            self.model.version == other.model.version
            and self.model.name == other.model.name
            and self.has_estimates == other.has_estimates
            and not (self.own_batch or other.own_batch)
        )


class Scoring:
    """The thread that runs models.

    Args:
        on_batch: called with the number of programs of every batch.
    """

    def __init__(self, on_batch: Callable[[int], None] = lambda count: None) -> None:
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._on_batch = on_batch
        self._thread = threading.Thread(target=self._run, name="cdmpp-model", daemon=True)
        self._thread.start()

    def submit(
        self,
        model: HotModel,
        asked: Sequence[AskedProgram],
        *,
        has_estimates: bool,
        own_batch: bool = False,
    ) -> Future[Scored]:
        """Returns a future with the predictions.

        Args:
            asked: at least one program.
            has_estimates: whether to predict intervals too.
            own_batch: whether the programs are scored in one batch without others.
        """
        job = _Job(model, asked, has_estimates, own_batch)
        self._jobs.put(job)
        return job.answer

    def stop(self) -> None:
        """Ends the thread after the waiting jobs."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        waiting: list[_Job] = []
        is_stopped = False
        while not is_stopped or waiting:
            try:
                while True:
                    job = self._jobs.get(block=not waiting and not is_stopped)
                    if job is None:
                        is_stopped = True
                    else:
                        waiting.append(job)
            except queue.Empty:
                pass
            if waiting:
                first = waiting[0]
                batch, count = [first], len(first.asked)
                for job in waiting[1:]:
                    if first.goes_with(job) and count + len(job.asked) <= _PROGRAMS_TOGETHER:
                        batch.append(job)
                        count += len(job.asked)
                waiting = [job for job in waiting if job not in batch]
                self._answer([job for job in batch if job.answer.set_running_or_notify_cancel()])

    def _answer(self, jobs: Sequence[_Job]) -> None:
        """Answers compatible jobs together; if that fails, each on its own."""
        if not jobs:
            return
        try:
            scored = _scored(jobs[0], [program for job in jobs for program in job.asked])
        except Exception as error:
            if len(jobs) > 1:
                for job in jobs:
                    self._answer([job])
                return
            _log.exception("a model failed")
            jobs[0].answer.set_exception(error)
            return
        self._on_batch(len(scored.latency_s))
        start = 0
        for job in jobs:
            stop = start + len(job.asked)
            job.answer.set_result(Scored(scored.latency_s[start:stop], scored.estimates, start))
            start = stop


def is_too_large(asked: Sequence[AskedProgram]) -> bool:
    """Whether programs would take too much memory in one batch."""
    leaves = np.sort([len(program.ast.leaf_features) for program in asked])
    largest = [int(leaves[start : start + 256][-1]) for start in range(0, len(leaves), 256)]
    return any(min(256, len(leaves)) * most**2 > _MOST_WORK for most in largest)


def _scored(job: _Job, asked: Sequence[AskedProgram]) -> Scored:
    samples = assemble_samples(asked)
    trained = job.model.trained
    if not job.has_estimates:
        return Scored(trained.predict(samples))
    found = trained.estimate(samples)
    return Scored(found.latency_s, found)
