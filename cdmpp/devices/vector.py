"""The device vector: a DeviceSpec as numbers for a model, with a mask for unknown values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cdmpp.devices.spec import DeviceSpec

#: Version of the columns; a model rejects vectors of another version.
DEVICE_VECTOR_SCHEMA_VERSION = 1


class _Column(NamedTuple):
    field: str
    center: float
    scale: float


# value = (log2(field) - center) / scale. Centre and scale are round constants that map current
# CPUs and GPUs to about [-2, 2]; they are not fitted to data.
_COLUMNS = (
    _Column("core_count", 4, 3),
    _Column("clock_hz", 31, 1),
    _Column("peak_fp32_flop_per_s", 40, 4),
    _Column("peak_fp16_flop_per_s", 42, 4),
    _Column("peak_tensor_flop_per_s", 45, 4),
    _Column("mem_bandwidth_bytes_per_s", 37, 3),
    _Column("mem_bytes", 34, 2),
    _Column("l1_bytes", 16, 2),
    _Column("l2_bytes", 21, 3),
    _Column("l3_bytes", 25, 3),
    _Column("l2_bandwidth_bytes_per_s", 40, 3),
    _Column("shared_mem_bytes_per_core", 16, 2),
    _Column("registers_per_core", 16, 2),
    _Column("simd_bits", 8, 1),
    _Column("warp_size", 5, 1),
    _Column("threads", 2, 2),
)
_KINDS = ("gpu", "cpu", "accelerator")
_VALUE_NAMES = (
    *(f"log2_{column.field}" for column in _COLUMNS),
    "compute_capability",
    *(f"is_{kind}" for kind in _KINDS),
)
#: Names of the 2F columns: F values, then F mask bits (1 = the value is known).
DEVICE_VECTOR_NAMES = (*_VALUE_NAMES, *(f"known_{name}" for name in _VALUE_NAMES))


def device_vector(spec: DeviceSpec) -> NDArray[np.float32]:
    """Returns the device vector.

    Rates, sizes and counts are log2, shifted and scaled by fixed constants; the compute capability
    is divided by 10; the kind is one-hot. An unknown value is 0 with mask bit 0, a known value has
    mask bit 1.

    Returns:
        float32 [2F], columns as `DEVICE_VECTOR_NAMES`.
    """
    values: list[float | None] = []
    for column in _COLUMNS:
        value = getattr(spec, column.field)
        values.append(None if not value else (math.log2(value) - column.center) / column.scale)
    values.append(_capability(spec.compute_capability))
    values.extend(float(spec.kind == kind) for kind in _KINDS)
    known = [value is not None for value in values]
    return np.array([*(value or 0.0 for value in values), *known], dtype=np.float32)


def as_nearest_known(spec: DeviceSpec, known: Sequence[DeviceSpec]) -> DeviceSpec:
    """Returns a device without the numbers that are unknown for the nearest training device.

    The compute capability is kept. A model cannot separate the effect of a number from the effect
    of its mask bit if no two training devices differ only in this bit. The nearest device has the
    smallest distance over the columns that are known for both.

    Args:
        known: training devices; if none is of the device's kind, `spec` is returned unchanged.
    """
    vector, half = device_vector(spec), len(_VALUE_NAMES)

    def distance(other: DeviceSpec) -> float:
        own = device_vector(other)
        shared = (own[half:] > 0) & (vector[half:] > 0)
        return float(np.sqrt(np.mean(np.square(own[:half] - vector[:half])[shared])))

    alike = [one for one in known if one.kind == spec.kind]
    if not alike:
        return spec
    nearest = min(alike, key=distance)
    unknown: dict[str, Any] = {
        one.field: None for one in _COLUMNS if not getattr(nearest, one.field)
    }
    return replace(spec, **unknown)


def _capability(text: str | None) -> float | None:
    """Returns a CUDA compute capability, e.g. `7.5` as 0.75; None for other names (`gfx906`)."""
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number / 10 if 0 < number < 100 else None
