"""The error tree: every expected failure of cdmpp is a `CdmppError` with an exit code and a next
step.
"""

from __future__ import annotations

EXIT_USAGE = 2
EXIT_DATA = 3
EXIT_DEVICE = 4


class CdmppError(Exception):
    """Expected trouble. The text says what went wrong, what was got, what was expected and what to
    run next.

    Attributes:
        exit_code: process exit code of the command line (0 ok, 2 usage, 3 data, 4 device).
    """

    exit_code = 1


class UsageError(CdmppError):
    """A command, option or configuration that cannot be carried out as written."""

    exit_code = EXIT_USAGE


class DataError(CdmppError):
    """Data that is missing, malformed, empty or of another schema version."""

    exit_code = EXIT_DATA


class NotApplicableError(DataError):
    """Sound data that this kind of model cannot use, such as programs without schedule steps.

    A benchmark records it as not applicable instead of failed.
    """


class NotFiniteError(DataError):
    """A training whose loss became infinite or not a number."""


class DeviceError(CdmppError):
    """A device that is unknown, unavailable or fails."""

    exit_code = EXIT_DEVICE


class ServerError(DeviceError):
    """A server that is gone, busy or fails."""


class ReplayError(DataError):
    """A measure record whose steps cannot be replayed on its task's computation.

    Attributes:
        reason: short stable phrase used to count failures of one kind.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


def first_line(error: BaseException, most: int = 200) -> str:
    """Returns the first line of an error's text, at most so many letters; its class without one."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:most]


def last_line(error: BaseException) -> str:
    """Returns what a library's error is and its last line, which says why."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1][:160] if lines else ''}"
