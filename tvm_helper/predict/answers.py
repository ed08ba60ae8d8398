"""What a prediction of a program consists of."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdmpp.calibration.ood import NearTask
from cdmpp.datasets.samples import Samples
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DataError, UsageError
from cdmpp.models.assemble import AskedProgram
from cdmpp.text import short_task
from cdmpp.training.estimates import Estimates, TrainedModel

if TYPE_CHECKING:  # it imports TVM, which records do without
    from tvm_helper.predict.explanation import Explanation


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
        is_floor: whether the latency is what the device needs at the least: the model says less.
        is_compiled: whether its machine code counts in.
        nearest: training tasks nearest to it, nearest first.
        explanation: what its time goes into.
        reason: why it cannot be predicted; None where it can.
        is_scheduled: whether the program has a schedule.
        measured_s: measured seconds; None where it was not measured on the device.
        elsewhere_s: measured seconds on another device that the answer counts in; None without.
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
    is_floor: bool = False
    is_compiled: bool = False
    nearest: tuple[NearTask, ...] = ()
    explanation: Explanation | None = None
    reason: str | None = None
    is_scheduled: bool = True
    measured_s: float | None = None
    elsewhere_s: float | None = None

    @property
    def out_of_distribution(self) -> bool | None:
        """Whether program or device is strange to the model; None where that is not known."""
        return True if self.is_new_device else self.is_far

    def to_json(self) -> dict[str, Any]:
        """Returns what `predict --json` and the server say of a program."""
        return {**self.record_json(), **self._own_json()}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Prediction:
        """Rebuilds what `to_json` described, without the explanation."""
        return cls(
            name=row["name"], operator=row["operator"], device=row["device"],
            program_id=row["program_id"], latency_s=row["latency_s"], low_s=row["low_s"],
            high_s=row["high_s"], mean_s=row["mean_s"], is_far=row["is_far"],
            is_new_device=row["is_new_device"], is_floor=row["is_floor"],
            is_compiled=row["is_compiled"],
            nearest=tuple(NearTask(**near) for near in row["nearest_tasks"]),
            reason=row["reason"], is_scheduled=row["is_scheduled"], measured_s=row["measured_s"],
        )  # fmt: skip

    def record_json(self) -> dict[str, Any]:
        """Returns the values that every `predict --json` has."""
        return {
            "program_id": self.program_id,
            "device": self.device,
            "latency_s": self.latency_s,
            "low_s": self.low_s,
            "high_s": self.high_s,
            "measured_s": self.measured_s,
            "out_of_distribution": self.out_of_distribution,
            "is_floor": self.is_floor,
            "is_compiled": self.is_compiled,
            "nearest_tasks": [
                {"task": near.task, "operator": near.operator, "distance": near.distance}
                for near in self.nearest
            ],
        }

    def of_record_json(self) -> dict[str, Any]:
        """Returns what `predict --json` says of a record: nothing of strangeness that is not
        known.
        """
        unknown = {"out_of_distribution": None, "nearest_tasks": None}
        return self.record_json() if self.is_far is not None else self.record_json() | unknown

    def _own_json(self) -> dict[str, Any]:
        found = self.explanation
        return {
            "name": self.name,
            "operator": self.operator,
            "mean_s": self.mean_s,
            "is_scheduled": self.is_scheduled,
            "is_far": self.is_far,
            "is_new_device": self.is_new_device,
            "reason": self.reason,
            "explanation": None
            if found is None or self.latency_s is None
            else {
                "buffer": found.dearest.buffer,
                "leaf": found.dearest.leaf,
                "leaves": len(found.leaves),
                "share": found.dearest.share,
                "shares_by": found.shares_by,
                "bound": found.dearest.bound,
                "roofline_s": found.roofline_s,
                "unknown_rates": list(found.assumed),
                "text": found.text(self.latency_s),
            },
        }


def misfit(device: DeviceSpec, *, is_gpu: bool) -> str | None:
    """Returns why a device cannot run a program, None where it can.

    Args:
        is_gpu: whether the program is a GPU kernel.
    """
    if is_gpu and device.kind != "gpu":
        return f"it has GPU threads, {device.name} is a {device.kind}"
    if not is_gpu and device.kind == "gpu":
        return f"it has no thread bindings, {device.name} is a GPU; schedule it for one"
    return None


def reads_no_code(trained: TrainedModel, names: Collection[str]) -> UsageError:
    """Returns what is said where a model reads the machine code of none of the asked devices."""
    can = sorted(label for reader in trained.readers for label in reader.targets)
    return UsageError(
        f"--machine-code: the model reads the machine code of {', '.join(can) or 'no device'}, not "
        f"of {', '.join(sorted(names))}; leave it out, or train one that does with "
        "`cdmpp train-code`"
    )


def estimated(asked: AskedProgram, found: Estimates, place: int = 0, *, name: str) -> Prediction:
    """Returns what a model says of the asked program at one place of its estimates."""
    return _with_estimate(
        Prediction(
            name=name, operator=asked.operator, device=asked.device.name,
            program_id=asked.program_id, measured_s=asked.measured_s,
            elsewhere_s=asked.elsewhere_s,
        ),
        found, place,
    )  # fmt: skip


def estimated_samples(samples: Samples, found: Estimates) -> list[Prediction]:
    """Returns what a model says of every sample, in their order."""
    programs = samples.programs
    answers = []
    for place, (program, device) in enumerate(zip(samples.program, samples.device, strict=True)):
        operator = str(programs.operator[program])
        task = str(programs.tasks[programs.task_id[program]])
        one = Prediction(
            name=short_task(task, operator), operator=operator,
            device=samples.devices[device].name, program_id=str(programs.program_id[program]),
            measured_s=_number(samples.latency_s[place]),
        )  # fmt: skip
        answers.append(_with_estimate(one, found, place))
    return answers


def _with_estimate(one: Prediction, found: Estimates, place: int) -> Prediction:
    """Returns the row with what was estimated; with a reason where that is no finite time."""
    ends = (each[place] for each in (found.latency_s, found.mean_s, found.low_s, found.high_s))
    if any(math.isinf(end) for end in ends) or not 0 < found.latency_s[place] < math.inf:
        return replace(one, reason="the model has no finite answer to these columns")
    return replace(
        one,
        latency_s=float(found.latency_s[place]),
        low_s=_number(found.low_s[place]),
        high_s=_number(found.high_s[place]),
        mean_s=float(found.mean_s[place]),
        is_far=None if found.is_far is None else bool(found.is_far[place]),
        is_new_device=bool(found.is_new_device[place]),
        is_floor=bool(found.is_floor[place]),
        is_compiled=found.is_compiled is not None and bool(found.is_compiled[place]),
        nearest=() if found.nearest is None else tuple(found.nearest[place]),
    )


def check_predicted(found: Sequence[Prediction], source: Path | str) -> None:
    """Checks that any of a file's programs can be predicted.

    Args:
        source: the file, or what it is instead, in words.

    Raises:
        DataError: none of them can.
    """
    if all(one.latency_s is None for one in found):
        reasons = sorted({f"{one.name} on {one.device}: {one.reason}" for one in found})
        raise DataError(
            f"no program of {source} can be predicted ({'; '.join(reasons)}); expected "
            "programs that the named devices can run"
        )


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
