"""A broken promise is an AssertionError that names it, and what was got."""

from __future__ import annotations

from collections.abc import Callable

from cdmpp.errors import CdmppError


def promise(is_kept: object, text: str) -> None:
    """Checks a promise.

    Args:
        text: what was promised, and what was got instead.

    Raises:
        AssertionError: it is not kept.
    """
    if not is_kept:
        raise AssertionError(text)


def refused(call: Callable[[], object], error: type[CdmppError], text: str) -> str:
    """Returns the one sentence with which something is refused.

    Args:
        error: the class that it is refused with.
        text: what was promised.

    Raises:
        AssertionError: it is not refused, with another error, or not in one line.
    """
    try:
        found = call()
    except error as caught:
        promise("\n" not in str(caught), f"{text}: expected one sentence, got {str(caught)!r}")
        return str(caught)
    except Exception as caught:
        raise AssertionError(f"{text}: expected {error.__name__}, got {caught!r}") from caught
    raise AssertionError(f"{text}: expected {error.__name__}, got {found!r}")
