"""The numbers of a GPU that a model cannot do without."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from cdmpp.devices.registry import load_registry
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DeviceError


def numbers_of(
    device: DeviceSpec, values: Mapping[str, float | None], *, what: str, hint: str = ""
) -> dict[str, float]:
    """Returns name -> value of a GPU.

    Args:
        values: name in the registry -> the device's value.
        what: needs them, for the error text.
        hint: what else can be done.

    Raises:
        DeviceError: not a GPU, or one of the values is not in the registry.
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
    """Returns a device under the label of the same chip that a model was fitted on, if there is
    one: a V100 of 32 GB says all of one of 16.

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
