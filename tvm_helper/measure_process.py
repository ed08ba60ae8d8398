"""How a campaign talks to its workers: the campaign's side, which outlives every worker."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cdmpp.errors import DeviceError
from tvm_helper.measure_protocol import first_error_text

WORKER_COMMAND = (sys.executable, "-m", "tvm_helper.measure_worker")
_TAIL_BYTES = 20_000
#: A worker whose first start fails so often is not the programs' fault.
_STARTS = 2
_SECONDS_TO_END = 20.0

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
        command: what to run; it calls `measure_protocol.serve`.
        log: file for its standard error.
        queue_timeout_s: how long it may take to start, and to begin a request.
        environment: variables on top of those of this process.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        *,
        queue_timeout_s: float,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._command = list(command)
        self._log = log
        self._queue_timeout_s = queue_timeout_s
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""

    @property
    def pid(self) -> int | None:
        """Its process, None while there is none."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Starts the process unless it runs, and waits until it is ready.

        Raises:
            DeviceError: it does not become ready.
        """
        if self._process is not None and self._process.poll() is None:
            return
        text = ""
        for _ in range(_STARTS):
            self._spawn()
            event = self._next_event(time.monotonic() + self._queue_timeout_s)
            if event is not None and event["event"] == "ready":
                return
            is_late = self._process is not None and self._process.poll() is None
            text = "it was not ready in time" if is_late else self._last_words()
            self.stop()
        raise DeviceError(
            f"the worker process cannot be started ({text}); expected it to be ready within "
            f"{self._queue_timeout_s:.0f} s. Try it: {' '.join(self._command)}"
        )

    def ask(self, request: Mapping[str, Any], *, timeout_s: float) -> Answer:
        """Returns what became of a request; the seconds count from when its work begins.

        Raises:
            DeviceError: the worker cannot be started, or the device is not free in time.
        """
        self.start()
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            os.truncate(self._log, 0)
        with contextlib.suppress(BrokenPipeError):  # then it is gone, which reading finds out
            self._process.stdin.write(json.dumps(dict(request)).encode("ascii") + b"\n")
            self._process.stdin.flush()
        began = time.monotonic()
        deadline, has_begun = began + self._queue_timeout_s, False
        while True:
            event = self._next_event(deadline)
            elapsed = time.monotonic() - began if has_begun else 0.0
            if event is None:
                return self._no_answer(has_begun=has_begun, elapsed_s=elapsed, timeout_s=timeout_s)
            if event["event"] == "begin":
                began, has_begun = time.monotonic(), True
                deadline = began + timeout_s
            elif event["event"] == "failed":
                return Answer("failed", event, event["error"], elapsed_s=elapsed)
            elif event["event"] == "done":
                return Answer("done", event, elapsed_s=elapsed)

    def _no_answer(self, *, has_begun: bool, elapsed_s: float, timeout_s: float) -> Answer:
        assert self._process is not None
        if self._process.poll() is not None:
            code = self._process.returncode
            text = self._last_words()
            self.stop()
            return Answer("died", {}, text, signal=-code if code < 0 else None, elapsed_s=elapsed_s)
        self.stop()
        if not has_begun:
            raise DeviceError(
                f"the device was not free within {self._queue_timeout_s:.0f} s (queue_timeout_s); "
                "see whether somebody else holds it, then run the same command again"
            )
        return Answer("timeout", {}, f"killed after {timeout_s:g} s", elapsed_s=elapsed_s)

    def _spawn(self) -> None:
        self._buffer = b""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                env=self._environment, start_new_session=True,
            )  # fmt: skip

    def _next_event(self, deadline: float) -> dict[str, Any] | None:
        """Returns the next line of the worker; None when it is gone or the time is over."""
        assert self._process is not None
        assert self._process.stdout is not None
        file = self._process.stdout.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(file, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    return None
                data = os.read(file, 1 << 16)
                if not data:
                    self._reap()
                    return None
                self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        value: dict[str, Any] = json.loads(line)
        return value

    def _reap(self) -> None:
        """Waits for a process whose pipe has been closed; ends it when it stays all the same."""
        assert self._process is not None
        try:
            self._process.wait(timeout=_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _last_words(self) -> str:
        assert self._process is not None
        code = self._process.returncode
        with contextlib.suppress(ValueError):
            if code is not None and code < 0:
                return f"killed by {signal.Signals(-code).name}"
        with self._log.open("rb") as stream:
            stream.seek(max(0, self._log.stat().st_size - _TAIL_BYTES))
            words = stream.read().decode("utf-8", "replace")
        said = first_error_text("\n".join(reversed(words.splitlines()))) if words.strip() else ""
        return f"ended with code {code}" + (f": {said}" if said else "")

    def stop(self) -> None:
        """Ends the process and all that it started."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._process = None


def ask_all(
    workers: Sequence[Worker], requests: Sequence[Mapping[str, Any]], *, timeout_s: float
) -> Iterator[tuple[int, Answer]]:
    """Yields (number of the request, answer) as they come, spread over the workers.

    Raises:
        DeviceError: see `Worker.ask`.
    """
    if len(workers) == 1:
        for number, request in enumerate(requests):
            yield number, workers[0].ask(request, timeout_s=timeout_s)
        return
    from concurrent.futures import ThreadPoolExecutor, as_completed
    from queue import SimpleQueue

    free: SimpleQueue[Worker] = SimpleQueue()
    for worker in workers:
        free.put(worker)

    def one(number: int) -> tuple[int, Answer]:
        worker = free.get()
        try:
            return number, worker.ask(requests[number], timeout_s=timeout_s)
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
