"""What libraries write past Python to stderr is hidden, and only that, and only for a while."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import warnings

import pytest

from cdmpp.processes.native_stderr import hidden_native_stderr, hidden_python_output
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


def test_what_python_code_says_is_hidden_for_a_while(capsys: pytest.CaptureFixture[str]) -> None:
    handler = logging.StreamHandler(sys.stderr)
    log = logging.getLogger("said_by_a_library")
    log.addHandler(handler)
    with hidden_python_output():
        print("hidden")
        print("hidden", file=sys.stderr)
        log.warning("hidden")
        warnings.warn("hidden", stacklevel=1)
    log.warning("said")
    log.removeHandler(handler)
    assert capsys.readouterr() == ("", "said\n")
