"""Exceptions: every expected failure is a `CdmppError` with an exit code and a next step."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

EXIT_USAGE = 2
EXIT_DATA = 3
EXIT_DEVICE = 4


class CdmppError(Exception):
    """An expected error. Its text has the problem, the value, the expected value and the next step.

    Attributes:
        exit_code: process exit code of the command line (0 ok, 2 usage, 3 data, 4 device).
    """

    exit_code = 1

    def __str__(self) -> str:
        text = super().__str__()
        return in_python(text) if _speaks_python else text


class UsageError(CdmppError):
    """A command, option or configuration that cannot be carried out as written."""

    exit_code = EXIT_USAGE


class NotFoundError(UsageError):
    """A name of something that does not exist, such as a table, a run or a model of a server."""


class DataError(CdmppError):
    """Data that is missing, malformed, empty or has another schema version."""

    exit_code = EXIT_DATA


class NotApplicableError(DataError):
    """Valid data that this kind of model cannot use, such as programs without schedule steps.

    A benchmark records it as not applicable, not as failed.
    """


class NotFiniteError(DataError):
    """The training loss became infinite or NaN."""


class DeviceError(CdmppError):
    """A device that is unknown, unavailable or failed."""

    exit_code = EXIT_DEVICE


class ServerError(DeviceError):
    """A server that does not respond, is busy or failed."""


class ReplayError(DataError):
    """A measure record whose steps cannot be replayed on its task's computation.

    Attributes:
        reason: short fixed phrase, by which failures are counted.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


#: Options that have another name in Python.
_PYTHON_NAMES = {"device_spec": "device"}
#: Environment variable that is set in commands and the processes they start.
IS_COMMAND = "CDMPP_IS_COMMAND"
#: Whether messages write options as Python arguments; true after the first use of the Python API.
_speaks_python = False
#: A command with its options (kept as it is), an option with a value, or an option.
_OPTION = re.compile(
    r"`[^`]*`|\bcdmpp [a-z-]+(?: [^\s;:,)]+)*"
    r"|--(?P<option>[a-z][a-z-]*)[ =](?P<value>[A-Z0-9][^\s;,)]*)|--(?P<name>[a-z][a-z-]*)"
)


def speak_python(*, is_on: bool = True) -> None:
    """Makes messages write options as Python arguments: `budget=10`, not `--budget 10`."""
    global _speaks_python
    _speaks_python = is_on


@contextmanager
def speaking_commands() -> Iterator[None]:
    """Makes messages write options as on the command line while the context is active."""
    before = _speaks_python
    speak_python(is_on=False)
    try:
        yield
    finally:
        speak_python(is_on=before)


def in_python(text: str) -> str:
    """Returns a message with command-line options rewritten as Python arguments.

    Example:
        >>> in_python("give --device LABEL, or --all (see `cdmpp compare --help`)")
        'give device=LABEL, or all (see `cdmpp compare --help`)'
    """

    def word(found: re.Match[str]) -> str:
        if found["option"]:
            name = found["option"].replace("-", "_")
            return f"{_PYTHON_NAMES.get(name, name)}={found['value']}"
        return found["name"].replace("-", "_") if found["name"] else found[0]

    return _OPTION.sub(word, text)


def first_line(error: BaseException, most: int = 200) -> str:
    """Returns the first line of an error's text, cut to `most` characters; the class name if the
    text is empty.
    """
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:most]


def last_line(error: BaseException) -> str:
    """Returns the class name of a library's error and the last line of its text, the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1][:160] if lines else ''}"
