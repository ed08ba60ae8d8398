"""Runs commands of the laboratory, which is in a checkout but not in a wheel."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys

from cdmpp.errors import UsageError
from cdmpp.files.places import beside_package


def run_in_lab(what: str, *words: str) -> int:
    """Runs `python -m lab WORDS`; returns its exit code.

    Args:
        what: option or command that needs the laboratory, for the error text.

    Raises:
        UsageError: this installation has no laboratory.
    """
    root = beside_package()
    if not (root / "lab" / "__main__.py").is_file():
        raise UsageError(
            f"{what} needs the laboratory, which this installation does not have; clone the "
            f"project and run `python -m lab {shlex.join(words)}` in the checkout"
        )
    folders = [str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    with subprocess.Popen([sys.executable, "-m", "lab", *words], env=variables) as child:
        try:
            return child.wait()
        except KeyboardInterrupt:
            child.terminate()
            raise


def run_experiment(what: str, name: str, **options: object) -> int:
    """Runs `python -m lab run NAME OPTION=VALUE ...`; see `run_in_lab`."""
    given = (f"{key}={json.dumps(value, default=os.fspath)}" for key, value in options.items())
    return run_in_lab(what, "run", name, *given)
