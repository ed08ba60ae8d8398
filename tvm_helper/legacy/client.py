"""Asks a process in the side environment for lowered programs."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import IO, Any

from cdmpp.errors import DataError, UsageError
from cdmpp.files.places import module_file
from tvm_helper.legacy.environment import LegacyEnvironment, find_environment

#: Answers that are read ahead while the caller works on an earlier one.
_AHEAD = 32
_START_SECONDS = 300.0
_ANSWER_SECONDS = 300.0
_SERVER = module_file("tvm_helper.legacy.server")


class LegacyProcessError(DataError):
    """The process in the side environment died or does not answer.

    Attributes:
        answered: answers of the request that had come before.
    """

    def __init__(self, text: str, *, answered: int) -> None:
        super().__init__(text)
        self.answered = answered


class LegacyTvm:
    """A process with the old TVM. Started with the first request; ends with `close`."""

    def __init__(self, environment: LegacyEnvironment | None = None) -> None:
        """Finds the side environment.

        Raises:
            UsageError: there is none.
        """
        self._environment = environment or find_environment()
        self._process: subprocess.Popen[str] | None = None
        self._answers: queue.Queue[str | None] = queue.Queue(_AHEAD)
        self._errors: IO[bytes] | None = None

    def __enter__(self) -> LegacyTvm:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def ask(self, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yields the answers to a request (see `tvm_helper.legacy.server`).

        All answers must be taken before the next request; a process whose answers were not taken to
        the end is ended.

        Raises:
            LegacyProcessError: the process died or was silent for too long; the next request starts
                a new one.
            UsageError: the process does not start.
        """
        process = self._start()
        answered, is_done = 0, False
        try:
            try:
                assert process.stdin is not None
                process.stdin.write(json.dumps(request) + "\n")
                process.stdin.flush()
            except OSError:
                raise self._died(answered) from None
            while not is_done:
                answer = self._next(_ANSWER_SECONDS, answered)
                is_done = "done" in answer
                if not is_done:
                    yield answer
                    answered += 1
        finally:
            if not is_done:
                self.close()

    def close(self) -> None:
        """Ends the process, if there is one."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()
        if self._errors is not None:
            self._errors.close()
            self._errors = None

    def _start(self) -> subprocess.Popen[str]:
        if self._process is not None:
            return self._process
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._answers = queue.Queue(_AHEAD)
        self._process = subprocess.Popen(
            [str(self._environment.python), "-u", str(_SERVER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            encoding="utf-8",
            env=self._environment.variables(),
        )
        reader = threading.Thread(
            target=_read_lines, args=(self._process, self._answers), daemon=True
        )
        reader.start()
        try:
            self._next(_START_SECONDS, 0)
        except LegacyProcessError as error:
            self.close()
            raise UsageError(
                f"The old TVM in {self._environment.folder} does not start. {error} Build it "
                "again: python -m tvm_helper.legacy.setup --force"
            ) from None
        return self._process

    def _next(self, seconds: float, answered: int) -> dict[str, Any]:
        try:
            line = self._answers.get(timeout=seconds)
        except queue.Empty:
            raise LegacyProcessError(
                f"The old TVM has not answered for {seconds:.0f} s (after {answered} answers)",
                answered=answered,
            ) from None
        if line is None:
            raise self._died(answered)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _died(self, answered: int) -> LegacyProcessError:
        last = ""
        if self._errors is not None:
            self._errors.seek(0)
            lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
            last = " | ".join(line.strip() for line in lines[-3:])
        code = self._process.poll() if self._process is not None else None
        return LegacyProcessError(
            f"The old TVM's process ended (code {code}, after {answered} answers): {last[-400:]}.",
            answered=answered,
        )


def _read_lines(process: subprocess.Popen[str], answers: queue.Queue[str | None]) -> None:
    """Puts the process's lines into the queue, at their end None."""
    assert process.stdout is not None
    with contextlib.suppress(OSError, ValueError):
        for line in process.stdout:
            answers.put(line)
    answers.put(None)
