"""A process that does one request after the other and may die, seen from the side that asks."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from cdmpp.errors import DeviceError
from cdmpp.processes.pipe import WorkerPipe

#: A worker whose first start fails so often is not the programs' fault.
_STARTS = 2

Outcome = Literal["done", "failed", "timeout", "died"]


@dataclass(frozen=True)
class Answer:
    """What became of a request.

    Attributes:
        outcome: `done`; `failed` = the worker says why; `timeout` = it took too long and was
            killed; `died` = the worker is gone.
        value: the worker's answer, empty unless `done` or `failed`.
        text: why, empty when `done`.
        signal: what ended a worker that died, None where it ended by itself.
        elapsed_s: seconds since the work began.
    """

    outcome: Outcome
    value: dict[str, Any]
    text: str = ""
    signal: int | None = None
    elapsed_s: float = 0.0


class Worker:
    """A process that does one request after the other, and is started again when it died.

    Args:
        command: what to run; it calls `cdmpp.processes.serve.serve`.
        log: file for its standard error.
        queue_timeout_s: how long it may take to start, and to begin a request.
        environment: variables on top of those of this process.
        cpu: number of the CPU that it may use; None = those of this process.

    Attributes:
        facts: what the process said of itself when it was ready; empty before.
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
        """Its process, None while there is none."""
        return self._pipe.pid

    def start(self) -> None:
        """Starts the process unless it runs, and waits until it is ready.

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
        """Returns what became of a request; the seconds count from when its work begins.

        Args:
            request: what the worker gets.
            timeout_s: seconds for its work.
            grace_s: seconds on top after which a worker is killed that counts them itself.

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
        """Ends the process and all that it started."""
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
    """Yields (number of the request, answer) as they come, spread over the workers.

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
