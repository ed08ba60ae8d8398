"""Timers of kernels: CUDA graphs and events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import numpy as np

#: `graph`: replays of a CUDA graph of several calls, without the host, as in the tables of serving
#: kernels; operands do not change, so those that fit are in the L2. `call`: one call between two
#: events, which waits for the host, as in the tables of fp32 operators.
TimingMode = Literal["graph", "call"]
Run = Callable[[], Any]


class Timer(Protocol):
    """Times functions that launch one kernel."""

    def times_s(self, run: Run, repeats: int, *, calls: int, mode: TimingMode) -> list[float]:
        """Returns `repeats` times of one call in seconds.

        Args:
            calls: calls per repeat, in sequence; the time of a repeat is divided by them.
        """


class CudaTimer:
    """Times torch kernels on the current CUDA device.

    Args:
        torch: the module.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def times_s(self, run: Run, repeats: int, *, calls: int, mode: TimingMode) -> list[float]:
        """Measures with CUDA events; see `Timer`."""
        cuda = self._torch.cuda
        for _ in range(3):
            run()
        cuda.synchronize()
        if mode == "call":
            return [self._between_events(run) for _ in range(repeats)]
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            for _ in range(calls):
                run()
        graph.replay()
        return [self._between_events(graph.replay) / calls for _ in range(repeats)]

    def _between_events(self, run: Run) -> float:
        cuda = self._torch.cuda
        begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
        cuda.synchronize()
        begin.record()
        run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e-3


def median_and_noise(times_s: Sequence[float]) -> tuple[float, float]:
    """Returns the median, and half the interquartile range over the median.

    Raises:
        ValueError: no times, or the median is not positive.
    """
    if not times_s:
        raise ValueError("no times; expected at least one")
    low, median, high = (float(one) for one in np.quantile(times_s, [0.25, 0.5, 0.75]))
    if not 0.0 < median < float("inf"):
        raise ValueError(f"the median time is {median!r} s, expected a positive one")
    return median, 0.5 * (high - low) / median
