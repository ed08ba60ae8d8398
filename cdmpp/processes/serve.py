"""The child's side of a process that answers requests as JSON lines through pipes.

Requests arrive on standard input and answers leave on the original standard output; what programs
print goes to standard error. The process sends `ready` once, then for each request `begin` (starts
the clock) and `done` or `failed`. It ends when its input is closed.
"""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

#: Takes a request and a function to call when its work begins; returns the answer.
Handler = Callable[[dict[str, Any], Callable[[], None]], dict[str, Any]]
_LONGEST_TEXT = 400
_TELLING = re.compile(r"error|fail|cannot|invalid|unable|no such|not found|killed|signal", re.I)
_NOISE = re.compile(r"^(Traceback|File \"|\^+|~+|During handling|The above exception|stack trace)")


class ProgramError(Exception):
    """A program that cannot be built or run, with an error code and a text."""

    def __init__(self, error_code: int, text: str) -> None:
        super().__init__(text)
        self.error_code = error_code


def first_error_text(text: str) -> str:
    """Returns the first informative line of an error text, at most 400 characters."""
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not _NOISE.match(line)]
    telling = [line for line in lines if _TELLING.search(line)]
    return (telling or lines or ["no error text"])[0][:_LONGEST_TEXT]


def error_text(error: BaseException) -> str:
    """Returns an error's class and the first informative line of its text."""
    return f"{type(error).__name__}: {first_error_text(str(error))}"


def serve(
    handlers: Mapping[str, Handler],
    prepare: Callable[[], dict[str, Any] | None],
    *,
    has_thread: bool = True,
) -> None:
    """Answers requests until the input ends.

    Args:
        handlers: by the request's `op`.
        prepare: slow setup that belongs to no program, called once before `ready`; returns the
            values of `ready`.
        has_thread: whether a thread ends the process in the middle of a request when the input is
            closed. A process that forks does without this thread.
    """
    answers = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    lines = _watched_lines() if has_thread else iter(sys.stdin.buffer)

    def send(event: str, values: Mapping[str, Any]) -> None:
        data = (json.dumps({**values, "event": event}) + "\n").encode("ascii")
        while data:
            data = data[os.write(answers, data) :]

    send("ready", prepare() or {})
    for line in lines:
        request = json.loads(line)
        try:
            answer = handlers[request["op"]](request, lambda: send("begin", {}))
        except ProgramError as fault:
            text = first_error_text(str(fault))
            send("failed", {"error_code": fault.error_code, "error": text})
        except Exception as error:  # fails only this program
            send("failed", {"error_code": None, "error": error_text(error)[:_LONGEST_TEXT]})
        else:
            send("done", answer)


def _watched_lines() -> Iterator[bytes]:
    """Yields lines; when the input is closed, ends the process at once, with its process group if
    it leads one.
    """
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin.buffer:
            requests.put(line)
        if os.getpgrp() == os.getpid():  # this process leads its group and started all of it
            os.killpg(0, signal.SIGKILL)
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    while True:
        yield requests.get()
