"""Client of a process in the side environment that lowers programs."""

from __future__ import annotations

import atexit
import time
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Self

from cdmpp.errors import DataError, UsageError
from cdmpp.files.places import module_file
from cdmpp.processes.pipe import WorkerPipe
from tvm_helper.legacy.environment import LegacyEnvironment, find_environment

_START_SECONDS = 300.0
_ANSWER_SECONDS = 300.0
_SERVER = module_file("tvm_helper.legacy.server")


class LegacyProcessError(DataError):
    """The process in the side environment died or does not respond.

    Attributes:
        answered: number of responses to the request before the failure.
    """

    def __init__(self, text: str, *, answered: int) -> None:
        super().__init__(text)
        self.answered = answered


class LegacyTvm:
    """Process with the old TVM. It starts with the first request and ends with `close`."""

    def __init__(self, environment: LegacyEnvironment | None = None) -> None:
        """Finds the side environment.

        Raises:
            UsageError: there is no side environment.
        """
        self._environment = environment or find_environment()
        self._pipe = WorkerPipe(
            [str(self._environment.python), "-u", str(_SERVER)],
            environment=self._environment.variables(),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def ask(self, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yields the responses to a request (see `tvm_helper.legacy.server`).

        The responses must be read to the end before the next request; otherwise the process is
        ended.

        Raises:
            LegacyProcessError: the process died or did not respond in time; the next request
                starts a new one.
            UsageError: the process does not start.
        """
        self._start()
        answered, is_done = 0, False
        try:
            self._pipe.send(request)
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
        """Ends the process if it is running."""
        self._pipe.stop()

    def _start(self) -> None:
        if self._pipe.pid is not None:
            return
        self._pipe.start()
        try:
            self._next(_START_SECONDS, 0)
        except LegacyProcessError as error:
            self.close()
            raise UsageError(
                f"The old TVM in {self._environment.folder} does not start. {error} Rebuild it: "
                "python -m tvm_helper.legacy.setup --force"
            ) from None

    def _next(self, seconds: float, answered: int) -> dict[str, Any]:
        answer = self._pipe.receive(time.monotonic() + seconds)
        if answer is not None:
            return answer
        if self._pipe.is_running:
            text = f"The old TVM did not respond for {seconds:.0f} s (after {answered} answers)"
        else:
            words = self._pipe.last_words()
            text = f"The process of the old TVM ended (after {answered} answers): {words}."
        raise LegacyProcessError(text, answered=answered)


@lru_cache(maxsize=1)
def shared_process() -> LegacyTvm:
    """Returns the connection to the old TVM that this process shares; it takes seconds to start.

    Raises:
        UsageError: there is no side environment.
    """
    process = LegacyTvm()
    atexit.register(process.close)
    return process
