"""How a process that answers requests talks to who asks: JSON lines through pipes, its own side.

Requests come on standard input, answers go to what was standard output; whatever a program prints
goes to standard error. `ready`, then for every request `begin` (the clock starts) and one of `done`
and `failed`. The process ends when the other end of its input is gone.
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

#: A request and what to call when its work begins; returns the answer.
Handler = Callable[[dict[str, Any], Callable[[], None]], dict[str, Any]]
_LONGEST_TEXT = 400
_TELLING = re.compile(r"error|fail|cannot|invalid|unable|no such|not found|killed|signal", re.I)
_NOISE = re.compile(r"^(Traceback|File \"|\^+|~+|During handling|The above exception|stack trace)")


class ProgramError(Exception):
    """A program that cannot be built or run: the code of its failure and the text."""

    def __init__(self, error_code: int, text: str) -> None:
        super().__init__(text)
        self.error_code = error_code


def first_error_text(text: str) -> str:
    """Returns the first line of an error's text that says something, at most 400 characters."""
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not _NOISE.match(line)]
    telling = [line for line in lines if _TELLING.search(line)]
    return (telling or lines or ["no error text"])[0][:_LONGEST_TEXT]


def error_text(error: BaseException) -> str:
    """Returns an error's class and the line of its text that says something."""
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
        prepare: called once before `ready`: what takes long and is no program's fault; returns what
            `ready` says besides.
        has_thread: whether the process ends amid a request too when the other end of its input is
            gone. A process that forks does without the thread that watches for that.
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
        except Exception as error:  # whatever it is, it costs this program only
            send("failed", {"error_code": None, "error": error_text(error)[:_LONGEST_TEXT]})
        else:
            send("done", answer)


def _watched_lines() -> Iterator[bytes]:
    """Yields lines; ends the process when the other end is gone, also amid a program's loop, and
    what programs have left behind in its group.
    """
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin.buffer:
            requests.put(line)
        if os.getpgrp() == os.getpid():  # then all of its group was started here
            os.killpg(0, signal.SIGKILL)
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    while True:
        yield requests.get()
