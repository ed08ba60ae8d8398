"""Intervals of closed-form models: where 90 % of the errors of their validation lie."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cdmpp.arrays import BoolArray, FloatArray, TextArray

#: (lower end, upper end) of a value; None = unknown.
Ends = tuple[float, float] | tuple[None, None]

#: Name of the devices that a model was not fitted on.
UNSEEN = "unseen"

#: Share of held-out errors between the ends of an interval.
COVERAGE = 0.9

#: Fewer errors do not say where 90 % of new ones lie: an end would be beyond the largest of them.
LEAST_ERRORS = 19


@dataclass(frozen=True)
class LogErrors:
    """Where 90 % of log(measured / predicted) lie on rows that were held out of the fit.

    Attributes:
        low: lower end, at most 0, so that an interval holds its prediction.
        high: upper end, at least 0.
        count: rows that were judged.
    """

    low: float
    high: float
    count: int

    @classmethod
    def of(cls, errors: FloatArray) -> LogErrors | None:
        """Returns the ends of errors (float64 [N]); None with fewer than `LEAST_ERRORS`.

        Source: split conformal prediction (Vovk, Gammerman and Shafer 2005): of N exchangeable
        errors the (N + 1) q-th bounds a new one with chance q.
        """
        count = len(errors)
        if count < LEAST_ERRORS:
            return None
        ordered = np.sort(errors)
        outside = max(1, math.floor((1.0 - COVERAGE) / 2 * (count + 1)))
        low, high = float(ordered[outside - 1]), float(ordered[count - outside])
        return cls(min(low, 0.0), max(high, 0.0), count)

    @classmethod
    def widest(cls, parts: Iterable[LogErrors | None]) -> LogErrors | None:
        """Returns the lowest and the highest end of several; None where there are none."""
        known = [part for part in parts if part is not None]
        if not known:
            return None
        ends = min(part.low for part in known), max(part.high for part in known)
        return cls(*ends, sum(part.count for part in known))

    def ends(self, value: float) -> tuple[float, float]:
        """Returns (lower end, upper end) of a predicted value, in its unit."""
        return value * math.exp(self.low), value * math.exp(self.high)

    def holds(self, errors: FloatArray) -> BoolArray:
        """Returns bool [N], which errors log(measured / predicted) lie between the ends."""
        return np.asarray((self.low <= errors) & (errors <= self.high), np.bool_)

    def to_json(self) -> list[float | int]:
        """Returns a value for JSON."""
        return [round(self.low, 4), round(self.high, 4), self.count]

    @classmethod
    def from_json(cls, value: Sequence[Any] | Mapping[str, Any]) -> LogErrors:
        """Returns the errors of `to_json`, or of a mapping of the fields."""
        if isinstance(value, Mapping):
            value = [value[name] for name in ("low", "high", "count")]
        low, high, count = value
        return cls(float(low), float(high), int(count))


def ends_of(errors: LogErrors | None, value: float) -> Ends:
    """Returns (lower end, upper end) of a value, in its unit; None = unknown."""
    return (None, None) if errors is None else errors.ends(value)


#: Device label or `UNSEEN` -> what was judged -> its errors.
DeviceErrors = dict[str, dict[str, LogErrors]]


def errors_on(errors: DeviceErrors, device: str) -> Mapping[str, LogErrors]:
    """Returns what was judged -> errors on a device; empty = unknown."""
    return errors.get(device, errors.get(UNSEEN, {}))


class ErrorSamples:
    """Errors log(measured / predicted), collected by device and by what they are of."""

    def __init__(self) -> None:
        self._seen: _Samples = {}
        self._unseen: _Samples = {}

    def add(
        self, device: str, name: str, measured: FloatArray, predicted: FloatArray, *, is_seen: bool
    ) -> None:
        """Adds rows, float64 [R] both; those without a prediction (inf) are left out.

        Args:
            is_seen: whether other rows of the device were in the fit.
        """
        is_known = np.isfinite(predicted)
        errors = np.log(measured[is_known] / predicted[is_known])
        of_device = (self._seen if is_seen else self._unseen).setdefault(device, {})
        of_device.setdefault(name, []).append(errors)

    def add_rows(
        self,
        device: TextArray,
        name: TextArray,
        measured: FloatArray,
        predicted: FloatArray,
        *,
        left_out: Collection[str] = (),
    ) -> None:
        """Adds rows of several devices, each with a name (text [R] both).

        Args:
            left_out: labels of the devices that the fit had no row of.
        """
        for label, one in sorted({(str(d), str(n)) for d, n in zip(device, name, strict=True)}):
            rows = (device == label) & (name == one)
            is_seen = label not in left_out
            self.add(label, one, measured[rows], predicted[rows], is_seen=is_seen)

    def by_device(self) -> DeviceErrors:
        """Returns the errors of each device.

        What has too few rows on a device of the fit has the errors of all these devices together.
        `UNSEEN` has the widest ends of the devices that were left out: each errs in a way of its
        own, and few say how the next one will.
        """
        parts = (*self._seen.values(), *self._unseen.values())
        names = sorted({name for own in parts for name in own})
        everywhere = {name: _errors(self._seen.values(), name) for name in names}
        found = {
            label: {name: _errors([own], name) or everywhere[name] for name in names}
            for label, own in sorted(self._seen.items())
        }
        found[UNSEEN] = {
            name: LogErrors.widest([_errors([own], name) for own in self._unseen.values()])
            or _errors(self._unseen.values(), name)
            for name in names
        }
        kept = {
            label: {name: errors for name, errors in own.items() if errors is not None}
            for label, own in found.items()
        }
        return {label: own for label, own in kept.items() if own}


_Samples = dict[str, dict[str, list[FloatArray]]]


def _errors(devices: Iterable[dict[str, list[FloatArray]]], name: str) -> LogErrors | None:
    parts = [part for own in devices for part in own.get(name, [])]
    return LogErrors.of(np.concatenate(parts)) if parts else None


@dataclass(frozen=True)
class Evidence:
    """What an interval rests on.

    Attributes:
        source: what was measured, or why the error is unknown, as a clause.
        is_known: whether there is an interval.
    """

    source: str
    is_known: bool

    @property
    def sentence(self) -> str:
        """The line that a command prints below its times."""
        return f"{'interval from' if self.is_known else 'no interval'}: {self.source}"

    @classmethod
    def of_devices(cls, errors: DeviceErrors, device: str, what: str, held_out: str) -> Evidence:
        """Returns the evidence of `errors_on`, where a device has some.

        Args:
            what: was judged.
            held_out: of the fit, on the devices that it knows.
        """
        if device in errors:
            return cls(f"90 % of {what} on {device}, {held_out} held out of the fit", True)
        known = ", ".join(sorted(set(errors) - {UNSEEN}))
        return cls(
            f"90 % of {what} on {known}, each left out of a fit in turn (the widest); {device} "
            "is an unseen device",
            True,
        )

    @classmethod
    def missing(cls, errors: DeviceErrors | None, device: str, again: str) -> Evidence:
        """Returns why `errors_on` says nothing of a device.

        Args:
            errors: None = the model was fitted without validation.
            again: the command that fits it again.
        """
        if errors is None:
            return cls(f"the model has no validation; refit it with: {again}", False)
        known = ", ".join(sorted(set(errors) - {UNSEEN, device}))
        if known and device not in errors:
            why = f"the model was fitted only on {known}; add rows of other GPUs, and {again}"
            return cls(f"{device} is an unseen device, and {why}", False)
        why = f"fewer than {LEAST_ERRORS} rows are held out of the fit"
        return cls(f"{why}; add rows, and {again}", False)
