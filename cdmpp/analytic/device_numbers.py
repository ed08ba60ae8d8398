"""The numbers of a GPU that a model cannot do without."""

from __future__ import annotations

from collections.abc import Mapping

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
        lacks = f"the registry does not know its {', '.join(unknown)}"
        raise DeviceError(
            f"no {what} for {device.name!r}: {is_other or lacks}; expected a GPU with all of "
            f"{', '.join(values)}; see: cdmpp device show {device.name}{hint}"
        )
    return {name: float(value or 0.0) for name, value in values.items()}
