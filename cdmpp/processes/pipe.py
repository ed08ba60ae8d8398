"""The parent's side of a child process that reads and answers JSON lines."""

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
#: Requested size of the pipe: a process may work ahead of the reader of its answers.
_PIPE_BYTES = 1 << 20


class WorkerPipe:
    """A child process with pipes to its standard input and from its standard output.

    Args:
        command: command line of the process.
        log: file for its standard error, truncated at each start; None = a temporary file.
        environment: its complete environment; None = that of this process.
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
        """The process ID, None while there is no process."""
        return None if self._process is None else self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process has started and not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def code(self) -> int | None:
        """Exit code of a process that ended by itself, None otherwise; -N = killed by signal N."""
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        """Starts the process in a session of its own.

        Raises:
            OSError: the command or the log cannot be opened.
        """
        self.stop()
        self._buffer = b""
        path = self._log_path
        # Closed by `stop`; in append mode because `forget_words` truncates it during writes.
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
        """Writes a line; a broken pipe is ignored and noticed when the answer is read."""
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(dict(request)).encode("ascii") + b"\n")
            self._process.stdin.flush()

    def receive(self, deadline: float | None) -> dict[str, Any] | None:
        """Returns the next line; None when the process has ended or the deadline has passed.

        Args:
            deadline: in seconds of `time.monotonic()`; None = no limit.
        """
        assert self._process is not None
        assert self._process.stdout is not None
        file = self._process.stdout.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(file, selectors.EVENT_READ)
            if self._end is not None:  # a grandchild may keep the pipe open
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
        """Returns how the process ended and the last line of its standard error with a reason."""
        how = "is running" if self.code is None else ending(self.code)
        if self._log is None or (self.code is not None and self.code < 0):
            return how
        size = os.fstat(self._log.fileno()).st_size
        tail = os.pread(self._log.fileno(), _TAIL_BYTES, max(0, size - _TAIL_BYTES))
        words = tail.decode("utf-8", "replace").strip()
        said = first_error_text("\n".join(reversed(words.splitlines()))) if words else ""
        return f"{how}: {said}" if said else how

    def forget_words(self) -> None:
        """Empties the log, so that `last_words` reports only what is written from now on."""
        if self._log is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._log.fileno(), 0)

    def stop(self) -> None:
        """Kills the process and its process group."""
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
        """Waits for a process whose pipe was closed, and kills it if it does not end."""
        assert self._process is not None
        try:
            self._process.wait(timeout=_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def ending(code: int) -> str:
    """Returns an exit code in words; a negative code is a signal."""
    with contextlib.suppress(ValueError):
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
    return f"ended with code {code}"
