"""Pages of the tests that take hours: attacks on the readers, faults of commands."""

from __future__ import annotations

import subprocess
import sys

from lab.paths import RESULTS, ROOT


def fuzz(most: int = 1_000_000) -> None:
    """Mutated and hand-made data at every reader; resumable.

    Args:
        most: cases of a campaign; 1000 takes minutes.
    """
    _run("tests.fuzz.attack", "--most", str(most))


def faults(times: int = 10, kills: int = 50) -> None:
    """Commands that are killed, ended, starved of disk, robbed of their folder or run twice;
    resumable.

    Args:
        times: faults of each kind.
        kills: of kind `killed`.
    """
    _run("tests.faults.run", "--times", str(times), "--kills", str(kills))


def _run(module: str, *words: str) -> None:
    command = [sys.executable, "-m", module, *words, "--page", str(RESULTS)]
    subprocess.run(command, check=True, cwd=ROOT)
