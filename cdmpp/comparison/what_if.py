"""Hypothetical hardware: a device with scaled values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace

from cdmpp.config import named_values
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import UsageError
from cdmpp.text import nearest

_PEAKS = tuple(one.name for one in fields(DeviceSpec) if one.name.startswith("peak_"))
#: Name of a scale -> scaled fields of a device.
SCALED: dict[str, tuple[str, ...]] = {
    "bandwidth": ("mem_bandwidth_bytes_per_s", "l2_bandwidth_bytes_per_s"),
    "peak": (*_PEAKS, "clock_hz"),
    "memory": ("mem_bytes",),
    "link": ("link_bandwidth_bytes_per_s",),
    "power": ("tdp_w",),
}
_WHOLE = ("mem_bytes",)
#: Range of factors; beyond it, models return no finite result.
LEAST_FACTOR, MOST_FACTOR = 1e-3, 1e3


def parse_scales(text: str) -> dict[str, float]:
    """Returns the factors of `bandwidth=1.5,peak=2`.

    Raises:
        UsageError: an unknown or duplicate name, or a factor that is not a number or out of range.
    """
    found = {}
    form = f"NAME=FACTOR,... with {', '.join(SCALED)}"
    for name, value in named_values(text, "--scale", form).items():
        if name not in SCALED:
            raise UsageError(f"--scale {name!r}{nearest(name, SCALED)}; expected {form}")
        try:
            factor = float(value)
        except ValueError:
            factor = 0.0
        if not LEAST_FACTOR <= factor <= MOST_FACTOR:
            raise UsageError(
                f"--scale '{name}={value}', expected a factor from {LEAST_FACTOR:g} to "
                f"{MOST_FACTOR:g}, e.g. {name}=1.5"
            )
        found[name] = factor
    return found


def scaled(device: DeviceSpec, factors: Mapping[str, float]) -> DeviceSpec:
    """Returns the device with scaled values and the factors in its name; None stays None.

    `peak` scales peaks and the clock.
    """
    if not factors:
        return device
    changed: dict[str, float | int] = {}
    for name, factor in factors.items():
        for field in SCALED[name]:
            value = getattr(device, field)
            if value is not None:
                changed[field] = round(factor * value) if field in _WHOLE else factor * value
    words = ", ".join(f"{name} x{factor:g}" for name, factor in factors.items())
    note = f"scaled: {words}"
    sources = device.sources | {
        field: f"{device.sources.get(field, '')}; {note}" for field in changed
    }
    return replace(device, name=f"{device.name} ({words})", sources=sources, **changed)  # type: ignore[arg-type]
