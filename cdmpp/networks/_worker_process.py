"""The campaign's side of `measure_worker`: starts it, asks it, outlives it."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from cdmpp.errors import DeviceError

WORKER_COMMAND = (sys.executable, "-m", "cdmpp.networks.measure_worker")
_SECONDS_TO_START = 300.0
#: The worker itself ends what takes too long; this is for a worker that hangs.
_SECONDS_TO_ANSWER = 30.0
#: Every part of a sample may take its time-out.
_MOST_PARTS = 2


class WorkerProcess:
    """A worker, started when it is first asked and again when it died.

    Args:
        environment: variables on top of those of this process.
        log: file for its standard error.
        command: what to run.

    Attributes:
        torch_version: of the worker; None before it has started.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        log: Path,
        *,
        command: Sequence[str] = WORKER_COMMAND,
    ) -> None:
        self._environment = {**os.environ, **environment}
        self._log = log
        self._command = list(command)
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""
        self.torch_version: str | None = None

    @property
    def pid(self) -> int | None:
        """Its process, None while there is none."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Starts the process unless it runs.

        Raises:
            DeviceError: it does not become ready.
        """
        if self._process is not None:
            return
        self._buffer = b""
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                env=self._environment, start_new_session=True,
            )  # fmt: skip
        answer = self._answer(time.monotonic() + _SECONDS_TO_START)
        if answer is None:
            self.stop()
            words = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise DeviceError(
                f"the process that runs networks does not start ({words[-1] if words else 'silent'}"
                f"); expected it to be ready within {_SECONDS_TO_START:.0f} s. Try it: "
                f"{' '.join(self._command)}"
            )
        self.torch_version = answer["torch_version"]

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the answer; `outcome` is `crashed` when the worker died or hung.

        Raises:
            DeviceError: the worker cannot be started.
        """
        self.start()
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # then reading finds it gone
            self._process.stdin.write(json.dumps(dict(request)).encode("ascii") + b"\n")
            self._process.stdin.flush()
        allowed = _MOST_PARTS * request["timeout_s"] + _SECONDS_TO_ANSWER
        answer = self._answer(time.monotonic() + allowed)
        if answer is None:
            self.stop()
            return {"outcome": "crashed", "note": "the process that runs samples died or hung"}
        return answer

    def stop(self) -> None:
        """Ends the process and the sample that runs."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        self._process = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.stop()

    def _answer(self, deadline: float) -> dict[str, Any] | None:
        """Returns the next line; None when the worker is gone or the time is over."""
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
                    return None
                self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        value: dict[str, Any] = json.loads(line)
        return value
