"""Values of a GPU that a model requires."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from cdmpp.devices.registry import load_registry
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DeviceError


def numbers_of(
    device: DeviceSpec, values: Mapping[str, float | None], *, what: str, hint: str = ""
) -> dict[str, float]:
    """Returns name -> value of a GPU, after checking that all are known.

    Args:
        values: name in the registry -> the device's value.
        what: model that needs the values, for the error text.
        hint: alternative for the user, appended to the error text.

    Raises:
        DeviceError: not a GPU, or the registry lacks one of the values.
    """
    unknown = [name for name, value in values.items() if not value]
    if device.kind != "gpu" or unknown:
        is_other = f"it is a {device.kind}" if device.kind != "gpu" else ""
        lacks = f"the registry has no {', '.join(unknown)}"
        raise DeviceError(
            f"no {what} for {device.name!r}: {is_other or lacks}; expected a GPU with all of "
            f"{', '.join(values)}; see: cdmpp device show {device.name}{hint}"
        )
    return {name: float(value or 0.0) for name, value in values.items()}


def as_fitted(device: DeviceSpec, fitted: Iterable[str]) -> DeviceSpec:
    """Renames a device to a fitted label of the same chip, if there is one: a V100 of 32 GB has the
    numbers of one of 16 GB.

    Args:
        fitted: labels of the model's devices.
    """
    labels = list(fitted)
    if device.name in labels:
        return device
    known = load_registry()
    same = (label for label in labels if label in known and _chip(known[label]) == _chip(device))
    label = next(same, None)
    return device if label is None else replace(device, name=label)


def _chip(spec: DeviceSpec) -> tuple[object, ...]:
    return (
        spec.architecture, spec.core_count, spec.clock_hz, spec.peak_fp32_flop_per_s,
        spec.mem_bandwidth_bytes_per_s, spec.l2_bytes,
    )  # fmt: skip
