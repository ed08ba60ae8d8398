"""Child processes that answer, hang and die."""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from cdmpp.errors import DeviceError
from cdmpp.processes.pipe import WorkerPipe, ending
from cdmpp.processes.worker import Worker, ask_all
from tests.paths import ROOT

SERVES = """
import os, time
from cdmpp.processes.serve import ProgramError, serve

def work(request, begin):
    begin()
    deed = request["deed"]
    if deed == "sleep":
        time.sleep(600)
    if deed == "exit":
        print("fatal error: no more tensors")
        os._exit(7)
    if deed == "program":
        raise ProgramError(4, "Traceback\\nRuntimeError: misaligned")
    return {"deed": deed, "half": 1 / (2 * deed["n"])}

serve({"work": work}, lambda: {"version": "1.0"}, has_thread=%s)
"""


def worker(folder: Path, *, has_thread: bool = True) -> Worker:
    command = [sys.executable, "-c", SERVES % has_thread]
    return Worker(command, folder / "log", queue_timeout_s=60.0)


@pytest.mark.parametrize("has_thread", [True, False])
def test_a_worker_answers_fails_dies_and_is_started_again(tmp_path: Path, has_thread: bool) -> None:
    with worker(tmp_path, has_thread=has_thread) as one:

        def ask(deed: object, timeout_s: float = 60.0) -> tuple[str, str]:
            answer = one.ask({"op": "work", "deed": deed}, timeout_s=timeout_s)
            return answer.outcome, answer.text

        done = one.ask({"op": "work", "deed": {"n": 1}}, timeout_s=60.0)
        assert (done.outcome, done.value) == ("done", {"deed": {"n": 1}, "half": 0.5})
        assert one.facts == {"version": "1.0"}
        assert ask("program") == ("failed", "RuntimeError: misaligned")
        assert ask({"n": 0}) == ("failed", "ZeroDivisionError: division by zero")
        first = one.pid
        assert ask("exit") == ("died", "ended with code 7: fatal error: no more tensors")
        assert one.pid is None
        assert ask("sleep", 0.2) == ("timeout", "killed after 0.2 s")
        assert ask({"n": 2})[0] == "done"
        assert one.pid != first
    assert one.pid is None


def test_two_workers_share_the_requests(tmp_path: Path) -> None:
    requests = [{"op": "work", "deed": {"n": n}} for n in (1, 2, 4, 8)]
    (tmp_path / "second").mkdir()
    with worker(tmp_path) as first, worker(tmp_path / "second") as second:
        answers = dict(ask_all([first, second], requests, timeout_s=60.0))
    assert [answers[n].value["half"] for n in range(4)] == [0.5, 0.25, 0.125, 0.0625]


def test_a_worker_that_does_not_start_says_its_last_words(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit('no compiler found here')"]
    with pytest.raises(DeviceError, match="ended with code 1: no compiler found here"):
        Worker(command, tmp_path / "log", queue_timeout_s=60.0).start()


def test_a_log_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    """Was a traceback: the folder may have vanished."""
    with pytest.raises(DeviceError, match=r"cannot be started .*No such file"):
        Worker(["/bin/cat"], tmp_path / "gone" / "log", queue_timeout_s=60.0).start()


def test_a_pipe_holds_what_comes_ahead_and_keeps_lines_whole(tmp_path: Path) -> None:
    long = "x" * 300_000
    code = f'import sys\nfor n in range(3): print(\'{{"n": %d, "text": "{long}"}}\' % n)'
    pipe = WorkerPipe([sys.executable, _script(tmp_path, code)])
    pipe.start()
    lines = [pipe.receive(time.monotonic() + 60) for _ in range(4)]
    assert [None if line is None else line["n"] for line in lines] == [0, 1, 2, None]
    assert pipe.last_words() == "ended with code 0"
    pipe.stop()
    pipe.stop()


def _script(folder: Path, code: str) -> str:
    path = folder / "script.py"
    path.write_text(code)
    return str(path)


def test_a_silent_process_is_told_from_one_that_is_gone(tmp_path: Path) -> None:
    pipe = WorkerPipe(["/bin/cat"])
    pipe.start()
    assert pipe.receive(time.monotonic() + 0.05) is None
    assert pipe.is_running
    pipe.send({"n": math.pi})
    assert pipe.receive(None) == {"n": math.pi}
    pipe.stop()
    assert not pipe.is_running


def test_an_exit_code_in_words() -> None:
    assert ending(-9) == "killed by SIGKILL"
    assert ending(3) == "ended with code 3"


LEAVES = """
import os, signal, time
from cdmpp.processes.serve import serve

def work(request, begin):
    begin()
    if os.fork() == 0:
        time.sleep(600)
    if request["crashes"]:
        os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(600)

serve({"work": work}, lambda: None)
"""
_ASKS = """
import sys
from pathlib import Path
from cdmpp.processes.worker import Worker

one = Worker([sys.executable, "-c", sys.argv[1]], Path(sys.argv[2]), queue_timeout_s=60.0)
one.start()
print(one.pid, flush=True)
one.ask({"op": "work", "crashes": False}, timeout_s=600.0)
"""


def _group(leader: int) -> list[psutil.Process]:
    """Returns the processes of a group that are alive."""
    found = []
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(one.pid) == leader and one.status() != psutil.STATUS_ZOMBIE:
                found.append(one)
    return found


def _wait(what: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not what():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_crash_is_seen_at_once_though_the_program_left_a_child(tmp_path: Path) -> None:
    """Was seen when the time of the program was over: the child held the pipe."""
    with Worker([sys.executable, "-c", LEAVES], tmp_path / "log", queue_timeout_s=60.0) as one:
        one.start()
        leader = one.pid
        assert leader is not None
        answer = one.ask({"op": "work", "crashes": True}, timeout_s=3600.0)
        assert (answer.outcome, answer.text) == ("died", "killed by SIGSEGV")
    _wait(lambda: not _group(leader))


def test_what_a_program_left_ends_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    """Was left running."""
    command = [sys.executable, "-c", _ASKS, LEAVES, str(tmp_path / "log")]
    with subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE) as asks:
        assert asks.stdout is not None
        leader = int(asks.stdout.readline())
        _wait(lambda: len(_group(leader)) == 2)
        asks.kill()
    _wait(lambda: not _group(leader))
