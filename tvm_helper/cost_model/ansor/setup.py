"""Prepares the side environment for Ansor's tests.

`python -m tvm_helper.cost_model.ansor.setup`.

Builds the environment of `make legacy-env` and installs a test runner in it. An existing
environment that does not work is rebuilt from scratch.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from cdmpp.errors import CdmppError, UsageError
from tvm_helper.legacy import setup
from tvm_helper.legacy.environment import LegacyEnvironment, default_folder, run

TEST_RUNNER = "pytest>=8,<10"

_ANSOR = "import tvm.topi, tvm.auto_scheduler, xgboost, numpy; print(tvm.__version__)"
_RUNNER = "import pytest; assert int(pytest.__version__.split('.')[0]) >= 8"


def main(argv: Sequence[str] | None = None) -> int:
    """Builds the missing parts; returns the process's exit code."""
    parser = argparse.ArgumentParser(prog="tvm_helper.cost_model.ansor.setup", description=__doc__)
    parser.add_argument("--folder", type=Path, default=default_folder(), metavar="DIR")
    args = parser.parse_args(argv)
    try:
        print(build(args.folder))
    except CdmppError as error:
        print(f"ansor_setup: error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def build(folder: Path) -> str:
    """Builds the missing parts of the environment and returns a sentence about it.

    Raises:
        UsageError: a tool is missing, or a package cannot be installed.
    """
    said = setup.build(folder)
    environment = LegacyEnvironment(Path(folder).resolve())
    if not _runs(environment, _ANSOR):
        said = setup.build(folder, force=True)
    if not _runs(environment, _RUNNER):
        pip = [str(environment.python), "-m", "pip", "install", "--quiet", "--no-input",
               "--disable-pip-version-check", TEST_RUNNER]  # fmt: skip
        run(pip, "install the test runner", environment)
    return said


def _runs(environment: LegacyEnvironment, code: str) -> bool:
    """Whether Python code runs without an error in the environment."""
    try:
        run([str(environment.python), "-c", code], "try the side environment", environment)
    except UsageError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
