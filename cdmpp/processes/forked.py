"""A handler that runs requests in a forked child: a hang or crash costs only a new fork."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

from cdmpp.processes.serve import Handler, ProgramError, error_text

_CHUNK_BYTES = 1 << 16


class Forked:
    """Runs requests in a forked child, which is forked when there is none.

    The child inherits all that this process has loaded. `limit_s` of a request is its time limit
    in seconds.

    Args:
        handler: runs the requests.
        prepare: loads what every child needs; called once, before the first fork.
        timeout_code: error code of a request that ran past its limit.
        died_code: error code of a request whose child died by a signal other than SIGKILL.
        killed_code: error code of a request whose child got SIGKILL or exited.
    """

    def __init__(
        self,
        handler: Handler,
        prepare: Callable[[], None],
        *,
        timeout_code: int,
        died_code: int,
        killed_code: int,
    ) -> None:
        self._handler = handler
        self._prepare: Callable[[], None] | None = prepare
        self._codes = {"timeout": timeout_code, "died": died_code, "killed": killed_code}
        self._pid: int | None = None
        self._to = self._from = -1

    def __call__(self, request: dict[str, Any], begin: Any) -> dict[str, Any]:
        """Runs a request as a `Handler`; one without `limit_s` runs in this process.

        Raises:
            ProgramError: the request failed, hung or ended the child.
        """
        if "limit_s" not in request:
            return self._handler(request, begin)
        if self._prepare is not None:
            self._prepare()
            self._prepare = None
        if self._pid is None:
            self._fork()
        begin()
        with contextlib.suppress(BrokenPipeError):
            _write(self._to, request)
        answer = self._answer(time.monotonic() + request["limit_s"])
        if answer is None:
            self.end()
            raise ProgramError(self._codes["timeout"], f"killed after {request['limit_s']:g} s")
        if not answer:
            status = self.end()
            if not os.WIFSIGNALED(status):
                raise ProgramError(
                    self._codes["killed"], f"ended with code {os.WEXITSTATUS(status)}"
                )
            number = os.WTERMSIG(status)
            kind = "killed" if number == signal.SIGKILL else "died"
            raise ProgramError(self._codes[kind], f"killed by {signal.Signals(number).name}")
        value: dict[str, Any] = json.loads(answer)
        if "error" in value:
            raise ProgramError(value["error_code"], value["error"])
        return value

    def end(self) -> int:
        """Kills the child and returns its wait status; 0 without a child."""
        if self._pid is None:
            return 0
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        _, status = os.waitpid(self._pid, 0)
        os.close(self._to)
        os.close(self._from)
        self._pid = None
        return status

    def _fork(self) -> None:
        request_read, self._to = os.pipe()
        self._from, answer_write = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: this has threads
            self._pid = os.fork()
        if self._pid == 0:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # else native code runs on after Ctrl-C
            os.close(self._to)
            os.close(self._from)
            try:
                self._serve(request_read, answer_write)
            finally:
                os._exit(1)
        os.close(request_read)
        os.close(answer_write)

    def _serve(self, requests: int, answers: int) -> None:
        """Handles requests in the child until the parent closes the pipe."""
        for line in os.fdopen(requests, "rb"):
            try:
                value = self._handler(json.loads(line), lambda: None)
            except ProgramError as fault:
                value = {"error_code": fault.error_code, "error": str(fault)}
            except Exception as error:  # fails only this program
                value = {"error_code": None, "error": error_text(error)}
            _write(answers, value)

    def _answer(self, deadline_s: float) -> bytes | None:
        """Returns the child's line; empty when the child has ended, None after the deadline."""
        found = b""
        while not found.endswith(b"\n"):
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not select.select([self._from], [], [], left_s)[0]:
                return None
            part = os.read(self._from, _CHUNK_BYTES)
            if not part:
                return b""
            found += part
        return found


def _write(file: int, value: dict[str, Any]) -> None:
    data = (json.dumps(value) + "\n").encode("ascii")
    while data:
        data = data[os.write(file, data) :]
