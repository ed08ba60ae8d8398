"""What a prediction of programs and networks consists of."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdmpp.models.assemble import AskedProgram
from cdmpp.training.estimates import Estimates
from cdmpp.training.uncertainty.strangers import NearTask

if TYPE_CHECKING:  # these import TVM, which records do without
    from tvm_helper.predict.explanation import Explanation
    from tvm_helper.programs.network_tasks import NetworkTask


@dataclass(frozen=True)
class Prediction:
    """A program on a device.

    Attributes:
        name: of the program or task.
        operator: such as `conv2d+add`; empty where it cannot be told.
        device: label.
        program_id: its sha256 id; None where there is no program.
        latency_s: predicted seconds; None where it cannot be predicted, see `reason`.
        low_s: lower end of the interval; None without calibration or latency.
        high_s: upper end.
        mean_s: what a sum over programs adds up: the mean of what the program may take; None as
            latency_s.
        is_far: whether the program is unlike every training task; None where that is not known.
        is_new_device: whether the device was not trained on.
        nearest: training tasks nearest to it, nearest first.
        explanation: what its roofline time goes into.
        reason: why it cannot be predicted; None where it can.
        is_scheduled: whether the program has a schedule.
        measured_s: measured seconds; None where it was not measured on the device.
    """

    name: str
    operator: str
    device: str
    program_id: str | None = None
    latency_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    mean_s: float | None = None
    is_far: bool | None = None
    is_new_device: bool = False
    nearest: tuple[NearTask, ...] = ()
    explanation: Explanation | None = None
    reason: str | None = None
    is_scheduled: bool = True
    measured_s: float | None = None

    @property
    def out_of_distribution(self) -> bool | None:
        """Whether program or device is strange to the model; None where that is not known."""
        return True if self.is_new_device else self.is_far


def estimated(asked: AskedProgram, found: Estimates, place: int = 0, *, name: str) -> Prediction:
    """Returns what a model says of the asked program at one place of its estimates."""
    return Prediction(
        name=name,
        operator=asked.operator,
        device=asked.device.name,
        program_id=asked.program_id,
        latency_s=float(found.latency_s[place]),
        low_s=_number(found.low_s[place]),
        high_s=_number(found.high_s[place]),
        mean_s=float(found.mean_s[place]),
        is_far=None if found.is_far is None else bool(found.is_far[place]),
        is_new_device=bool(found.is_new_device[place]),
        nearest=() if found.nearest is None else tuple(found.nearest[place]),
        measured_s=asked.measured_s,
    )


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


@dataclass(frozen=True)
class Total:
    """A network on a device: the sum over its tasks of weight x mean latency.

    Attributes:
        device: label.
        latency_s: seconds of what could be predicted; None when nothing could.
        low_s: sum of the lower ends, as if all tasks erred alike; None without calibration.
        high_s: sum of the upper ends.
        missing: names of what is not in the sum.
    """

    device: str
    latency_s: float | None
    low_s: float | None
    high_s: float | None
    missing: tuple[str, ...]


@dataclass(frozen=True)
class NetworkPrediction:
    """A network on some devices.

    Attributes:
        schedule: which programs were predicted, in words.
        tasks: (task, one prediction a device), most calls first.
        unknown: name -> calls of operators that did not become tensor programs.
        devices: labels.
    """

    schedule: str
    tasks: tuple[tuple[NetworkTask, tuple[Prediction, ...]], ...]
    unknown: dict[str, int]
    devices: tuple[str, ...]

    def totals(self) -> tuple[Total, ...]:
        """Returns one total a device."""
        return tuple(self._total(place, device) for place, device in enumerate(self.devices))

    def _total(self, place: int, device: str) -> Total:
        found = [
            (task.weight, predictions[place])
            for task, predictions in self.tasks
            if predictions[place].latency_s is not None
        ]
        missing = [
            predictions[place].name
            for _, predictions in self.tasks
            if predictions[place].latency_s is None
        ]
        latency_s = sum(weight * (one.mean_s or 0.0) for weight, one in found)
        has_interval = all(one.low_s is not None for _, one in found)
        low_s = sum(weight * (one.low_s or 0.0) for weight, one in found)
        high_s = sum(weight * (one.high_s or 0.0) for weight, one in found)
        return Total(
            device=device,
            latency_s=latency_s if found else None,
            low_s=low_s if found and has_interval else None,
            high_s=high_s if found and has_interval else None,
            missing=(*missing, *sorted(self.unknown)),
        )
