"""How far the kernel models are off on a GPU that was not measured, by what was measured of its
like.

Each device of a fit is left out of a fit of its own. A fit that knows other GPUs of its
architecture errs least, one that knows other GPUs of its vendor less than one that knows neither.
Each device errs in a way of its own, so that intervals have the widest ends of those left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cdmpp.analytic.intervals import UNSEEN, FloatArray, LogErrors
from cdmpp.devices.registry import get_device
from cdmpp.devices.spec import DeviceSpec, architecture_of

#: Names of devices that a model was not fitted on, the nearest first: it was fitted on others of
#: their architecture, of their vendor, or of neither.
UNSEEN_NAMES = ("sibling", "relative", UNSEEN)


def unseen_as(device: DeviceSpec, fitted: Sequence[str]) -> str:
    """Returns which of `UNSEEN_NAMES` a device is.

    Args:
        fitted: labels of the fit; the device's own does not count.
    """
    others = [get_device(label) for label in fitted if label != device.name]
    own = architecture_of(device)
    if own is not None and own in map(architecture_of, others):
        return UNSEEN_NAMES[0]
    is_relative = device.vendor is not None and device.vendor in [one.vendor for one in others]
    return UNSEEN_NAMES[1] if is_relative else UNSEEN


def left_out_errors(logs: Mapping[str, FloatArray], fitted: Sequence[str]) -> dict[str, LogErrors]:
    """Returns name of `UNSEEN_NAMES` -> errors: the widest of devices that were left out and are as
    near as it says, or nearer. Names without enough rows are missing.

    Args:
        logs: label of a device -> float64 [R], log(measured / predicted) by a fit without it.
        fitted: labels of the fit, those that were left out in turn.
    """
    found: dict[str, LogErrors] = {}
    parts: list[LogErrors | None] = []
    for name in UNSEEN_NAMES:
        own = [label for label in logs if unseen_as(get_device(label), fitted) == name]
        parts += [LogErrors.of(logs[label]) for label in own]
        widest = LogErrors.widest(parts)
        if widest is not None:
            found[name] = widest
    return found
