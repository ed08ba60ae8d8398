"""Correction for the varying speed of the machine, from small fixed works timed between repeats.

The speed of a virtual machine varies by tens of percent within seconds. Two measurements of a
network, minutes apart, then differ by more than a model's error. A campaign's times are therefore
corrected to its usual speed: seconds / product of (work's seconds / its usual seconds) ** exponent.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cdmpp.arrays import FloatArray

#: Matrix products in the L2 cache, a copy through the L3 cache, small operators in the L1 cache,
#: first touches of new pages.
WORKS = ("product", "copy", "additions", "pages")
#: Minimum number of samples measured twice for fitting the exponents.
FEWEST_PAIRS = 30
_PRODUCTS, _SIDE = 3, 192
_COPIED_VALUES = 1 << 20
_ADDITIONS, _ADDED_VALUES = 20, 1 << 15
_FRESH_BYTES, _PAGE_BYTES = 1 << 20, 4096


class SpeedProbe:
    """Times the works. A call takes about two milliseconds and evicts the L2 cache."""

    def __init__(self) -> None:
        import torch

        self._mm, self._add = torch.mm, torch.add
        self._matrix, self._product = torch.ones(_SIDE, _SIDE), torch.empty(_SIDE, _SIDE)
        self._from, self._to = torch.ones(_COPIED_VALUES), torch.empty(_COPIED_VALUES)
        self._terms, self._sums = torch.ones(_ADDED_VALUES), torch.empty(_ADDED_VALUES)
        self()  # excludes torch's initialisation from the first timing

    def __call__(self) -> tuple[float, ...]:
        """Returns the seconds of each of `WORKS`."""
        clock = [time.perf_counter()]
        for _ in range(_PRODUCTS):
            self._mm(self._matrix, self._matrix, out=self._product)
        clock.append(time.perf_counter())
        self._to.copy_(self._from)
        clock.append(time.perf_counter())
        for _ in range(_ADDITIONS):
            self._add(self._terms, 1.0, out=self._sums)
        clock.append(time.perf_counter())
        with mmap.mmap(-1, _FRESH_BYTES) as fresh:
            for place in range(0, _FRESH_BYTES, _PAGE_BYTES):
                fresh[place] = 1
        clock.append(time.perf_counter())
        return tuple(np.diff(clock).tolist())


@dataclass(frozen=True)
class SpeedCorrection:
    """Correction of a network's time for the speed of the machine.

    Attributes:
        usual_s: [works] median seconds of the works in the campaign.
        exponents: [works] a work that takes x times as long slows a network down by a factor of
            x ** exponent.
        pairs: number of samples measured twice from which the exponents were fitted.
    """

    usual_s: tuple[float, ...]
    exponents: tuple[float, ...]
    pairs: int

    def slowdown(self, works_s: Sequence[Sequence[float]]) -> FloatArray:
        """Returns float64 [repeats], factors by which the machine was slower than usual.

        Args:
            works_s: [repeats, works] seconds of the works before each repeat.
        """
        relative = np.log(np.asarray(works_s, np.float64) / self.usual_s)
        slowdown: FloatArray = np.exp(relative @ np.asarray(self.exponents))
        return slowdown

    def to_json(self) -> dict[str, Any]:
        """Returns the correction as JSON values."""
        return {
            "usual_s": dict(zip(WORKS, self.usual_s, strict=True)),
            "exponents": dict(zip(WORKS, self.exponents, strict=True)),
            "pairs": self.pairs,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> SpeedCorrection:
        """Returns the correction from the result of `to_json`."""
        return cls(
            usual_s=tuple(value["usual_s"][work] for work in WORKS),
            exponents=tuple(value["exponents"][work] for work in WORKS),
            pairs=value["pairs"],
        )


def fit_correction(
    samples: Sequence[Sequence[tuple[float, Sequence[float]]]],
) -> SpeedCorrection | None:
    """Returns the correction with which measurements of the same sample agree best (Huber loss).

    It uses only differences between measurements of one sample, so it needs no model of networks.
    None if fewer than `FEWEST_PAIRS` samples were measured twice.

    Args:
        samples: for each sample its measurements in different processes: (seconds of the network,
            seconds of each of `WORKS`).
    """
    from sklearn.linear_model import HuberRegressor

    several = [np.log([(time_s, *works) for time_s, works in s]) for s in samples if len(s) > 1]
    if len(several) < FEWEST_PAIRS:
        return None
    apart = np.concatenate([logs - logs.mean(axis=0) for logs in several])
    scale = apart[:, 1:].std(axis=0) + 1e-12
    model = HuberRegressor(fit_intercept=False, alpha=0.0, max_iter=1000)
    model.fit(apart[:, 1:] / scale, apart[:, 0])
    usual = np.exp(np.median(np.concatenate(several)[:, 1:], axis=0))
    return SpeedCorrection(
        usual_s=tuple(usual.tolist()),
        exponents=tuple((model.coef_ / scale).tolist()),
        pairs=len(several),
    )
