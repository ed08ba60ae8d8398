"""A process of our own that reads and answers JSON lines, seen from the side that outlives it."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_SECONDS_TO_END = 20.0


class WorkerPipe:
    """A process with a pipe to its standard input and one from its standard output.

    Args:
        command: what to run.
        log: file for its standard error; emptied when the process starts.
        environment: variables on top of those of this process.
    """

    def __init__(
        self, command: Sequence[str], log: Path, *, environment: Mapping[str, str] | None = None
    ) -> None:
        self.command = list(command)
        self.log = log
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""

    @property
    def pid(self) -> int | None:
        """Its process, None while there is none."""
        return None if self._process is None else self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether there is a process that has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def code(self) -> int | None:
        """Exit code of a process that has ended and was not stopped; -N = killed by signal N."""
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        """Starts the process in a session of its own."""
        self._buffer = b""
        self.log.write_bytes(b"")
        with self.log.open("ab") as log:  # appending: the file may be emptied while it runs
            self._process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                env=self._environment, start_new_session=True,
            )  # fmt: skip

    def send(self, request: Mapping[str, Any]) -> None:
        """Writes a line; a process that is gone is noticed when its answer is read."""
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(dict(request)).encode("ascii") + b"\n")
            self._process.stdin.flush()

    def receive(self, deadline: float) -> dict[str, Any] | None:
        """Returns the next line; None when the process is gone or the time is over.

        Args:
            deadline: of `time.monotonic()`, seconds.
        """
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

    def _reap(self) -> None:
        """Waits for a process whose pipe has been closed; ends it when it stays all the same."""
        assert self._process is not None
        try:
            self._process.wait(timeout=_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
