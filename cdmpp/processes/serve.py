"""How a campaign talks to its workers: JSON lines through pipes, the worker's side.

Requests come on standard input, answers go to what was standard output; whatever a program prints
goes to standard error. `ready`, then for every request `begin` (the clock starts) and one of `done`
and `failed`. The worker ends when the other end of its input is gone.
"""

from __future__ import annotations

import json
import os
import queue
import re
import sys
import threading
from collections.abc import Callable, Mapping
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


def serve(handlers: Mapping[str, Handler], prepare: Callable[[], None]) -> None:
    """Answers requests until the input ends.

    Args:
        handlers: by the request's `op`.
        prepare: called once before `ready`: what takes long and is no program's fault.
    """
    answers = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read_requests, args=(requests,), daemon=True).start()

    def send(value: dict[str, Any]) -> None:
        data = (json.dumps(value) + "\n").encode("ascii")
        while data:
            data = data[os.write(answers, data) :]

    prepare()
    send({"event": "ready"})
    while True:
        request = json.loads(requests.get())
        try:
            answer = handlers[request["op"]](request, lambda: send({"event": "begin"}))
        except ProgramError as fault:
            text = first_error_text(str(fault))
            send({"event": "failed", "error_code": fault.error_code, "error": text})
        except Exception as error:  # whatever it is, it costs this program only
            text = f"{type(error).__name__}: {first_error_text(str(error))}"
            send({"event": "failed", "error_code": None, "error": text[:_LONGEST_TEXT]})
        else:
            send({**answer, "event": "done"})


def _read_requests(requests: queue.SimpleQueue[bytes]) -> None:
    """Hands on lines; ends the process when the campaign is gone, also amid a program's loop."""
    for line in sys.stdin.buffer:
        requests.put(line)
    os._exit(0)
