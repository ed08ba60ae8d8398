"""Pages of tests that take hours: invalid input to the readers, faults of commands."""

from __future__ import annotations

import subprocess
import sys

from lab.paths import RESULTS, ROOT


def fuzz(most: int = 1_000_000) -> None:
    """Runs mutated and hand-made data through every reader; resumable.

    Args:
        most: maximum cases per campaign; 1000 takes minutes.
    """
    _run("tests.fuzz.attack", "--most", str(most))


def faults(times: int = 10, kills: int = 50) -> None:
    """Runs commands that are killed, ended, out of disk space, without their folder, or run twice;
    resumable.

    Args:
        times: faults of each kind.
        kills: faults of kind `killed`.
    """
    _run("tests.faults.run", "--times", str(times), "--kills", str(kills))


def _run(module: str, *words: str) -> None:
    command = [sys.executable, "-m", module, *words, "--page", str(RESULTS)]
    subprocess.run(command, check=True, cwd=ROOT)
