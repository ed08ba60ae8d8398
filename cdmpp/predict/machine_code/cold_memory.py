"""Extra time of a kernel in a network, compared with repeated calls of the kernel alone.

Repeated calls find their arguments in the caches. In a network the arguments come from memory or a
farther cache, which takes time in proportion to their bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cdmpp.arrays import FloatArray, IntArray, TextArray
from cdmpp.conformal import half_widths, least_owners
from cdmpp.datasets.extraction.machine_code import IN_NETWORK
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DataError
from cdmpp.files.atomic import read_json, write_json
from cdmpp.predict.machine_code.expected_error import COVERAGE, calibrated_width

FORMAT = 1
#: Shorter kernels are repeated when a network is measured too, so their extra time is unknown.
LEAST_S = 1e-5
#: Extra seconds per byte over those of reading a byte at the memory bandwidth: fitted alike on the
#: two CPUs on which networks were timed, a Zen 4 and an Ice Lake (`docs/lab/experiments.md`).
COLD_SHARE = 0.46
#: Share of the last cache up to which the arguments of a network stay there, and the share of the
#: extra time that its kernels take (`docs/lab/experiments.md`).
_CACHED_SHARE, _SHARE_IN_CACHE = 0.25, 0.125
#: Candidate seconds per byte: 0 to 0.1 ns in 200 steps.
_TRIED = np.arange(201) * 5e-13
_BANDS_LOG_S = np.log([1e-5, 1e-4, 1e-3, 1e-2])


@dataclass(frozen=True)
class NetworkWidths:
    """Half widths of 90 % intervals for the logarithm of the time in a network over that alone.

    Attributes:
        pooled: for every kernel, where too few tasks were timed for bands.
        by_band: for kernels that take less than 10 us, 100 us, 1 ms, 10 ms, and longer.
    """

    pooled: float
    by_band: tuple[float, ...] = ()

    @classmethod
    def of(cls, error: FloatArray, log_s: FloatArray, task: TextArray) -> NetworkWidths:
        """Returns the calibrated half widths; every task has the same weight.

        Args:
            error: float64 [N], absolute errors of the logarithm.
            log_s: float64 [N], logarithm of the seconds alone.
            task: str [N].
        """
        tasks, owner = np.unique(task, return_inverse=True)
        if len(tasks) < least_owners(COVERAGE):
            return cls(calibrated_width(error, np.ones(len(error)), task))
        found = half_widths(
            error, owner, _band(log_s), np.zeros(len(tasks), np.int64),
            columns=len(_BANDS_LOG_S) + 1, kinds=1, coverage=COVERAGE,
        )  # fmt: skip
        return cls(found.pooled, tuple(found.by_column.tolist()))

    def half_width(self, log_s: FloatArray) -> FloatArray:
        """Returns float64 [N], the half width for kernels that take exp(`log_s`) seconds alone."""
        if not self.by_band:
            return np.full(len(log_s), self.pooled)
        return np.array(self.by_band)[_band(log_s)]


@dataclass(frozen=True)
class KernelInNetwork:
    """The fastest known program of a task, timed in a network that calls it.

    Attributes:
        workload_key: workload key of the task.
        argument_bytes: bytes of its arguments, including the result. A table that another argument
            indexes counts with the bytes of the result.
        latency_s: seconds of a call with its own arguments.
    """

    workload_key: str
    argument_bytes: float
    latency_s: float


def write_in_network(folder: Path, kernels: list[KernelInNetwork]) -> Path:
    """Writes one row per timing into a dataset's folder; returns the file.

    Raises:
        DataError: it cannot be written.
    """
    path = Path(folder) / IN_NETWORK
    rows = [[one.workload_key, one.argument_bytes, one.latency_s] for one in kernels]
    write_json(path, {"format": FORMAT, "kernels": rows})
    return path


def read_in_network(folder: Path) -> list[KernelInNetwork]:
    """Loads what `write_in_network` wrote; an empty list if there is no file.

    Raises:
        DataError: the file is damaged or of another version.
    """
    path = Path(folder) / IN_NETWORK
    if not path.is_file():
        return []
    hint = "regenerate it with: python -m lab run in-network"
    value = read_json(path, what="timings in networks", hint=hint)
    try:
        if value["format"] != FORMAT:
            raise ValueError(f"format {value['format']!r}, expected {FORMAT}")
        return [
            KernelInNetwork(str(key), float(size), float(s)) for key, size, s in value["kernels"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} is damaged ({error}); {hint}") from None


def uncached_share(argument_bytes: float, device: DeviceSpec) -> float:
    """Returns the share of the extra time that kernels take in a network of that size.

    Args:
        argument_bytes: bytes of the arguments of all calls.
    """
    is_cached = argument_bytes <= _CACHED_SHARE * (device.l3_bytes or 0)
    return _SHARE_IN_CACHE if is_cached else 1.0


def fitted_cold_s_per_byte(
    alone_s: FloatArray, argument_bytes: FloatArray, in_network_s: FloatArray
) -> float:
    """Returns the extra seconds per byte with the least mean absolute log error of the times in a
    network, over kernels of at least `LEAST_S`.

    Args:
        alone_s: float64 [N], seconds of repeated calls.
        argument_bytes: float64 [N].
        in_network_s: float64 [N], seconds in a network.

    Raises:
        DataError: no kernel takes long enough.
    """
    is_long = alone_s >= LEAST_S
    if not np.any(is_long):
        raise DataError(
            f"no kernel timed in a network takes {1e6 * LEAST_S:.0f} µs; expected larger networks"
        )
    alone, size, measured = alone_s[is_long], argument_bytes[is_long], in_network_s[is_long]
    ratios = (alone + _TRIED[:, None] * size) / measured
    return float(_TRIED[np.abs(np.log(ratios)).mean(axis=1).argmin()])


def network_widths(
    alone_s: FloatArray,
    argument_bytes: FloatArray,
    in_network_s: FloatArray,
    task: TextArray,
    *,
    cold_s_per_byte: float | FloatArray,
) -> NetworkWidths:
    """Returns calibrated intervals for times in a network that are predicted from times alone.

    Args:
        alone_s: float64 [N], seconds of repeated calls.
        argument_bytes: float64 [N].
        in_network_s: float64 [N], seconds in a network.
        task: str [N].
        cold_s_per_byte: extra seconds per byte, for kernels of at least `LEAST_S`; float64 [N] or
            one for all.
    """
    said_s = alone_s + np.where(alone_s >= LEAST_S, cold_s_per_byte * argument_bytes, 0.0)
    error = np.abs(np.log(said_s / in_network_s))
    return NetworkWidths.of(error, np.log(alone_s), task)


def _band(log_s: FloatArray) -> IntArray:
    return np.searchsorted(_BANDS_LOG_S, log_s)
