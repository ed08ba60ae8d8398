"""Hides the output of libraries on stdout and stderr."""

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
    """Hides what native code writes to stderr; Python's own output to stderr is still shown.

    For libraries that print the same warning for every kernel, about which users can do nothing.
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
    """Hides what Python code prints, logs and warns.

    For libraries that print an error before they raise it.

    Args:
        printed: receives the printed text.
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
