"""What a worker's answer means for the program, and when failures are no program's fault."""

from __future__ import annotations

from cdmpp.errors import DeviceError
from cdmpp.processes.worker import Answer
from cdmpp.records import ERROR_CODE_NAMES, UNKNOWN_ERROR_CODE

INSTANTIATION = ERROR_CODE_NAMES.index("instantiation error")
_COMPILE_HOST = ERROR_CODE_NAMES.index("compile error (host)")
_COMPILE_DEVICE = ERROR_CODE_NAMES.index("compile error (device)")
_RUNTIME = ERROR_CODE_NAMES.index("runtime error (device)")
_BUILD_TIMEOUT = ERROR_CODE_NAMES.index("build timeout")
_RUN_TIMEOUT = ERROR_CODE_NAMES.index("run timeout")
_KILL = 9


def program_failure(answer: Answer, *, is_build: bool, target_kind: str) -> int:
    """Returns the error code of a program that could not be built or timed."""
    if answer.outcome == "timeout":
        return _BUILD_TIMEOUT if is_build else _RUN_TIMEOUT
    compile_error = _COMPILE_HOST if target_kind == "llvm" else _COMPILE_DEVICE
    return failure_code(answer, died=compile_error if is_build else _RUNTIME)


def failure_code(answer: Answer, *, died: int) -> int:
    """Returns the error code of an answer that is not `done`, time-outs apart.

    Args:
        died: the code where the worker broke down; a worker that somebody killed says nothing.
    """
    if answer.outcome == "died":
        return UNKNOWN_ERROR_CODE if answer.signal in (None, _KILL) else died
    code = answer.value.get("error_code")
    return UNKNOWN_ERROR_CODE if code is None else int(code)


class SameFailures:
    """Counts consecutive failures of one kind.

    Args:
        most: so many are too many; 0 = never.
        advice: the end of the error's text: what to do besides.
    """

    def __init__(self, most: int, advice: str) -> None:
        self._most = most
        self._advice = advice
        self._code, self._text, self._count = 0, "", 0

    def add(self, error_code: int, text: str) -> None:
        """Takes notice of a program; 0 = it went well.

        Raises:
            DeviceError: it is the last of too many failures.
        """
        if error_code != self._code:
            self._code, self._text, self._count = error_code, text, 0
        self._count += 1
        if self._code and self._most and self._count >= self._most:
            raise DeviceError(
                f"stopped after {self._count} consecutive failures of one kind "
                f"({ERROR_CODE_NAMES[self._code]}); the first of them: {self._text}. Mend it and "
                f"run the same command again{self._advice}"
            )
