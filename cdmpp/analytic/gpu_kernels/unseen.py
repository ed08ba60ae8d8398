"""How far the kernel models are off on a GPU that was not measured, by what was measured of its
like.

Each device of a fit is left out of a fit of its own. Where the fit knows a sibling, another board
of nearly the same chip, its error is like those of all devices together; where a kernel goes over
links these must be alike too. Other devices err in ways of their own: their intervals have the
widest ends of the devices that were left out, of the same vendor where the fit knows others of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cdmpp.analytic.gpu_kernels.account.chip import chip_of
from cdmpp.analytic.gpu_kernels.calls import LINKED
from cdmpp.analytic.gpu_kernels.serving_calls import DIRECT_LINK_BYTES_PER_S
from cdmpp.analytic.intervals import UNSEEN, DeviceErrors, LogErrors
from cdmpp.arrays import FloatArray
from cdmpp.devices.registry import get_device
from cdmpp.devices.spec import DeviceSpec, architecture_of

#: Names of devices that a model was not fitted on, the nearest first: it was fitted on a sibling,
#: on others of their vendor, or on neither.
SIBLING, RELATIVE = "sibling", "relative"
UNSEEN_NAMES = (SIBLING, RELATIVE, UNSEEN)
#: Name of the errors of a version of a framework that the fit has no row of.
NEW_VERSION = "new version"
#: Siblings are of one architecture, and differ by no more in cores and bandwidth.
_MOST_RATIO = 1.5


def unseen_as(device: DeviceSpec, fitted: Sequence[str], family: str) -> str:
    """Returns which of `UNSEEN_NAMES` a device is for a family's kernels.

    Args:
        fitted: labels of the fit; the device's own does not count.
    """
    others = [get_device(label) for label in fitted if label != device.name]
    if any(are_siblings(device, other, family) for other in others):
        return SIBLING
    is_relative = device.vendor is not None and device.vendor in [one.vendor for one in others]
    return RELATIVE if is_relative else UNSEEN


def errors_of(
    errors: DeviceErrors, group: str, device: DeviceSpec, fitted: Sequence[str]
) -> LogErrors | None:
    """Returns the errors of a group on a device: its own, else those of devices as near to it that
    were left out, else of farther ones, else the widest of the group's family there.

    Args:
        errors: device label or one of `UNSEEN_NAMES` -> group -> errors.
        group: of `error_groups`; its first word is the family.
        fitted: as of `unseen_as`.
    """
    family = group.split()[0]
    nearest = UNSEEN_NAMES.index(unseen_as(device, fitted, family))
    names = device.name, *UNSEEN_NAMES[nearest:]
    own = filter(None, (errors.get(name, {}).get(group) for name in names))
    return next(own, None) or LogErrors.widest(
        one for name, one in errors.get(UNSEEN, {}).items() if name.split()[0] == family
    )


def left_out_errors(
    logs: FloatArray,
    device: NDArray[np.str_],
    groups: NDArray[np.str_],
    fitted: Sequence[str],
    *,
    but: str = "",
    is_near: bool = False,
) -> DeviceErrors:
    """Returns name of `UNSEEN_NAMES` -> group -> errors. Those without enough rows are missing.

    Args:
        logs: float64 [N], log(measured / predicted) by a fit without the row's device.
        device: text [N], labels.
        groups: text [N].
        fitted: labels of the fit, those that were left out in turn.
        but: label of a device whose rows do not count.
        is_near: whether a sibling's times are kept (`NearRows`): with one, the ends are the widest
            of the devices that have one, where there are such.
    """
    found: DeviceErrors = {}
    labels = [label for label in fitted if label != but]
    for group in map(str, np.unique(groups)):
        kind = {one: unseen_as(get_device(one), fitted, group.split()[0]) for one in labels}
        with_sibling = [label for label in labels if kind[label] == SIBLING]
        related = [label for label in labels if kind[label] != UNSEEN]
        own = {label: logs[(groups == group) & (device == label)] for label in labels}
        each = {label: LogErrors.of(rows) for label, rows in own.items()}
        ends = {
            SIBLING: LogErrors.of(np.concatenate([*own.values(), np.empty(0)])),
            RELATIVE: LogErrors.widest(each[label] for label in related),
            UNSEEN: LogErrors.widest(each.values()),
        }
        if is_near:
            ends[SIBLING] = LogErrors.widest(each[one] for one in with_sibling) or ends[SIBLING]
        for name, one in ends.items():
            if one is not None:
                found.setdefault(name, {})[group] = one
    return found


def are_siblings(first: DeviceSpec, second: DeviceSpec, family: str) -> bool:
    """Whether two GPUs are boards of nearly the same chip, with like links where a family uses
    links.
    """
    architecture = architecture_of(first)
    if architecture is None or architecture != architecture_of(second):
        return False
    for name in ("core_count", "mem_bandwidth_bytes_per_s"):
        one, other = getattr(first, name), getattr(second, name)
        if not one or not other or max(one, other) > _MOST_RATIO * min(one, other):
            return False
    return family not in LINKED or _have_like_links(first, second)


def _have_like_links(first: DeviceSpec, second: DeviceSpec) -> bool:
    """Whether the links of two GPUs are direct and about as fast; over PCIe the machine decides."""
    ends = sorted(one.link_bandwidth_bytes_per_s or 0.0 for one in (first, second))
    return ends[0] > DIRECT_LINK_BYTES_PER_S and ends[1] <= _MOST_RATIO * ends[0]


def octaves_between(first: DeviceSpec, second: DeviceSpec) -> float:
    """Returns by how much the peaks, bandwidth, cores and L2 of two GPUs differ, octaves."""
    chips = chip_of(first), chip_of(second)
    numbers = [
        (one.bf16_flop_per_s, one.dram_bytes_per_s, one.core_count, one.l2_bytes) for one in chips
    ]
    return float(np.abs(np.log2(numbers[0]) - np.log2(numbers[1])).sum())
