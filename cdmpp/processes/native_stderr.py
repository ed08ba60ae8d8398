"""What libraries write to stdout and stderr, kept from the user."""

from __future__ import annotations

import io
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout

_STDERR = 2


@contextmanager
def hidden_native_stderr() -> Iterator[None]:
    """Hides what the process writes past Python to stderr; what Python writes there is shown.

    For libraries that warn of the same thing once a kernel, of which no user can mend anything.
    """
    kept, shown = os.dup(_STDERR), sys.stderr
    try:
        is_native = shown.fileno() == _STDERR
    except (AttributeError, ValueError, io.UnsupportedOperation):  # a test's, or closed
        is_native = False
    if is_native:
        shown.flush()
        sys.stderr = open(  # noqa: SIM115  # closed below
            kept,
            "w",
            buffering=1,
            encoding=shown.encoding,
            errors="backslashreplace",
            closefd=False,
        )
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, _STDERR)
    try:
        yield
    finally:
        if is_native:
            sys.stderr.close()
            sys.stderr = shown
        os.dup2(kept, _STDERR)
        os.close(nowhere)
        os.close(kept)


@contextmanager
def hidden_python_output(printed: io.StringIO | None = None) -> Iterator[None]:
    """Hides what Python code prints, logs and warns of.

    For libraries that print what they then raise.

    Args:
        printed: gets what is printed.
    """
    manager = logging.root.manager
    nowhere = io.StringIO() if printed is None else printed
    level = manager.disable
    logging.disable()
    try:
        with warnings.catch_warnings(), redirect_stdout(nowhere), redirect_stderr(nowhere):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
