"""Checks that raise an AssertionError with the requirement and the actual result."""

from __future__ import annotations

from collections.abc import Callable

from cdmpp.errors import CdmppError


def promise(is_kept: object, text: str) -> None:
    """Checks a requirement.

    Args:
        text: the requirement and the actual result.

    Raises:
        AssertionError: `is_kept` is false.
    """
    if not is_kept:
        raise AssertionError(text)


def refused(call: Callable[[], object], error: type[CdmppError], text: str) -> str:
    """Calls `call`, which must raise `error`, and returns the message.

    Args:
        error: class of the expected error.
        text: the requirement.

    Raises:
        AssertionError: the call raises no error, another error, or a message of several lines.
    """
    try:
        found = call()
    except error as caught:
        promise("\n" not in str(caught), f"{text}: expected one sentence, got {str(caught)!r}")
        return str(caught)
    except Exception as caught:
        raise AssertionError(f"{text}: expected {error.__name__}, got {caught!r}") from caught
    raise AssertionError(f"{text}: expected {error.__name__}, got {found!r}")
