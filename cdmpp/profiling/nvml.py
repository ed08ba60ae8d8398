"""Utilisation of NVIDIA GPUs from the driver's management library."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cdmpp.errors import DeviceError, UsageError
from cdmpp.extras import require

_MW_PER_W = 1e3


@dataclass(frozen=True)
class GpuSample:
    """One GPU at one moment; None = not reported by the driver.

    Attributes:
        index: index of the GPU.
        busy_share: share of the time since the last sample with a running kernel, 0 to 1.
        memory_bytes: memory in use.
        power_w: of the board.
    """

    index: int
    busy_share: float | None
    memory_bytes: int | None
    power_w: float | None


class Nvml:
    """The GPUs of this machine.

    Args:
        identity: UUID of the only GPU to sample; None = all.

    Raises:
        DeviceError: the package, the driver or a GPU is missing.
    """

    def __init__(self, identity: str | None = None) -> None:
        try:
            self._library = require("pynvml", extra="nvml", purpose="how busy a GPU is")
        except UsageError as error:
            raise DeviceError(str(error)) from None
        try:
            self._library.nvmlInit()
            count = self._library.nvmlDeviceGetCount()
        except self._library.NVMLError as error:
            raise DeviceError(f"no NVML ({error}); expected a working NVIDIA driver") from None
        if identity is None:
            get = self._library.nvmlDeviceGetHandleByIndex
            found = [self._told(get, index) for index in range(count)]
        else:
            found = [self._told(self._library.nvmlDeviceGetHandleByUUID, identity.encode())]
        self._handles = [handle for handle in found if handle is not None]
        if not self._handles:
            raise DeviceError("NVML finds no GPU")

    def sample(self) -> list[GpuSample]:
        """Returns the current state of every GPU."""
        return [self._one(index, handle) for index, handle in enumerate(self._handles)]

    def _one(self, index: int, handle: Any) -> GpuSample:
        busy = self._told(self._library.nvmlDeviceGetUtilizationRates, handle)
        memory = self._told(self._library.nvmlDeviceGetMemoryInfo, handle)
        power_mw = self._told(self._library.nvmlDeviceGetPowerUsage, handle)
        return GpuSample(
            index,
            None if busy is None else busy.gpu / 100.0,
            None if memory is None else memory.used,
            None if power_mw is None else power_mw / _MW_PER_W,
        )

    def close(self) -> None:
        """Shuts the library down."""
        self._library.nvmlShutdown()

    def _told(self, call: Callable[[Any], Any], what: Any) -> Any:
        """Returns the result of a call; None if the driver does not report it."""
        try:
            return call(what)
        except self._library.NVMLError:
            return None
