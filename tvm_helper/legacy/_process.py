"""Runs one step of building the side environment."""

from __future__ import annotations

import subprocess
from pathlib import Path

from cdmpp.errors import UsageError
from tvm_helper.legacy.environment import LegacyEnvironment


def run(command: list[str], what: str, environment: LegacyEnvironment | None = None) -> str:
    """Runs a command, in the side environment where one is given, and returns its output.

    Raises:
        UsageError: it fails; says what it printed last.
    """
    variables = environment.variables() if environment is not None else None
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
    except OSError as error:
        raise UsageError(f"Cannot {what}: {error}") from None
    if done.returncode:
        last = "\n".join(done.stderr.strip().splitlines()[-6:])
        raise UsageError(
            f"Cannot {what}: {Path(command[0]).name} ended with code {done.returncode}:\n{last}\n"
            "Put that right and run again: make legacy-env"
        )
    return done.stdout
