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
        value: None where the model does not predict it.
        low: lower end, None without an interval; so is `high`.
    """

    value: float | None
    low: float | None
    high: float | None

    def at_least(self, floor: float) -> Estimate:
        """Returns the estimate with nothing below a number."""
        return self.not_below(Estimate(floor, floor, floor))

    def not_below(self, other: Estimate) -> Estimate:
        """Returns the estimate with no end below another's."""
        pairs = zip(
            (self.value, self.low, self.high), (other.value, other.low, other.high), strict=True
        )
        return Estimate(*(x if x is None or y is None else max(x, y) for x, y in pairs))


UNKNOWN = Estimate(None, None, None)


@dataclass(frozen=True)
class TorchPrediction:
    """Time, memory and utilisation of a network at one batch, on one device, in one mode.

    Attributes:
        name: of the network.
        batch: samples of an iteration.
        device: label.
        mode: `infer`, or `train` (forward, backward and update).
        time_s: seconds of an iteration.
        memory_bytes: peak above the empty process.
        utilisation: share of the threads' time, 0 to 1.
        memory_limit_bytes: available memory; None = unknown.
        fits: whether the peak stays below the limit (nine tenths of a device's memory); None = not
            sure, or no limit is known.
        reasons: why this is a low-confidence prediction; empty = it is not.
        method: the model that predicted the time.
        parts: seconds by kinds of operators, where the method adds them up.
        execution: element types, memory format, and whether it is compiled.
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
        """Whether this is a guess."""
        return bool(self.reasons)

    def to_json(self) -> dict[str, Any]:
        """Returns one flat JSON object."""
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
