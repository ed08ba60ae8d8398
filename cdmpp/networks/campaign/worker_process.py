"""The campaign's side of `measure_worker`: starts it, asks it, outlives it."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from cdmpp.errors import DeviceError
from cdmpp.processes.pipe import WorkerPipe

WORKER_COMMAND = (sys.executable, "-m", "cdmpp.networks.campaign.worker")
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
        self._pipe = WorkerPipe(command, log, environment=environment)
        self.torch_version: str | None = None

    @property
    def pid(self) -> int | None:
        """Its process, None while there is none."""
        return self._pipe.pid

    def start(self) -> None:
        """Starts the process unless it runs.

        Raises:
            DeviceError: it does not become ready.
        """
        if self._pipe.pid is not None:
            return
        self._pipe.start()
        answer = self._pipe.receive(time.monotonic() + _SECONDS_TO_START)
        if answer is None:
            self.stop()
            log = self._pipe.log.read_text(encoding="utf-8", errors="replace")
            words = log.strip().splitlines()
            raise DeviceError(
                f"the process that runs networks does not start ({words[-1] if words else 'silent'}"
                f"); expected it to be ready within {_SECONDS_TO_START:.0f} s. Try it: "
                f"{' '.join(self._pipe.command)}"
            )
        self.torch_version = answer["torch_version"]

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the answer; `outcome` is `crashed` when the worker died or hung.

        Raises:
            DeviceError: the worker cannot be started.
        """
        self.start()
        self._pipe.send(request)
        allowed = _MOST_PARTS * request["timeout_s"] + _SECONDS_TO_ANSWER
        answer = self._pipe.receive(time.monotonic() + allowed)
        if answer is None:
            self.stop()
            return {"outcome": "crashed", "note": "the process that runs samples died or hung"}
        return answer

    def stop(self) -> None:
        """Ends the process and the sample that runs."""
        self._pipe.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.stop()
