"""Commands that are killed, ended, starved of disk, or run twice at once: what is left, and whether
the same command then comes to the same bytes.

    python -m tests.benchmarks.faults --times 10 --out docs/results

Every moment and size comes from `--seed`. A fault is survived when the command says one sentence
(no traceback) and ends with one of its exit codes, leaves no process behind, and the same command,
undisturbed, then ends well with the result of a run that nothing befell.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from cdmpp.files.atomic import write_json, write_text
from cdmpp.machine import commit
from cdmpp.text import markdown_table
from tests.datasets.tiny import write_tiny_dataset
from tests.paths import ROOT

_CODES = {"killed": {-9}, "ended": {-15, 130, -2, 0}}
_EXPECTED = {0, 2, 3, 4}
_SIZES = (0, 100, 2_000, 20_000, 100_000, 1_000_000)


@dataclass(frozen=True)
class Command:
    """A command and what its result is.

    Attributes:
        words: of it; `{data}` is a small dataset, `{out}` a folder that is there for it alone.
        results: patterns of the files that are the same after every run.
    """

    words: Sequence[str]
    results: Sequence[str]


COMMANDS = {
    "dataset extract": Command(
        ("dataset", "extract", "--dataset", "{data}", "--out", "{out}/x", "--jobs", "1"),
        ("x/*.parquet",),
    ),
    "dataset extract, two processes": Command(
        ("dataset", "extract", "--dataset", "{data}", "--out", "{out}/x", "--jobs", "2"),
        ("x/*.parquet",),
    ),
    "train": Command(
        ("train", "--dataset", "{data}", "--cache", "{out}/cache", "--model", "gbdt", "--out",
         "{out}/run", "--jobs", "1", "--set", "baselines=[roofline]"),
        ("run/trees*", "run/predictions.parquet"),
    ),
}  # fmt: skip


@dataclass
class Tally:
    """What came of one kind of fault.

    Attributes:
        codes: exit code -> how often.
        wrong: what must not be.
    """

    codes: Counter[int] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


class Trial:
    """Faults of one command.

    Args:
        folder: for its output.
        data: the small dataset.
    """

    def __init__(self, command: Command, folder: Path, data: Path) -> None:
        self._command = command
        self._out = folder / "out"
        words = [word.format(data=data, out=self._out) for word in command.words]
        self._words = [sys.executable, "-m", "cdmpp.cli.main", *words, "-q"]
        began = time.monotonic()
        self._fresh()
        code, errors = self._finish(self._start())
        assert code == 0, errors
        self.usual_s = time.monotonic() - began
        self.expected = self._digest()
        assert self.expected, "no results to compare"

    def sized(self, rng: random.Random, tally: Tally) -> None:
        """Runs it where no file may be larger than some bytes, as on a disk that is full."""
        size = rng.choice(_SIZES)
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))  # noqa: E731
        self._fresh()
        code, errors = self._finish(self._start(limit))
        self._judge(tally, code, errors, _EXPECTED, f"files of at most {size} bytes")

    def killed(self, rng: random.Random, tally: Tally) -> None:
        """Kills it at a random moment."""
        self._signalled(rng, tally, signal.SIGKILL, _CODES["killed"] | {0})

    def ended(self, rng: random.Random, tally: Tally) -> None:
        """Asks it to end at a random moment, as Ctrl-C or a scheduler does."""
        number = rng.choice((signal.SIGINT, signal.SIGTERM))
        self._signalled(rng, tally, number, _CODES["ended"])

    def twice(self, rng: random.Random, tally: Tally) -> None:
        """Starts it twice, one soon after the other, on one folder."""
        self._fresh()
        first = self._start()
        time.sleep(rng.uniform(0, self.usual_s))
        second = self._start()
        for process in (first, second):
            code, errors = self._finish(process)
            self._judge(tally, code, errors, _EXPECTED, "two at once", then=process is second)

    def _signalled(
        self, rng: random.Random, tally: Tally, number: signal.Signals, codes: set[int]
    ) -> None:
        self._fresh()
        process = self._start()
        moment = rng.uniform(0, self.usual_s)
        time.sleep(moment)
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        code, errors = self._finish(process)
        _, alive = psutil.wait_procs(family, timeout=10)
        where = f"{number.name} after {moment:.2f} s"
        if alive:
            tally.wrong.append(f"{where}: {len(alive)} processes are left")
            for one in alive:
                one.kill()
        self._judge(tally, code, errors, codes, where)

    def _judge(
        self, tally: Tally, code: int, errors: str, codes: set[int], where: str, then: bool = True
    ) -> None:
        """Notes what was wrong, and runs the command again, undisturbed."""
        tally.codes[code] += 1
        if code not in codes or "Traceback" in errors:
            last = errors.strip().splitlines()[-1:] or [""]
            tally.wrong.append(f"{where}: code {code}, {last[0][:200]}")
        if not then:
            return
        code, errors = self._finish(self._start())
        if code != 0 or self._digest() != self.expected:
            tally.wrong.append(f"{where}: another result afterwards, code {code}, {errors[-200:]}")

    def _fresh(self) -> None:
        shutil.rmtree(self._out, ignore_errors=True)
        self._out.mkdir()

    def _start(self, before: Callable[[], None] | None = None) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self._words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            preexec_fn=before, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip

    def _finish(self, process: subprocess.Popen[str]) -> tuple[int, str]:
        _, errors = process.communicate(timeout=600)
        return process.returncode, errors

    def _digest(self) -> dict[str, str]:
        return {
            str(path.relative_to(self._out)): hashlib.sha256(path.read_bytes()).hexdigest()
            for pattern in self._command.results
            for path in sorted(self._out.glob(pattern))
        }


def run(times: int, seed: int, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Returns what came of so many faults of every kind of every command."""
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="cdmpp-faults-") as place:
        data = write_tiny_dataset(Path(place) / "data")
        for name in names:
            folder = Path(place) / name.replace(" ", "-")
            folder.mkdir()
            trial = Trial(COMMANDS[name], folder, data)
            rng = random.Random(seed)
            for fault in (trial.killed, trial.ended, trial.sized, trial.twice):
                tally = Tally()
                for _ in range(times):
                    fault(rng, tally)
                kind = fault.__name__
                found[f"{name}: {kind}"] = {
                    "times": times, "codes": dict(tally.codes), "wrong": tally.wrong
                }  # fmt: skip
                print(name, kind, dict(tally.codes), *tally.wrong, sep="\n    ", flush=True)
    return found


_PAGE = """# Faults

`python -m tests.benchmarks.faults --times {times} --seed {seed}`: commands on a small dataset that
are *killed* (SIGKILL), *ended* (SIGINT or SIGTERM) at a random moment, *sized* (no file may become
larger than some bytes, as on a full disk) or started *twice* on one folder. *Wrong* is a traceback,
another exit code than the command's own, a process that is left, or another result when the same
command then runs undisturbed: its files are compared to the byte.

{table}
"""


def main() -> int:
    """Runs the faults and writes the page; ends with 1 where one was not survived."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=10, help="faults of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", choices=COMMANDS, default=list(COMMANDS))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    found = run(args.times, args.seed, args.only)
    if args.out:
        facts = {"times": args.times, "seed": args.seed, "commit": commit(), "faults": found}
        write_json(args.out / "faults.json", facts)
        rows = [
            [name, str(one["times"]), str(len(one["wrong"])),
             ", ".join(f"{count} x {code}" for code, count in sorted(one["codes"].items()))]
            for name, one in found.items()
        ]  # fmt: skip
        table = markdown_table(["command: fault", "times", "wrong", "exit codes"], rows, "lrrl")
        page = _PAGE.format(times=args.times, seed=args.seed, table=table)
        write_text(args.out / "faults.md", page)
    print(json.dumps({name: len(one["wrong"]) for name, one in found.items()}))
    return 1 if any(one["wrong"] for one in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
