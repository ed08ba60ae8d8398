"""Contract test of an analytic kernel: `check_analytic_kernel(my_kernel, sizes)`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from cdmpp.analytic.roofline.floor import least_kernel_s
from cdmpp.devices.registry import get_device
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import CdmppError, DataError
from cdmpp.testing.promise import promise, refused

#: (sizes by name, device) -> seconds.
Kernel = Callable[[Mapping[str, float], DeviceSpec], float]

#: Minimum time of a larger call over the original, below 1 for unevenly filled waves of blocks.
_WIGGLE = 0.9
_GROWTH = 8
_RATES = (
    "peak_fp32_flop_per_s", "peak_fp16_flop_per_s", "peak_tensor_flop_per_s",
    "peak_bf16_flop_per_s", "mem_bandwidth_bytes_per_s", "l2_bandwidth_bytes_per_s", "clock_hz",
)  # fmt: skip


def check_analytic_kernel(
    kernel: Kernel,
    sizes: Mapping[str, float],
    *,
    device: DeviceSpec | None = None,
    grows_with: tuple[str, ...] | None = None,
) -> None:
    """Checks that a closed form returns seconds that grow with the work, do not grow on a faster
    device and are never below the device's smallest kernel.

    Args:
        kernel: the closed form; raises `DataError` for a missing size and a `CdmppError` for a
            device with too few known values.
        sizes: sizes of a call that fills the device.
        device: a GPU or CPU that the closed form covers; None = the V100 of the registry.
        grows_with: sizes that increase the work; None = all.

    Raises:
        AssertionError: a check failed; the message has the requirement.
    """
    spec = get_device("v100") if device is None else device
    seconds = kernel(sizes, spec)
    promise(
        isinstance(seconds, float) and math.isfinite(seconds) and seconds > 0,
        f"a kernel takes positive finite seconds, got {seconds!r}",
    )
    promise(kernel(sizes, spec) == seconds, "the same input has the same result")
    least_s = least_kernel_s(spec)
    promise(
        seconds >= least_s,
        f"no kernel is faster than the smallest of {spec.name}, {least_s:g} s, got {seconds:g}",
    )
    work = tuple(sizes) if grows_with is None else grows_with
    for name in work:
        larger_s = kernel({**sizes, name: sizes[name] * _GROWTH}, spec)
        promise(
            larger_s >= _WIGGLE * seconds,
            f"{_GROWTH} times the {name} takes no less time, got {larger_s:g} s after "
            f"{seconds:g} s",
        )
    all_s = kernel({**sizes, **{name: sizes[name] * _GROWTH for name in work}}, spec)
    promise(all_s > seconds, f"more work takes longer, got {all_s:g} s after {seconds:g} s")
    faster_s = kernel(sizes, _faster(spec))
    promise(
        faster_s <= seconds * (1 + 1e-9),
        f"a device with four times the rates is not slower, got {faster_s:g} s after {seconds:g} s",
    )
    for name in sizes:
        rest = {other: size for other, size in sizes.items() if other != name}
        refused(partial(kernel, rest, spec), DataError, f"a call without {name} is rejected")
    _stranger(kernel, sizes)


def _faster(spec: DeviceSpec) -> DeviceSpec:
    rates = {name: getattr(spec, name) for name in _RATES}
    known = {name: 4 * value for name, value in rates.items() if value is not None}
    return replace(spec, name=f"{spec.name}-times-4", **known)


def _stranger(kernel: Kernel, sizes: Mapping[str, float]) -> None:
    """Checks that a device without known values is rejected or has a finite result."""
    try:
        seconds = kernel(sizes, DeviceSpec("nothing-known", "gpu"))
    except CdmppError as error:
        promise("\n" not in str(error), f"an error is one sentence, got {str(error)!r}")
        return
    promise(
        math.isfinite(seconds) and seconds > 0,
        f"a device without known values is rejected or has a result, got {seconds!r}",
    )
