"""Parses numbers with units, as printed by profilers."""

from __future__ import annotations

import math
import re

_PER_S = {
    1: ("s", "sec", "second", "seconds"),
    10**3: ("ms", "msec", "msecond", "millisecond", "milliseconds"),
    10**6: ("us", "usec", "usecond", "microsecond", "microseconds", "µs", "μs"),
    10**9: ("ns", "nsec", "nsecond", "nanosecond", "nanoseconds"),
}
_PREFIX = {"": 1.0, "K": 1e3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_BINARY = {"": 1.0, "K": 2.0**10, "k": 2.0**10, "M": 2.0**20, "G": 2.0**30, "T": 2.0**40}
_NUMBER = re.compile(r"([-+]?(?:\d[\d,]*)?\.?\d+(?:[eE][-+]?\d+)?)\s*([^\d\s].*)?$")


def units_per_s(unit: str) -> int:
    """Returns the number of units such as `us` or `nsecond` per second.

    Raises:
        ValueError: an unknown unit.
    """
    for count, names in _PER_S.items():
        if unit.strip() in names:
            return count
    raise ValueError(f"unit of time {unit!r}")


def seconds(text: str, unit: str | None = None) -> float:
    """Returns the seconds of a text such as `9.0957ms`, `640ns` or `1.45630s`.

    Args:
        unit: unit of the number; None = it is in the text.

    Raises:
        ValueError: not a number with a unit of time.
    """
    value, own = split_unit(text)
    exponent = -round(math.log10(units_per_s(own if unit is None else unit)))
    digits = repr(value)
    # The decimal exponent avoids the rounding of a multiplication: 12.639 us is 12.639e-6.
    return float(f"{digits}e{exponent}") if "e" not in digits else value * 10.0**exponent


def split_unit(text: str) -> tuple[float, str]:
    """Returns (number, unit) of a text such as `12.3GB/s` or `45.00%`; the unit may be empty.

    Raises:
        ValueError: no leading number.
    """
    found = _NUMBER.match(text.strip())
    if found is None:
        raise ValueError(f"number {text!r}")
    return float(found[1].replace(",", "")), (found[2] or "").strip()


def number(text: str) -> float:
    """Returns a number that may have thousands separators.

    Raises:
        ValueError: not a number.
    """
    value, unit = split_unit(text)
    if unit:
        raise ValueError(f"number {text!r}")
    return value


def size_bytes(text: str, unit: str | None = None, *, is_binary: bool = True) -> float:
    """Returns the bytes of a text such as `3.0518KB`, or of a number and its unit.

    Args:
        unit: unit of the number; None = it is in the text.
        is_binary: whether K is 1024 (nvprof) or 1000 (Nsight).

    Raises:
        ValueError: not a size.
    """
    value, own = split_unit(text)
    wanted = (own if unit is None else unit.strip()).removesuffix("/block")
    prefix, _, rest = wanted.replace("bytes", "B").replace("byte", "B").partition("B")
    factors = _BINARY if is_binary else _PREFIX
    if rest or prefix not in factors or "B" not in wanted.replace("byte", "B"):
        raise ValueError(f"unit of size {wanted!r}")
    return value * factors[prefix]
