"""Error codes of programs from the responses of workers."""

from __future__ import annotations

from typing import Literal

from cdmpp.processes.worker import Answer
from cdmpp.records import ERROR_CODE_NAMES, UNKNOWN_ERROR_CODE

_INSTANTIATION = ERROR_CODE_NAMES.index("instantiation error")
_COMPILE_HOST = ERROR_CODE_NAMES.index("compile error (host)")
_COMPILE_DEVICE = ERROR_CODE_NAMES.index("compile error (device)")
_RUNTIME = ERROR_CODE_NAMES.index("runtime error (device)")
_BUILD_TIMEOUT = ERROR_CODE_NAMES.index("build timeout")
_RUN_TIMEOUT = ERROR_CODE_NAMES.index("run timeout")
_KILL = 9
#: Failures of drawing and building.
BUILD_CODES = frozenset({_INSTANTIATION, _COMPILE_HOST, _COMPILE_DEVICE, _BUILD_TIMEOUT})
Stage = Literal["draw", "build", "run"]


def failure_name(error_code: int) -> str:
    """Returns the name of a failure, "" for 0."""
    return ERROR_CODE_NAMES[error_code] if error_code else ""


def failure_code(answer: Answer, *, stage: Stage, target_kind: str) -> int:
    """Returns the error code of a program that could not be drawn, built or timed.

    The code is `UNKNOWN_ERROR_CODE` if the worker was killed from outside.
    """
    if answer.outcome == "timeout" and stage != "draw":
        return _BUILD_TIMEOUT if stage == "build" else _RUN_TIMEOUT
    if answer.outcome == "died":
        compile_error = _COMPILE_HOST if target_kind == "llvm" else _COMPILE_DEVICE
        died = {"draw": _INSTANTIATION, "build": compile_error, "run": _RUNTIME}[stage]
        return UNKNOWN_ERROR_CODE if answer.signal in (None, _KILL) else died
    code = answer.value.get("error_code")
    return UNKNOWN_ERROR_CODE if code is None else int(code)
