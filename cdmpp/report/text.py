"""Intervals and nearest tasks as people read them."""

from __future__ import annotations

import math

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def format_interval(latency_s: float, low_s: float, high_s: float) -> str:
    """Returns e.g. `1.83 ms [1.61, 2.09]`, all in the unit of the first; without the brackets where
    the ends are NaN.
    """
    scale, unit = next((u for u in _UNITS if latency_s >= u[0]), _UNITS[-1])
    text = f"{_three_digits(latency_s / scale)} {unit}"
    if math.isnan(low_s) or math.isnan(high_s):
        return text
    return f"{text} [{_three_digits(low_s / scale)}, {_three_digits(high_s / scale)}]"


def short_task(task: str, operator: str, *, width: int = 48) -> str:
    """Returns a task as few words: its operator and its key, cut to `width` characters."""
    key = task.rpartition("|")[0] or task
    key = key if len(key) <= width else f"{key[: width - 3]}..."
    return f"{operator} {key}" if operator else key


def _three_digits(value: float) -> str:
    """Returns three significant digits without an exponent for values of 0.0001 and more."""
    return f"{value:.0f}" if value >= 999.5 else f"{value:#.3g}".rstrip(".")
