"""90 % intervals of closed-form models, from the errors of their validation."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cdmpp.arrays import BoolArray, FloatArray, TextArray
from cdmpp.conformal import unseen_group_ends

#: (lower end, upper end) of a value; None = unknown.
Ends = tuple[float, float] | tuple[None, None]

#: Key of the errors on devices that a model was not fitted on.
UNSEEN = "unseen"

#: Share of held-out errors inside an interval.
COVERAGE = 0.9

#: Minimum number of errors for an interval: with fewer, an end would exceed the largest error.
LEAST_ERRORS = 19


@dataclass(frozen=True)
class LogErrors:
    """Interval that contains 90 % of log(measured / predicted) on rows held out of the fit.

    Attributes:
        low: lower end, at most 0, so that an interval contains its prediction.
        high: upper end, at least 0.
        count: number of held-out rows.
    """

    low: float
    high: float
    count: int

    @classmethod
    def of(cls, errors: FloatArray) -> LogErrors | None:
        """Returns the interval of errors (float64 [N]); None if N is below `LEAST_ERRORS`.

        Source: split conformal prediction (Vovk, Gammerman and Shafer 2005): of N exchangeable
        errors, the (N + 1) q-th bounds a new one with probability q.
        """
        count = len(errors)
        if count < LEAST_ERRORS:
            return None
        ordered = np.sort(errors)
        outside = max(1, math.floor((1.0 - COVERAGE) / 2 * (count + 1)))
        low, high = float(ordered[outside - 1]), float(ordered[count - outside])
        return cls(min(low, 0.0), max(high, 0.0), count)

    @classmethod
    def of_unseen_group(cls, groups: Sequence[FloatArray]) -> LogErrors | None:
        """Returns the interval for a group beside the given ones (float64 [rows] each), see
        `unseen_group_ends`; None if they have fewer than `LEAST_ERRORS` errors in all.
        """
        count = sum(map(len, groups))
        if count < LEAST_ERRORS:
            return None
        low, high = unseen_group_ends([np.stack([one, one], axis=1) for one in groups], COVERAGE)
        return cls(min(low, 0.0), max(high, 0.0), count)

    @classmethod
    def widest(cls, parts: Iterable[LogErrors | None]) -> LogErrors | None:
        """Returns the lowest and the highest end of several intervals; None if all are None."""
        known = [part for part in parts if part is not None]
        if not known:
            return None
        ends = min(part.low for part in known), max(part.high for part in known)
        return cls(*ends, sum(part.count for part in known))

    def ends(self, value: float) -> tuple[float, float]:
        """Returns (lower end, upper end) of a predicted value, in its unit."""
        return value * math.exp(self.low), value * math.exp(self.high)

    def holds(self, errors: FloatArray) -> BoolArray:
        """Returns bool [N], whether each error log(measured / predicted) is in the interval."""
        return np.asarray((self.low <= errors) & (errors <= self.high), np.bool_)

    def to_json(self) -> list[float | int]:
        """Returns a value for JSON, rounded to four decimals."""
        return [round(self.low, 4), round(self.high, 4), self.count]

    @classmethod
    def from_json(cls, value: Sequence[Any] | Mapping[str, Any]) -> LogErrors:
        """Reads a value of `to_json`, or a mapping of the fields."""
        if isinstance(value, Mapping):
            value = [value[name] for name in ("low", "high", "count")]
        low, high, count = value
        return cls(float(low), float(high), int(count))


def ends_of(errors: LogErrors | None, value: float) -> Ends:
    """Returns (lower end, upper end) of a value, in its unit; None = unknown."""
    return (None, None) if errors is None else errors.ends(value)


#: Device label or `UNSEEN` -> name of what was evaluated -> its errors.
DeviceErrors = dict[str, dict[str, LogErrors]]


def errors_on(errors: DeviceErrors, device: str) -> Mapping[str, LogErrors]:
    """Returns name -> errors on a device; empty if unknown."""
    return errors.get(device, errors.get(UNSEEN, {}))


class ErrorSamples:
    """Collects errors log(measured / predicted) by device and name."""

    def __init__(self) -> None:
        self._seen: _Samples = {}
        self._unseen: _Samples = {}

    def add(
        self, device: str, name: str, measured: FloatArray, predicted: FloatArray, *, is_seen: bool
    ) -> None:
        """Adds rows, float64 [R] both; rows without a prediction (inf) are left out.

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
        """Adds rows of several devices, with a device and a name each (text [R] both).

        Args:
            left_out: labels of the devices without a row in the fit.
        """
        for label, one in sorted({(str(d), str(n)) for d, n in zip(device, name, strict=True)}):
            rows = (device == label) & (name == one)
            is_seen = label not in left_out
            self.add(label, one, measured[rows], predicted[rows], is_seen=is_seen)

    def by_device(self) -> DeviceErrors:
        """Returns the errors of each device.

        A name with too few rows on a device of the fit gets the errors of all devices of the fit
        together. `UNSEEN` has the widest ends over the devices that were left out: each device errs
        in its own way, and few devices do not predict how the next one errs.
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
    """What an interval is based on.

    Attributes:
        source: what was measured, or why the error is unknown, as a clause.
        is_known: whether an interval exists.
    """

    source: str
    is_known: bool

    @property
    def sentence(self) -> str:
        """The line that a command prints below its times."""
        return f"{'interval from' if self.is_known else 'no interval'}: {self.source}"

    @classmethod
    def of_devices(cls, errors: DeviceErrors, device: str, what: str, held_out: str) -> Evidence:
        """Returns the source of the errors of `errors_on`, for a device that has errors.

        Args:
            what: what was evaluated.
            held_out: what was held out of the fit on the devices that the model was fitted on.
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
        """Explains why `errors_on` has no errors for a device.

        Args:
            errors: None if the model was fitted without validation.
            again: command that refits the model.
        """
        if errors is None:
            return cls(f"the model has no validation; refit it with: {again}", False)
        known = ", ".join(sorted(set(errors) - {UNSEEN, device}))
        if known and device not in errors:
            why = f"the model was fitted only on {known}; add rows of other GPUs, and {again}"
            return cls(f"{device} is an unseen device, and {why}", False)
        why = f"fewer than {LEAST_ERRORS} rows are held out of the fit"
        return cls(f"{why}; add rows, and {again}", False)
