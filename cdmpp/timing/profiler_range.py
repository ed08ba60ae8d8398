"""Named ranges for torch's profiler and, with CUDA, the vendor's profiler."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from typing import Any, Protocol


class ProfilerApi(Protocol):
    """Interface of a profiler."""

    def start(self) -> None:
        """Starts recording."""

    def stop(self) -> None:
        """Stops recording."""

    def range(self, name: str) -> Any:
        """Returns a context manager that names the work inside."""


class ProfilerSession:
    """Starts a profiler at the outermost range and stops it at its end; thread-safe."""

    def __init__(self, api: ProfilerApi | None) -> None:
        """Args:
        api: the profiler; None = ranges do nothing.
        """
        self._api = api
        self._depth = 0
        self._lock = threading.RLock()

    @contextmanager
    def range(self, name: str) -> Iterator[None]:
        """Profiles the work inside under a name; an exception ends the range too."""
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
    """Torch's `record_function`, NVTX ranges and CUDA profiler start and stop calls."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._has_cuda = bool(torch.cuda.is_available())

    def start(self) -> None:
        """Starts recording in nsys, ncu and nvprof; does nothing without CUDA."""
        if self._has_cuda:
            self._torch.cuda.profiler.start()

    def stop(self) -> None:
        """Waits for the GPU and stops recording; does nothing without CUDA."""
        if self._has_cuda:
            self._torch.cuda.synchronize()
            self._torch.cuda.profiler.stop()

    @contextmanager
    def range(self, name: str) -> Iterator[None]:
        """Names the work inside for torch's profiler and, with CUDA, for NVTX."""
        with ExitStack() as stack:
            stack.enter_context(self._torch.profiler.record_function(name))
            if self._has_cuda:
                stack.enter_context(self._torch.cuda.nvtx.range(name))
            yield


def default_session() -> ProfilerSession:
    """Returns the session of this process, with torch's profiler if torch is loaded."""
    return _session("torch" in sys.modules)


@lru_cache(maxsize=2)
def _session(has_torch: bool) -> ProfilerSession:
    return ProfilerSession(TorchProfiler(sys.modules["torch"]) if has_torch else None)
