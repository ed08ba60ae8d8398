"""The parent's side of a worker process that handles one request at a time and may die."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from cdmpp.errors import DeviceError
from cdmpp.processes.pipe import WorkerPipe

#: Number of attempts to start a worker; after that, the programs are not the cause.
_STARTS = 2

Outcome = Literal["done", "failed", "timeout", "died"]


@dataclass(frozen=True)
class Answer:
    """Outcome of a request.

    Attributes:
        outcome: `done`; `failed` = the worker reported an error; `timeout` = the worker was killed
            after the time limit; `died` = the worker process ended.
        value: the worker's answer, empty unless `done` or `failed`.
        text: reason, empty if `done`.
        signal: signal that killed a dead worker, None if it exited by itself.
        elapsed_s: seconds since the work began.
    """

    outcome: Outcome
    value: dict[str, Any]
    text: str = ""
    signal: int | None = None
    elapsed_s: float = 0.0


class Worker:
    """A process that handles one request at a time, restarted after it died.

    Args:
        command: its command line; it calls `cdmpp.processes.serve.serve`.
        log: file for its standard error.
        queue_timeout_s: seconds it may take to start, and to begin a request.
        environment: variables added to those of this process.
        cpu: number of the one CPU it may use; None = all CPUs of this process.

    Attributes:
        facts: what the process reported with `ready`; empty before.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        *,
        queue_timeout_s: float,
        environment: Mapping[str, str] | None = None,
        cpu: int | None = None,
    ) -> None:
        self._cpu = cpu
        self._pipe = WorkerPipe(command, log, environment={**os.environ, **(environment or {})})
        self.facts: dict[str, Any] = {}
        self._queue_timeout_s = queue_timeout_s

    @property
    def pid(self) -> int | None:
        """The process ID, None while there is no process."""
        return self._pipe.pid

    def start(self) -> None:
        """Starts the process unless it is running, and waits until it is ready.

        Raises:
            DeviceError: it does not become ready.
        """
        if self._pipe.is_running:
            return
        text = ""
        for _ in range(_STARTS):
            try:
                self._pipe.start()
                if self._cpu is not None and self._pipe.pid is not None:
                    os.sched_setaffinity(self._pipe.pid, {self._cpu})
            except OSError as error:
                raise DeviceError(
                    f"the worker process cannot be started ({error}); fix this and rerun the "
                    "same command"
                ) from None
            event = self._pipe.receive(time.monotonic() + self._queue_timeout_s)
            if event is not None and event.pop("event") == "ready":
                self.facts = event
                return
            text = "it was not ready in time" if self._pipe.is_running else self._pipe.last_words()
            self.stop()
        raise DeviceError(
            f"the worker process cannot be started ({text}); expected it to be ready within "
            f"{self._queue_timeout_s:.0f} s. Try: {' '.join(self._pipe.command)}"
        )

    def ask(self, request: Mapping[str, Any], *, timeout_s: float, grace_s: float = 0.0) -> Answer:
        """Returns the outcome of a request; its seconds count from the start of the work.

        Args:
            request: sent to the worker.
            timeout_s: time limit of the work in seconds.
            grace_s: further seconds before the worker is killed, for workers with their own timer.

        Raises:
            DeviceError: the worker cannot be started, or the device is not free in time.
        """
        self.start()
        self._pipe.forget_words()
        self._pipe.send(request)
        began = time.monotonic()
        deadline, has_begun = began + self._queue_timeout_s, False
        while True:
            event = self._pipe.receive(deadline)
            elapsed = time.monotonic() - began if has_begun else 0.0
            if event is None:
                return self._no_answer(has_begun=has_begun, elapsed_s=elapsed, timeout_s=timeout_s)
            kind = event.pop("event")
            if kind == "begin":
                began, has_begun = time.monotonic(), True
                deadline = began + timeout_s + grace_s
            elif kind == "failed":
                return Answer("failed", event, event["error"], elapsed_s=elapsed)
            elif kind == "done":
                return Answer("done", event, elapsed_s=elapsed)

    def _no_answer(self, *, has_begun: bool, elapsed_s: float, timeout_s: float) -> Answer:
        code = self._pipe.code
        if code is not None:
            text = self._pipe.last_words()
            self.stop()
            return Answer("died", {}, text, signal=-code if code < 0 else None, elapsed_s=elapsed_s)
        self.stop()
        if not has_begun:
            raise DeviceError(
                f"the device was not free within {self._queue_timeout_s:.0f} s "
                "(queue_timeout_s); check whether another process uses it, then rerun the same "
                "command"
            )
        return Answer("timeout", {}, f"killed after {timeout_s:g} s", elapsed_s=elapsed_s)

    def stop(self) -> None:
        """Kills the process and its process group."""
        self._pipe.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.stop()


def ask_all(
    workers: Sequence[Worker],
    requests: Sequence[Mapping[str, Any]],
    *,
    timeout_s: float,
    grace_s: float = 0.0,
) -> Iterator[tuple[int, Answer]]:
    """Yields (index of the request, answer) in order of completion, spread over the workers.

    Raises:
        DeviceError: see `Worker.ask`.
    """
    if len(workers) == 1:
        for number, request in enumerate(requests):
            yield number, workers[0].ask(request, timeout_s=timeout_s, grace_s=grace_s)
        return
    from concurrent.futures import ThreadPoolExecutor, as_completed
    from queue import SimpleQueue

    free: SimpleQueue[Worker] = SimpleQueue()
    for worker in workers:
        free.put(worker)

    def one(number: int) -> tuple[int, Answer]:
        worker = free.get()
        try:
            return number, worker.ask(requests[number], timeout_s=timeout_s, grace_s=grace_s)
        finally:
            free.put(worker)

    with ThreadPoolExecutor(len(workers)) as pool:
        try:
            for future in as_completed([pool.submit(one, n) for n in range(len(requests))]):
                yield future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in workers:
                worker.stop()
            raise
