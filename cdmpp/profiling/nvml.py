"""How busy NVIDIA's GPUs are, from the driver's management library."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pynvml

from cdmpp.errors import DeviceError

_MW_PER_W = 1e3


@dataclass(frozen=True)
class GpuSample:
    """One GPU at one moment; None = the driver does not tell.

    Attributes:
        index: of the GPU.
        busy_share: of the time since the last sample, at least one kernel ran, 0 to 1.
        memory_bytes: in use.
        power_w: of the board.
    """

    index: int
    busy_share: float | None
    memory_bytes: int | None
    power_w: float | None


class Nvml:
    """The GPUs of this machine.

    Raises:
        DeviceError: no driver, or no GPU.
    """

    def __init__(self) -> None:
        try:
            pynvml.nvmlInit()
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            raise DeviceError(f"no NVML ({error}); expected an NVIDIA driver that runs") from None
        found = [_told(pynvml.nvmlDeviceGetHandleByIndex, index) for index in range(count)]
        self._handles = [handle for handle in found if handle is not None]
        if not self._handles:
            raise DeviceError("NVML finds no GPU")

    def sample(self) -> list[GpuSample]:
        """Returns what every GPU does now."""
        return [self._one(index, handle) for index, handle in enumerate(self._handles)]

    def _one(self, index: int, handle: Any) -> GpuSample:
        busy = _told(pynvml.nvmlDeviceGetUtilizationRates, handle)
        memory = _told(pynvml.nvmlDeviceGetMemoryInfo, handle)
        power_mw = _told(pynvml.nvmlDeviceGetPowerUsage, handle)
        return GpuSample(
            index,
            None if busy is None else busy.gpu / 100.0,
            None if memory is None else memory.used,
            None if power_mw is None else power_mw / _MW_PER_W,
        )

    def close(self) -> None:
        """Gives the library back."""
        pynvml.nvmlShutdown()


def _told(call: Callable[[Any], Any], what: Any) -> Any:
    """Returns what a call answers; None = the driver does not tell."""
    try:
        return call(what)
    except pynvml.NVMLError:
        return None
