"""One command, a fault that befalls it, and the same command once more."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

import psutil

from tests.faults.commands import Command
from tests.paths import ROOT

#: Exit codes of a command's own: ended well, usage, data, device.
OWN = frozenset({0, 2, 3, 4})
_MARK = "CDMPP_FAULT"
_SECONDS_TO_END = 15.0
_TIMEOUT_S = 900.0


@dataclass
class Befallen:
    """Processes of a command to which a fault happens.

    Attributes:
        where: the fault in words.
        codes: how they may end.
        undo: makes the world as it was, called when they have ended.
    """

    where: str
    processes: Sequence[subprocess.Popen[str]]
    codes: Collection[int] = OWN
    undo: Callable[[], None] = lambda: None


@dataclass
class Fault:
    """What came of one fault.

    Attributes:
        where: it, in words.
        codes: how the processes ended that it befell.
        wrong: what must not be; empty = the command has survived.
    """

    where: str
    codes: list[int] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Returns its plain form."""
        return asdict(self)


class Trial:
    """A command that runs once undisturbed, to compare with.

    Args:
        folder: for its output.
        places: what its words name.

    Attributes:
        folder: the same; faults may put files there.
        out: the output folder of the command.
        usual_s: seconds that it takes when nothing befalls it.
    """

    def __init__(self, command: Command, folder: Path, places: Mapping[str, str]) -> None:
        self.folder, self.out = folder, folder / "out"
        self._temporary = folder / "tmp"
        self._command = command
        words = [word.format(out=self.out, **places) for word in command.words]
        self._words = [sys.executable, "-m", command.module, *words]
        self._mark = uuid.uuid4().hex
        self._said: dict[int, tuple[threading.Thread, list[str]]] = {}
        self._fresh()
        began = time.monotonic()
        code, errors = self._finish(self.start())
        self.usual_s = time.monotonic() - began
        assert code == 0, errors
        self._expected = command.result(self.out)
        assert self._expected, "no results to compare"
        assert not self._left_processes(), "it leaves processes behind when nothing befalls it"

    def survive(self, befall: Callable[[Trial, random.Random], Befallen], seed: str) -> Fault:
        """Lets a fault happen, then runs the command again, undisturbed; returns what came of it.

        Args:
            seed: decides when and how.
        """
        self._fresh()
        befallen = befall(self, random.Random(seed))
        fault = Fault(befallen.where)
        for process in befallen.processes:
            code, errors = self._finish(process)
            fault.codes.append(code)
            is_odd = "Traceback" in errors and not _is_of_the_start(code, errors)
            if code not in befallen.codes or is_odd:
                lines = [line.strip() for line in errors.splitlines() if line.strip()]
                told = [line for line in lines if line.startswith("File ")][-2:] + lines[-1:]
                fault.wrong.append(f"code {code}, {'; '.join(told)[:600]}")
        fault.wrong += self._left_processes()
        befallen.undo()
        before = self._kept()
        shutil.rmtree(self._temporary, ignore_errors=True)
        self._temporary.mkdir()
        code, errors = self._finish(self.start())
        fault.wrong += self._compared(before) if code == 0 else [f"afterwards {code}: {errors}"]
        fault.wrong += self._left_processes()
        return fault

    def start(
        self,
        *,
        prefix: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        before: Callable[[], None] | None = None,
    ) -> subprocess.Popen[str]:
        """Starts the command.

        Args:
            prefix: words before its own.
            environment: variables on top of those of this process.
            before: called in its process before it.
        """
        own = {_MARK: self._mark, "TMPDIR": str(self._temporary), "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            [*prefix, *self._words], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            text=True, errors="replace", preexec_fn=before,
            env={**os.environ, **own, **(environment or {})},
        )  # fmt: skip
        lines: list[str] = []
        reader = threading.Thread(target=_read, args=(process.stderr, lines), daemon=True)
        reader.start()
        self._said[process.pid] = reader, lines
        return process

    def _fresh(self) -> None:
        for place in (self.out, self._temporary):
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()

    def _finish(self, process: subprocess.Popen[str]) -> tuple[int, str]:
        try:
            process.wait(timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return -9, f"Traceback: it hangs, killed after {_TIMEOUT_S:.0f} s"
        reader, lines = self._said.pop(process.pid)
        reader.join(timeout=1.0)  # what a process has left may hold the pipe
        return process.returncode, "".join(lines)

    def _alive(self) -> list[psutil.Process]:
        """Returns the processes that come from the command, whoever their parent is by now."""
        return [one for one in psutil.process_iter() if _variable(one, _MARK) == self._mark]

    def _left_processes(self) -> list[str]:
        until = time.monotonic() + _SECONDS_TO_END
        while (alive := self._alive()) and time.monotonic() < until:
            time.sleep(0.1)
        for one in alive:
            one.kill()
        psutil.wait_procs(alive, timeout=5.0)
        return [f"{len(alive)} processes are left"] if alive else []

    def _kept(self) -> list[Any]:
        """Returns the whole lines of the file of which none may be lost."""
        path = self.out / (self._command.kept or "")
        return path.read_bytes().split(b"\n")[:-1] if path.is_file() else []

    def _compared(self, before: list[Any]) -> Iterator[str]:
        """Says what is not as it is after a run that nothing befell."""
        if self._kept()[: len(before)] != before:
            yield "lines of the journal are lost"
        found = self._command.result(self.out)
        if found != self._expected:
            names = [key for key in self._expected if found.get(key) != self._expected[key]]
            yield f"another result afterwards: {', '.join(names) or 'more of it'}"
        left = [*self._temporary.iterdir(), *self.out.rglob("*.tmp"), *self.out.rglob("*.old")]
        if left:
            yield f"left behind: {', '.join(path.name for path in left)}"


def _read(stream: IO[str], lines: list[str]) -> None:
    with stream:
        for line in stream:
            lines.append(line)


def _is_of_the_start(code: int, errors: str) -> bool:
    """Whether an interrupt came before the command's own code: while its modules are loaded, Python
    says where it was.
    """
    return code == -signal.SIGINT and "in main\n" not in errors


def _variable(process: psutil.Process, name: str) -> str | None:
    try:
        return process.environ().get(name)
    except psutil.Error:
        return None
