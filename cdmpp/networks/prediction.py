"""Predictions of a torch network on a device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cdmpp.networks.graph.execution import Execution, Mode


@dataclass(frozen=True)
class Estimate:
    """A predicted number with its interval.

    Attributes:
        value: the prediction; None if there is none.
        low, high: ends of the interval; None without an interval.
    """

    value: float | None
    low: float | None
    high: float | None

    def at_least(self, floor: float) -> Estimate:
        """Returns the estimate with value and ends raised to at least `floor`."""
        return self.not_below(Estimate(floor, floor, floor))

    def not_below(self, other: Estimate) -> Estimate:
        """Returns the estimate with value and ends raised to at least those of `other`."""
        pairs = zip(
            (self.value, self.low, self.high), (other.value, other.low, other.high), strict=True
        )
        return Estimate(*(x if x is None or y is None else max(x, y) for x, y in pairs))


UNKNOWN = Estimate(None, None, None)


@dataclass(frozen=True)
class TorchPrediction:
    """Time, memory and utilisation of a network at one batch size, on one device, in one mode.

    Attributes:
        name: name of the network.
        batch: batch size.
        device: device label.
        mode: `infer`, or `train` (forward, backward and update).
        time_s: seconds per iteration.
        memory_bytes: peak memory above that of the empty process.
        utilisation: share of the threads' time, 0 to 1.
        memory_limit_bytes: available memory; None = unknown.
        fits: whether the peak is below the limit (nine tenths of a device's memory); None if this
            is uncertain or the limit is unknown.
        reasons: why the prediction is out of distribution; empty if it is not.
        method: method that predicted the time.
        parts: kind of operator -> seconds; empty if the method is no sum of operators.
        execution: element types, memory format and whether the network is compiled.
    """

    name: str
    batch: int
    device: str
    mode: Mode
    time_s: Estimate
    memory_bytes: Estimate
    utilisation: Estimate
    memory_limit_bytes: float | None
    fits: bool | None
    reasons: tuple[str, ...]
    method: str
    parts: Mapping[str, float] = field(default_factory=dict)
    execution: Execution = field(default_factory=Execution)

    @property
    def out_of_distribution(self) -> bool:
        """Whether there are `reasons`."""
        return bool(self.reasons)

    def to_json(self) -> dict[str, Any]:
        """Returns a flat JSON object."""
        values: dict[str, Any] = {
            "network": self.name,
            "batch": self.batch,
            "device": self.device,
            "mode": self.mode,
            "dtype": self.execution.dtype,
            "layout": self.execution.layout,
            "compiled": self.execution.compiled,
        }
        parts = (
            ("time", "s", self.time_s),
            ("memory", "bytes", self.memory_bytes),
            ("utilisation", "", self.utilisation),
        )
        for name, unit, found in parts:
            end = f"_{unit}" if unit else ""
            values |= {
                f"{name}{end}": found.value,
                f"{name}_low{end}": found.low,
                f"{name}_high{end}": found.high,
            }
        return values | {
            "memory_limit_bytes": self.memory_limit_bytes,
            "fits": self.fits,
            "out_of_distribution": self.out_of_distribution,
            "reasons": list(self.reasons),
        }
