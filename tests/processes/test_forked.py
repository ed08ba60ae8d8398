"""Requests in a forked child: one that hangs or dies costs itself only."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

from cdmpp.processes.forked import Forked
from cdmpp.processes.serve import ProgramError


def _do(request: dict[str, Any], begin: Any) -> dict[str, Any]:
    if request["deed"] == "hang":
        time.sleep(60)
    elif request["deed"] == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif request["deed"] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif request["deed"] == "exit":
        os._exit(7)
    elif request["deed"] == "fail":
        raise ProgramError(3, "it does not fit")
    elif request["deed"] == "raise":
        raise ValueError("not a number")
    return {"pid": os.getpid(), "text": "x" * 200_000}


def test_a_child_does_one_request_after_another_and_is_replaced_when_it_is_gone() -> None:
    begun: list[int] = []
    forked = Forked(_do, lambda: None, timeout_code=6, died_code=2, killed_code=8)

    def ask(deed: str) -> dict[str, Any]:
        return forked({"deed": deed, "limit_s": 5.0 if deed != "hang" else 0.2},
                      lambda: begun.append(1))  # fmt: skip

    first, second = ask("work"), ask("work")
    assert first == second
    assert first["pid"] != os.getpid()
    for deed, code, text in (
        ("fail", 3, "it does not fit"), ("raise", None, "ValueError: not a number"),
        ("hang", 6, "killed after 0.2 s"), ("crash", 2, "killed by SIGSEGV"),
        ("killed", 8, "killed by SIGKILL"), ("exit", 8, "ended with code 7"),
    ):  # fmt: skip
        with pytest.raises(ProgramError, match=text) as caught:
            ask(deed)
        assert caught.value.error_code == code
    assert ask("work")["pid"] != first["pid"]
    assert len(begun) == 9
    forked.end()


def test_a_request_without_a_limit_stays_in_its_process() -> None:
    forked = Forked(_do, lambda: None, timeout_code=6, died_code=2, killed_code=8)
    assert forked({"deed": "work"}, lambda: None)["pid"] == os.getpid()
