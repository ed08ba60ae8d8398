"""Parses one line of an Ansor measure-record file (formats v0.2 to v0.6)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any

from cdmpp.errors import DataError
from cdmpp.records import (
    ERROR_CODE_NAMES,
    UNKNOWN_ERROR_CODE,
    MeasureRecord,
    normalise_workload_key,
)

KNOWN_VERSIONS = ("v0.2", "v0.3", "v0.4", "v0.5", "v0.6")
#: The cost that Ansor writes for a failed program.
FAILED_COST_S = 1e10
#: Maximum nesting of a step, which has lists of numbers.
MAX_NESTING = 16
_HARDWARE_PARAM_COUNT = 8
_MODEL = re.compile(r"(?:^|\s)-model=(\S+)")


class RecordLineError(DataError):
    """A line that is not a measure record.

    Attributes:
        reason: short stable phrase, for counting lines of one kind.
        detail: the invalid content.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason} ({detail})" if detail else reason)
        self.reason = reason
        self.detail = detail


def is_hardware_number(value: Any) -> bool:
    """Whether a value is an integer of at most 63 bits, as in native code."""
    return type(value) is int and abs(value) < 2**63


def target_device(target: str) -> str | None:
    """Returns the device label of a target (`-model=t4`); None if it has none."""
    match = _MODEL.search(target)
    label = match.group(1).strip("\"'") if match else ""
    return None if label in ("", "unknown") else label


def parse_record(text: str, *, device: str = "unknown", line: int = 0) -> MeasureRecord:
    """Returns the record of a line of JSON.

    A record without a measurement (costs zero and error code 0, as in Tenset's
    `to_measure_programs`) has empty `costs_s`.

    Args:
        text: one line.
        device: label for a target that does not name its device.
        line: line number to store in the record.

    Raises:
        RecordLineError: the line is not a valid record.
    """
    value = parse_object(text, ("i", "r", "v"))
    if value["v"] not in KNOWN_VERSIONS:
        raise RecordLineError("unknown version", str(value["v"])[:40])
    workload_key, target, hardware_params, steps = _parse_input(value["i"])
    costs_s, error_code, all_cost_s, measured_at = parse_result(value["r"])
    return MeasureRecord(
        workload_key=normalise_workload_key(workload_key),
        target=target,
        target_kind=target.split()[0],
        device=target_device(target) or device,
        hardware_params=hardware_params,
        steps=steps,
        costs_s=costs_s,
        error_code=error_code,
        all_cost_s=all_cost_s,
        measured_at=measured_at,
        version=value["v"],
        line=line,
    )


def parse_object(text: str, fields: Sequence[str]) -> dict[str, Any]:
    """Returns a line's JSON object.

    Raises:
        RecordLineError: the line is not a JSON object or lacks one of `fields`.
    """
    value = parse_json(text)
    if not isinstance(value, dict):
        raise RecordLineError("not a JSON object", type(value).__name__)
    for field in fields:
        if field not in value:
            raise RecordLineError("missing field", field)
    return value


def parse_json(text: str) -> Any:
    """Returns the value of a line of JSON.

    Raises:
        RecordLineError: the line is not JSON, or is truncated.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise RecordLineError("JSON nested too deeply") from None
    except json.JSONDecodeError as error:
        # A truncated line fails at its very end or inside its last string.
        cut = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string")
        reason = "truncated JSON" if cut and text.lstrip()[:1] == "{" else "not JSON"
        raise RecordLineError(reason, f"column {error.pos + 1}: {error.msg}") from None
    except ValueError as error:
        raise RecordLineError("not JSON", str(error)[:80]) from None


def _parse_input(value: Any) -> tuple[str, str, tuple[int, ...], tuple[list[Any], ...]]:
    """Returns (workload key, target, hardware parameters, steps)."""
    if not (isinstance(value, list) and len(value) >= 2 and isinstance(value[0], list)):
        raise RecordLineError("malformed input", "expected [task, state]")
    task, state = value[0], value[1]
    if not (len(task) >= 2 and all(isinstance(item, str) and item.strip() for item in task[:2])):
        raise RecordLineError("malformed task", "expected [workload key, target, ...]")
    if not all(is_text(item) for item in task[:2]):
        raise RecordLineError(
            "malformed task", "an incomplete UTF-16 character in the workload key or target"
        )
    hardware_params = task[2] if len(task) > 2 else []
    expected_count = _HARDWARE_PARAM_COUNT if len(task) > 2 else 0
    if not (
        isinstance(hardware_params, list)
        and len(hardware_params) == expected_count
        and all(is_hardware_number(item) for item in hardware_params)
    ):
        detail = "expected 8 integers of at most 63 bits"
        raise RecordLineError("malformed hardware parameters", detail)
    if not (isinstance(state, list) and len(state) == 2 and isinstance(state[1], list)):
        raise RecordLineError("malformed state", "expected [[], steps]")
    for number, step in enumerate(state[1]):
        if not (isinstance(step, list) and step and isinstance(step[0], str)):
            raise RecordLineError("malformed step", f"step {number}: expected [code, ...]")
        if not is_finite(step):
            detail = f"step {number}: a number is not finite, or lists are nested too deeply"
            raise RecordLineError("malformed step", detail)
    return task[0], task[1], tuple(hardware_params), tuple(state[1])


def is_text(text: str) -> bool:
    """Whether a string can be encoded as UTF-8: JSON may contain single surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_finite(value: Any, *, depth: int = MAX_NESTING) -> bool:
    """Whether a JSON value has no NaN or infinity and is nested at most `depth` deep."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return depth > 0 and all(is_finite(item, depth=depth - 1) for item in value)
    return not isinstance(value, float) or math.isfinite(value)


def parse_result(value: Any) -> tuple[tuple[float, ...], int, float, int]:
    """Returns (costs in seconds, error code, all cost in seconds, Unix time) of a result field.

    Raises:
        RecordLineError: the field is malformed, or has error code 0 without usable costs.
    """
    if not (isinstance(value, list) and len(value) >= 2 and isinstance(value[0], list)):
        raise RecordLineError("malformed result", "expected [costs, error, all cost, timestamp]")
    costs, error_code = value[0], value[1]
    others = [*value[2:4], 0, 0][:2]
    if not all(_is_number(item) for item in [*costs, *others]):
        raise RecordLineError("malformed result", "a cost or time is not a number")
    if type(error_code) is not int or error_code < 0:
        raise RecordLineError("malformed result", f"error code {str(error_code)[:20]}")
    if not all(math.isfinite(item) for item in others):
        raise RecordLineError("malformed result", "all cost or timestamp is not finite")
    all_cost_s, measured_at = float(others[0]), int(others[1])
    if abs(measured_at) >= 1 << 62:
        raise RecordLineError("malformed result", "timestamp out of range")
    error_code = min(error_code, len(ERROR_CODE_NAMES) - 1)
    costs_s = tuple(float(cost) for cost in costs)
    if error_code == 0:
        if not costs_s:
            raise RecordLineError("no costs", "error code 0 with an empty list")
        if not all(math.isfinite(cost) for cost in costs_s):
            raise RecordLineError("cost is not finite", str(list(costs_s))[:60])
        if all(cost == 0 for cost in costs_s):
            return (), 0, all_cost_s, measured_at
        if min(costs_s) <= 0:
            raise RecordLineError("cost is zero or negative", str(list(costs_s))[:60])
        if max(costs_s) >= FAILED_COST_S:
            error_code = UNKNOWN_ERROR_CODE
    if error_code:
        costs_s = tuple(cost for cost in costs_s if math.isfinite(cost))
    return costs_s, error_code, all_cost_s, measured_at


def _is_number(value: Any) -> bool:
    if type(value) is int:
        return abs(value) < 1 << 1000  # as a float it stays finite
    return type(value) is float
