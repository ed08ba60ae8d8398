"""An 8 B transformer, and a stand-in for the kernel models whose times are easy to add up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cdmpp.analytic.gpu_kernels.calls import GpuCall
from cdmpp.comparison.transformer import parse_transformer
from cdmpp.devices.spec import DeviceSpec

EIGHT_B = "layers=32,width=4096,heads=32,kv_heads=8,ffn=14336,vocab=128256,dtype=bf16,name=8b"


def eight_b(**values: object) -> str:
    """Returns `EIGHT_B` with other values."""
    words = dict(word.split("=") for word in EIGHT_B.split(","))
    return ",".join(f"{name}={value}" for name, value in {**words, **values}.items())


SHAPE = parse_transformer(EIGHT_B)
MODEL = SHAPE.decoder
BLOCK = 4096 * 128 * (2 * 32 + 2 * 8) + 3 * 4096 * 14336  # elements of the matrices


@dataclass(frozen=True)
class Answer:
    """What the stand-in says of calls."""

    latency_s: NDArray[np.float64]
    low_s: NDArray[np.float64]
    high_s: NDArray[np.float64]
    is_seen_device: bool = True


class Millisecond:
    """Every kernel takes a millisecond, from 0.9 to 1.2."""

    def __init__(self) -> None:
        self.calls: list[GpuCall] = []
        self.asked: list[tuple[str | None, list[GpuCall]]] = []

    def times(
        self, calls: Sequence[GpuCall], device: DeviceSpec, *, software: str | None = None
    ) -> Answer:
        """Returns the times of calls."""
        self.calls = list(calls)
        self.asked.append((software, self.calls))
        ones = np.full(len(calls), 1e-3)
        return Answer(ones, 0.9 * ones, 1.2 * ones)
