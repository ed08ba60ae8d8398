"""What libraries write past Python to stderr is hidden, and only that, and only for a while."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from cdmpp.processes.native_stderr import hidden_native_stderr
from tests.paths import ROOT

_CODE = """
import os, sys
from cdmpp.processes.native_stderr import hidden_native_stderr
try:
    with hidden_native_stderr(), hidden_native_stderr():
        os.write(2, b"hidden ")
        print("said", file=sys.stderr)
        raise KeyError
except KeyError:
    os.write(2, b"native again ")
    print("python again", file=sys.stderr)
"""


def test_python_is_heard_and_libraries_are_not() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _CODE], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stderr == "said\nnative again python again\n"


def test_a_stderr_of_someone_else_stays_theirs(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stderr
    with hidden_native_stderr():
        assert sys.stderr is before
        print("said", file=sys.stderr)
        os.write(2, b"hidden")
    assert capsys.readouterr().err == "said\n"
