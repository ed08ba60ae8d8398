"""What a kernel takes longer in a network than alone, where it is called again and again.

Alone, its arguments lie in the caches after the first call. In a network they come from memory, or
from a cache that is farther away: a time that grows with their bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cdmpp.arrays import FloatArray, TextArray
from cdmpp.datasets.extraction.machine_code import IN_NETWORK
from cdmpp.errors import DataError
from cdmpp.files.atomic import read_json, write_json
from cdmpp.predict.machine_code.widths import CodeWidths

FORMAT = 1
#: Shorter ones are called again and again in a network's measurement too: nothing is known of them.
LEAST_S = 1e-5
#: Up to ten nanoseconds a hundred bytes, in steps of a two hundredth of that.
_TRIED = np.arange(201) * 5e-13


@dataclass(frozen=True)
class KernelInNetwork:
    """The fastest known program of a task, timed in a network that calls it.

    Attributes:
        workload_key: of the task.
        argument_bytes: of its arguments, the result among them; of a table of which it reads the
            rows that another argument names, as many as of the result.
        latency_s: seconds of a call, with arguments of its own.
    """

    workload_key: str
    argument_bytes: float
    latency_s: float


def write_in_network(folder: Path, kernels: list[KernelInNetwork]) -> Path:
    """Writes kernels beside a dataset, each as often as it was timed; returns the file.

    Raises:
        DataError: it cannot be written.
    """
    path = Path(folder) / IN_NETWORK
    rows = [[one.workload_key, one.argument_bytes, one.latency_s] for one in kernels]
    write_json(path, {"format": FORMAT, "kernels": rows})
    return path


def read_in_network(folder: Path) -> list[KernelInNetwork]:
    """Returns what `write_in_network` wrote; nothing where there is no file.

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


def fitted_cold_s_per_byte(
    alone_s: FloatArray, argument_bytes: FloatArray, in_network_s: FloatArray
) -> float:
    """Returns the seconds a byte that bring kernels' times alone nearest to those in a network: the
    least mean absolute logarithm of the ratio, over kernels of at least `LEAST_S`.

    Args:
        alone_s: float64 [N], seconds when called again and again.
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
    cold_s_per_byte: float,
) -> CodeWidths:
    """Returns how far kernels' times in a network are from what their times alone say, by the
    latter.

    Args:
        alone_s: float64 [N], seconds when called again and again.
        argument_bytes: float64 [N].
        in_network_s: float64 [N], seconds in a network.
        task: str [N].
        cold_s_per_byte: what is added for a byte, to kernels of at least `LEAST_S`.
    """
    said_s = alone_s + np.where(alone_s >= LEAST_S, cold_s_per_byte * argument_bytes, 0.0)
    error = np.abs(np.log(said_s / in_network_s))
    return CodeWidths.of(error, np.log(alone_s), task, np.full(len(task), "any"))
