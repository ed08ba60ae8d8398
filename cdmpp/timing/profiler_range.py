"""Ranges that the vendor's profiler records and names; only a timer where there is no GPU."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from typing import Any, Protocol


class ProfilerApi(Protocol):
    """What a profiler offers to a program."""

    def start(self) -> None:
        """Starts recording."""

    def stop(self) -> None:
        """Stops recording."""

    def range(self, name: str) -> Any:
        """Returns a context manager that names what runs inside."""


class ProfilerSession:
    """Starts a profiler at the outermost range and stops it when that ends, from any thread."""

    def __init__(self, api: ProfilerApi | None) -> None:
        """Args:
        api: None = no profiler; every range is then free.
        """
        self._api = api
        self._depth = 0
        self._lock = threading.RLock()

    @contextmanager
    def range(self, name: str) -> Iterator[None]:
        """Records what runs inside under a name; stops also after an exception."""
        if self._api is None:
            yield
            return
        with self._lock:
            if self._depth == 0:
                self._api.start()
            self._depth += 1
        try:
            with self._api.range(name):
                yield
        finally:
            with self._lock:
                self._depth -= 1
                if self._depth == 0:
                    self._api.stop()


class TorchProfiler:
    """NVTX ranges, `record_function` and the start and stop calls of CUDA, as torch has them."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._has_cuda = bool(torch.cuda.is_available())

    def start(self) -> None:
        """Tells nsys, ncu and nvprof to record; nothing without CUDA."""
        if self._has_cuda:
            self._torch.cuda.profiler.start()

    def stop(self) -> None:
        """Tells them to stop, when the GPU has finished."""
        if self._has_cuda:
            self._torch.cuda.synchronize()
            self._torch.cuda.profiler.stop()

    @contextmanager
    def range(self, name: str) -> Iterator[None]:
        """Names what runs inside for torch's profiler, and for NVTX with CUDA."""
        with ExitStack() as stack:
            stack.enter_context(self._torch.profiler.record_function(name))
            if self._has_cuda:
                stack.enter_context(self._torch.cuda.nvtx.range(name))
            yield


def default_session() -> ProfilerSession:
    """Returns the session of this process: torch's profiler once torch is loaded, else none."""
    return _session("torch" in sys.modules)


@lru_cache(maxsize=2)
def _session(has_torch: bool) -> ProfilerSession:
    return ProfilerSession(TorchProfiler(sys.modules["torch"]) if has_torch else None)
