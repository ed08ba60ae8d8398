"""Errors of the kernel models on unseen GPUs, from the errors on similar measured GPUs.

Each device is held out of one fit. If the fit has a sibling, i.e. another board of nearly the same
chip (with similar links, for kernels that use links), a device's error is like those of all devices
together. Other devices err in their own ways: their intervals have the widest ends over the
held-out devices. If the device's vendor is in the fit, only the held-out devices whose vendor was
still in their fit count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from cdmpp.analytic.gpu_kernels.account.chip import chip_of
from cdmpp.analytic.gpu_kernels.calls import LINKED
from cdmpp.analytic.gpu_kernels.serving_calls import DIRECT_LINK_BYTES_PER_S
from cdmpp.analytic.intervals import UNSEEN, DeviceErrors, LogErrors
from cdmpp.arrays import BoolArray, FloatArray
from cdmpp.devices.registry import get_device
from cdmpp.devices.spec import DeviceSpec, architecture_of

#: Classes of unseen devices, most similar first: the fit has a sibling, another device of the
#: vendor, or neither.
SIBLING, RELATIVE = "sibling", "relative"
UNSEEN_NAMES = (SIBLING, RELATIVE, UNSEEN)
#: Name of the errors on versions of a framework that are not in the fit.
NEW_VERSION = "new version"
#: Maximum ratio of the cores and bandwidths of siblings, which have the same architecture.
_MOST_RATIO = 1.5


def unseen_as(device: DeviceSpec, fitted: Sequence[str], family: str) -> str:
    """Returns the class of a device for a family's kernels, one of `UNSEEN_NAMES`.

    Args:
        fitted: labels of the fit; the device itself is ignored.
    """
    others = [get_device(label) for label in fitted if label != device.name]
    if any(are_siblings(device, other, family) for other in others):
        return SIBLING
    is_relative = device.vendor is not None and device.vendor in [one.vendor for one in others]
    return RELATIVE if is_relative else UNSEEN


def siblings_of(label: str, fitted: Sequence[str], family: str) -> list[str]:
    """Returns the siblings of a device among the labels of a fit, without itself."""
    device = get_device(label)
    others = [other for other in fitted if other != label]
    return [other for other in others if are_siblings(device, get_device(other), family)]


def errors_of(
    errors: DeviceErrors, group: str, device: DeviceSpec, fitted: Sequence[str]
) -> LogErrors | None:
    """Returns the errors of a group on a device: its own, else those of its class of unseen
    devices, else of less similar classes, else the widest of the family's groups on `UNSEEN`.

    Args:
        errors: device label or one of `UNSEEN_NAMES` -> group -> errors.
        group: one of `error_groups`; its first word is the family.
        fitted: as in `unseen_as`.
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
    apart: FloatArray,
    device: NDArray[np.str_],
    groups: NDArray[np.str_],
    fitted: Sequence[str],
    *,
    but: str = "",
    is_near: bool = False,
) -> DeviceErrors:
    """Returns name of `UNSEEN_NAMES` -> group -> errors, without groups that have too few rows.

    Args:
        logs: float64 [N], log(measured / predicted) by a fit without the row's device.
        apart: float64 [N], the same by a fit without the device's siblings too; NaN in rows of
            devices without siblings.
        device: text [N], labels.
        groups: text [N].
        fitted: labels of the fit, each of which was held out once.
        but: label of a device whose rows are ignored.
        is_near: whether the model stores measured calls (`NearRows`). The ends for a sibling are
            then the widest over the devices with a sibling, if there are any.
    """
    found: DeviceErrors = {}
    labels = [label for label in fitted if label != but]
    for group in map(str, np.unique(groups)):
        family = group.split()[0]
        rows = {one: (groups == group) & (device == one) for one in labels}
        each = _of_devices(logs, rows)
        with_sibling = {one for one in each if siblings_of(one, fitted, family)}
        is_apart = len(with_sibling) == len(each)
        others = _of_devices(apart, rows) if is_apart else each
        related = {
            label: one
            for label, one in others.items()
            if _has_relative(label, fitted, family, is_apart=is_apart)
        }
        everywhere = np.concatenate([*(logs[own] for own in rows.values()), np.empty(0)])
        ends = {
            SIBLING: LogErrors.of(everywhere),
            RELATIVE: _widest(related, family),
            UNSEEN: _widest(others, family),
        }
        if is_near:
            ends[SIBLING] = LogErrors.widest(each[one] for one in with_sibling) or ends[SIBLING]
        for name, errors in ends.items():
            if errors is not None:
                found.setdefault(name, {})[group] = errors
    return found


def _of_devices(logs: FloatArray, rows: Mapping[str, BoolArray]) -> dict[str, LogErrors]:
    """Returns device -> errors of its rows (bool [N]) with an error, if there are enough."""
    each = {label: LogErrors.of(logs[own & np.isfinite(logs)]) for label, own in rows.items()}
    return {label: one for label, one in each.items() if one is not None}


def _has_relative(label: str, fitted: Sequence[str], family: str, *, is_apart: bool) -> bool:
    """Returns whether the fit without a device, or also without its siblings, has its vendor."""
    near = siblings_of(label, fitted, family) if is_apart else []
    others = [other for other in fitted if other not in near]
    return unseen_as(get_device(label), others, family) != UNSEEN


def _widest(each: Mapping[str, LogErrors], family: str) -> LogErrors | None:
    """Returns the widest ends over devices; of a single chip, the farther end on both sides."""
    one = LogErrors.widest(each.values())
    labels = list(each)
    if one is None or len(siblings_of(labels[0], labels, family)) < len(labels) - 1:
        return one
    far = max(-one.low, one.high)
    return LogErrors(-far, far, one.count)


def are_siblings(first: DeviceSpec, second: DeviceSpec, family: str) -> bool:
    """Returns whether two GPUs are boards of nearly the same chip and, if the family uses links,
    have similar links.
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
    """Returns whether both GPUs have direct links of similar speed; PCIe depends on the machine."""
    ends = sorted(one.link_bandwidth_bytes_per_s or 0.0 for one in (first, second))
    return ends[0] > DIRECT_LINK_BYTES_PER_S and ends[1] <= _MOST_RATIO * ends[0]


def octaves_between(first: DeviceSpec, second: DeviceSpec) -> float:
    """Returns the sum of differences of peak, bandwidth, cores and L2 of two GPUs, in octaves."""
    chips = chip_of(first), chip_of(second)
    numbers = [
        (one.bf16_flop_per_s, one.dram_bytes_per_s, one.core_count, one.l2_bytes) for one in chips
    ]
    return float(np.abs(np.log2(numbers[0]) - np.log2(numbers[1])).sum())
