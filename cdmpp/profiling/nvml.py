"""NVIDIA's management library through ctypes: how busy the GPUs are.

Source: NVML API reference.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from cdmpp.errors import DeviceError

_LIBRARY = "libnvidia-ml.so.1"
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


class _Utilisation(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong),
    )  # fmt: skip


class Nvml:
    """The GPUs of this machine."""

    def __init__(self, library: Any = None) -> None:
        """Args:
            library: None = the driver's.

        Raises:
            DeviceError: no driver, or no GPU.
        """
        try:
            self._library = ctypes.CDLL(_LIBRARY) if library is None else library
        except OSError as error:
            raise DeviceError(f"no NVML ({error}); expected an NVIDIA driver") from None
        count = ctypes.c_uint()
        if self._library.nvmlInit_v2() or self._library.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            raise DeviceError("NVML does not start; expected an NVIDIA driver that runs")
        self._handles = []
        for index in range(count.value):
            handle = ctypes.c_void_p()
            if self._library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) == 0:
                self._handles.append(handle)
        if not self._handles:
            raise DeviceError("NVML finds no GPU")

    def sample(self) -> list[GpuSample]:
        """Returns what every GPU does now."""
        return [self._one(index, handle) for index, handle in enumerate(self._handles)]

    def _one(self, index: int, handle: ctypes.c_void_p) -> GpuSample:
        busy, memory, power = _Utilisation(), _Memory(), ctypes.c_uint()
        call = self._library
        has_busy = call.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(busy)) == 0
        has_memory = call.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0
        has_power = call.nvmlDeviceGetPowerUsage(handle, ctypes.byref(power)) == 0
        return GpuSample(
            index, busy.gpu / 100.0 if has_busy else None, memory.used if has_memory else None,
            power.value / _MW_PER_W if has_power else None,
        )  # fmt: skip

    def close(self) -> None:
        """Gives the library back."""
        self._library.nvmlShutdown()
