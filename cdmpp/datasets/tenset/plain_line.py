"""Fast parser of record lines in Ansor's usual form, several times faster than `record_line`.

Unusual lines (failed measurements, unusual numbers, escapes, other lengths, invalid lines) are left
to `record_line`, which handles every case and reports errors; both return equal records. orjson
parses a line in a sixth of the time of the standard library's json, but is missing in the side
environment of the old TVM, so this module is imported only where it is used.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import orjson

from cdmpp.datasets.tenset.record_line import (
    FAILED_COST_S,
    KNOWN_VERSIONS,
    is_hardware_number,
    target_device,
)
from cdmpp.records import MeasureRecord, normalise_workload_key

#: Strings that every JSON writer writes in the same way.
_PLAIN_TEXT = re.compile(rb'"[ !#-\[\]-~]*"')
_PLAIN_NUMBERS = b"0123456789-,"
_HARDWARE_PARAM_COUNT = 8
_LARGEST_TIME = 1 << 62
_CACHED_NAMES = 4096


def parse_plain_record(raw: bytes, *, device: str, line: int = 0) -> MeasureRecord | None:
    """Returns the record of a line, equal to that of `parse_record`; None if the line is unusual.

    Args:
        raw: one line.
        device: label for a target that does not name its device.
        line: line number to store in the record.
    """
    try:
        value = orjson.loads(raw)
        (task, state), result, version = value["i"], value["r"], value["v"]
        key, target, hardware, host, layout, inputs = task
        start, steps = state
        costs, error_code, all_cost, measured_at = result
    except (ValueError, TypeError, KeyError):
        return None
    is_plain = (
        len(value) == 3
        and type(value["i"]) is type(task) is type(state) is type(result) is list
        and version in KNOWN_VERSIONS
        and type(key) is type(target) is type(host) is str
        and type(layout) is int
        and inputs == start == []
        and _is_hardware(hardware)
        and _is_measured(costs, error_code, all_cost, measured_at)
    )
    names = _names(key, target) if is_plain else None
    text = _plain_steps(steps) if names else None
    if names is None or text is None:
        return None
    return MeasureRecord(
        workload_key=names[0],
        target=target,
        target_kind=names[1],
        device=names[2] or device,
        hardware_params=tuple(hardware),
        steps=tuple(steps),
        costs_s=tuple(costs),
        error_code=0,
        all_cost_s=float(all_cost),
        measured_at=measured_at,
        version=version,
        line=line,
        steps_text=text,
    )


def _is_hardware(value: Any) -> bool:
    return (
        type(value) is list
        and len(value) == _HARDWARE_PARAM_COUNT
        and all(map(is_hardware_number, value))
    )


def _is_measured(costs: Any, error_code: Any, all_cost: Any, measured_at: Any) -> bool:
    """Whether the result is of a program that ran: finite positive seconds."""
    return (
        type(error_code) is type(measured_at) is int
        and error_code == 0
        and abs(measured_at) < _LARGEST_TIME
        and type(all_cost) in (float, int)
        and abs(all_cost) < FAILED_COST_S
        and type(costs) is list
        and set(map(type, costs)) == {float}
        and min(costs) > 0
        and max(costs) < FAILED_COST_S
    )


@lru_cache(maxsize=_CACHED_NAMES)
def _names(key: str, target: str) -> tuple[str, str, str | None] | None:
    """Returns (normalised key, target kind, device or None); None for unusual strings."""
    if not (key.isascii() and target.isascii() and key.strip() and target.strip()):
        return None
    return normalise_workload_key(key), target.split()[0], target_device(target)


def _plain_steps(steps: Any) -> str | None:
    """Returns the canonical JSON of steps of integers, plain strings and lists of integers; None
    for other steps.
    """
    if type(steps) is not list:
        return None
    for step in steps:
        if type(step) is not list or not step or type(step[0]) is not str:
            return None
    try:
        text = orjson.dumps(steps)
    except TypeError:  # nested too deeply
        return None
    brackets = _PLAIN_TEXT.sub(b"", text).translate(None, _PLAIN_NUMBERS)
    # At most three levels of lists, and nothing else: no letter, no dot, no brace.
    for _ in range(3):
        brackets = brackets.replace(b"[]", b"")
    return None if brackets else text.decode("ascii")
