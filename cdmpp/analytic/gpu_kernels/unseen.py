"""How far the kernel models are off on a GPU that was not measured, by what was measured of its
like.

Each device of a fit is left out of a fit of its own. Where the fit knows a sibling, another board
of nearly the same chip, its error is like those of all devices together. Other devices err in ways
of their own: their intervals have the widest ends of the devices that were left out, of the same
vendor where the fit knows others of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from cdmpp.analytic.intervals import UNSEEN, FloatArray, LogErrors
from cdmpp.devices.registry import get_device
from cdmpp.devices.spec import DeviceSpec, architecture_of

#: Names of devices that a model was not fitted on, the nearest first: it was fitted on a sibling,
#: on others of their vendor, or on neither.
SIBLING, RELATIVE = "sibling", "relative"
UNSEEN_NAMES = (SIBLING, RELATIVE, UNSEEN)
#: Siblings are of one architecture, and differ by no more in cores and bandwidth.
_MOST_RATIO = 1.5


def unseen_as(device: DeviceSpec, fitted: Sequence[str]) -> str:
    """Returns which of `UNSEEN_NAMES` a device is.

    Args:
        fitted: labels of the fit; the device's own does not count.
    """
    others = [get_device(label) for label in fitted if label != device.name]
    if any(_are_siblings(device, other) for other in others):
        return SIBLING
    is_relative = device.vendor is not None and device.vendor in [one.vendor for one in others]
    return RELATIVE if is_relative else UNSEEN


def left_out_errors(logs: Mapping[str, FloatArray], fitted: Sequence[str]) -> dict[str, LogErrors]:
    """Returns name of `UNSEEN_NAMES` -> errors. Names without enough rows are missing.

    Args:
        logs: label of a device -> float64 [R], log(measured / predicted) by a fit without it.
        fitted: labels of the fit, those that were left out in turn.
    """
    each = {label: LogErrors.of(own) for label, own in logs.items()}
    known = [label for label in logs if unseen_as(get_device(label), fitted) != UNSEEN]
    found = {
        SIBLING: LogErrors.of(np.concatenate([*logs.values(), np.empty(0)])),
        RELATIVE: LogErrors.widest(each[label] for label in known),
        UNSEEN: LogErrors.widest(each.values()),
    }
    return {name: errors for name, errors in found.items() if errors is not None}


def _are_siblings(first: DeviceSpec, second: DeviceSpec) -> bool:
    architecture = architecture_of(first)
    if architecture is None or architecture != architecture_of(second):
        return False
    for name in ("core_count", "mem_bandwidth_bytes_per_s"):
        one, other = getattr(first, name), getattr(second, name)
        if not one or not other or max(one, other) > _MOST_RATIO * min(one, other):
            return False
    return True
