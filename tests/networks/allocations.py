"""What torch allocates, as its profiler counts it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch


def peak_allocated(run: Callable[[], Any]) -> int:
    """Returns the peak of what torch allocates while `run` runs, above what was there."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
        ) as profile:
            run()
    total = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            total += event.nbytes()
            peak = max(peak, total)
    return peak
