"""A process of our own that reads and answers JSON lines, seen from the side that outlives it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from cdmpp.processes.serve import first_error_text

_SECONDS_TO_END = 20.0
_TAIL_BYTES = 20_000
#: What a pipe holds, where the system allows it: a process may work ahead of who takes its answers.
_PIPE_BYTES = 1 << 20


class WorkerPipe:
    """A process with a pipe to its standard input and one from its standard output.

    Args:
        command: what to run.
        log: file for its standard error, emptied when the process starts; None = a temporary one.
        environment: all its variables; None = those of this process.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path | None = None,
        *,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.command = list(command)
        self._log_path = log
        self._log: IO[bytes] | None = None
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._end: int | None = None
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
        """Starts the process in a session of its own.

        Raises:
            OSError: the command or the log cannot be opened.
        """
        self.stop()
        self._buffer = b""
        path = self._log_path
        # Closed by `stop`; appending, for it may be emptied while it is written.
        self._log = tempfile.TemporaryFile() if path is None else path.open("w+b")  # noqa: SIM115
        fcntl.fcntl(self._log, fcntl.F_SETFL, os.O_APPEND)
        self._process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=self._environment,
            start_new_session=True,
        )
        with contextlib.suppress(OSError, AttributeError):  # what Linux has
            self._end = os.pidfd_open(self._process.pid)
        assert self._process.stdout is not None
        with contextlib.suppress(OSError, AttributeError):
            fcntl.fcntl(self._process.stdout, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    def send(self, request: Mapping[str, Any]) -> None:
        """Writes a line; a process that is gone is noticed when its answer is read."""
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(dict(request)).encode("ascii") + b"\n")
            self._process.stdin.flush()

    def receive(self, deadline: float | None) -> dict[str, Any] | None:
        """Returns the next line; None when the process is gone or the time is over.

        Args:
            deadline: of `time.monotonic()`, seconds; None = it may take for ever.
        """
        assert self._process is not None
        assert self._process.stdout is not None
        file = self._process.stdout.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(file, selectors.EVENT_READ)
            if self._end is not None:  # what a program has started may keep the pipe open
                selector.register(self._end, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                ready = [key.fd for key, _ in selector.select(left)]
                if not ready:
                    return None
                data = os.read(file, _PIPE_BYTES) if file in ready else b""
                if not data:
                    self._reap()
                    return None
                self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        value: dict[str, Any] = json.loads(line)
        return value

    def last_words(self) -> str:
        """Returns how a process ended, and the last line of its standard error that says why."""
        how = "is running" if self.code is None else ending(self.code)
        if self._log is None or (self.code is not None and self.code < 0):
            return how
        size = os.fstat(self._log.fileno()).st_size
        tail = os.pread(self._log.fileno(), _TAIL_BYTES, max(0, size - _TAIL_BYTES))
        words = tail.decode("utf-8", "replace").strip()
        said = first_error_text("\n".join(reversed(words.splitlines()))) if words else ""
        return f"{how}: {said}" if said else how

    def forget_words(self) -> None:
        """Empties the standard error, so that last words are of what comes now."""
        if self._log is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._log.fileno(), 0)

    def stop(self) -> None:
        """Ends the process and all that it started."""
        if self._log is not None:
            self._log.close()
            self._log = None
        if self._end is not None:
            os.close(self._end)
            self._end = None
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


def ending(code: int) -> str:
    """Returns what an exit code says; a negative one is of a signal."""
    with contextlib.suppress(ValueError):
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
    return f"ended with code {code}"
