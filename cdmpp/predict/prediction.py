"""One prediction of a program, record or network on a device."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.calibration.ood import NearTask
from cdmpp.datasets.samples import Samples
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DataError, UsageError
from cdmpp.models.assemble import AskedProgram
from cdmpp.predict.cpu_rules import ONE_THREAD, SAME_SET
from cdmpp.predict.estimates import Estimates, TrainedModel
from cdmpp.predict.explained import ExplainedAnswer
from cdmpp.predict.explanation import Explanation
from cdmpp.predict.gpu_schedules import BY_SCHEDULE
from cdmpp.text import interval_text, short_task

#: Begins the note of a program that was not compiled; the reason follows.
NO_CODE = "predicted without machine code: "


@dataclass(frozen=True)
class Prediction:
    """Prediction of a program, record or network on a device.

    Attributes:
        name: name of the program, the task or the network.
        device: label of the device.
        latency_s: predicted seconds (of one iteration for a network); None if it cannot be
            predicted, see `reasons`.
        low_s, high_s: ends of the 90 % interval; None without one.
        measured_s: measured seconds; None if not measured on the device.
        reasons: why the prediction has low confidence, or why there is no latency.
        way: execution mode of a network: `tvm-untuned`, `tvm-tuned` or `torch-eager`; else None.
        mode: whether a network runs inference (`infer`) or training (`train`); else None.
        batch: batch size of a network; None = that of its file.
        operator: operator of a program, such as `conv2d+add`; empty if unknown.
        program_id: sha256 id of a program; None without one.
        mean_s: mean of the predicted distribution, for sums over programs; None without latency and
            for networks.
        is_far: whether the program is out of distribution; None if unknown.
        is_new_device: whether the device was not trained on.
        is_floor: whether the latency was raised to the lower bound of the device.
        is_compiled: whether machine code was used.
        by_schedule: whether lower bound and schedule were used instead of the model; see `note`.
        nearest: nearest training tasks, nearest first.
        explanation: breakdown of the time.
        is_scheduled: whether the program has a schedule.
        erf_s: seconds by which a CPU program may take longer with other data, by its `erf`.
        note: rules that apply, or how the program was read or scheduled; empty without.
        elsewhere_s: measured seconds on another device that corrected the prediction; None without.
        is_record: whether it is a program of a record or sample, with a shorter JSON row.
        code: float32 [columns], the machine code of a compiled program of a file; else None.
    """

    name: str
    device: str
    latency_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    measured_s: float | None = None
    reasons: tuple[str, ...] = ()
    way: str | None = None
    mode: str | None = None
    batch: int | None = None
    operator: str = ""
    program_id: str | None = None
    mean_s: float | None = None
    is_far: bool | None = None
    is_new_device: bool = False
    is_floor: bool = False
    is_compiled: bool = False
    by_schedule: bool = False
    nearest: tuple[NearTask, ...] = ()
    explanation: Explanation | None = None
    is_scheduled: bool = True
    erf_s: float = 0.0
    note: str = ""
    elsewhere_s: float | None = None
    is_record: bool = False
    code: NDArray[np.float32] | None = field(default=None, repr=False, compare=False)
    _explain: Callable[[bool | None], ExplainedAnswer] | None = field(
        default=None, repr=False, compare=False
    )

    @property
    def out_of_distribution(self) -> bool | None:
        """Whether program or device is out of distribution; None if unknown."""
        return True if self.is_new_device else self.is_far

    @property
    def reason(self) -> str | None:
        """The first reason; None without one."""
        return self.reasons[0] if self.reasons else None

    @property
    def detail(self) -> Prediction:
        """All values: the prediction itself."""
        return self

    def explain(self, *, machine_code: bool | None = None) -> ExplainedAnswer:
        """Explains the prediction, as `cdmpp explain` does.

        Args:
            machine_code: whether to compile the program and describe its machine code; None = as
                for the prediction, so that the explained latency is the predicted one.

        Raises:
            UsageError: it is a record or a sample, which has no text, or a network run by torch.
        """
        if self._explain is None:
            raise UsageError(
                f"{self.name} cannot be explained, because it has no text; expected a tensor "
                "program, or a network compiled by TVM"
            )
        return self._explain(machine_code)

    def __str__(self) -> str:
        latency = interval_text(self.latency_s, self.low_s, self.high_s)
        return f"{self.name} on {self.device}: {latency}"

    def to_json(self) -> dict[str, Any]:
        """Returns the row of `cdmpp predict --json` and of the server."""
        row = {
            "program_id": self.program_id,
            "device": self.device,
            "latency_s": self.latency_s,
            "low_s": self.low_s,
            "high_s": self.high_s,
            "measured_s": self.measured_s,
            "out_of_distribution": self.out_of_distribution,
            "is_floor": self.is_floor,
            "is_compiled": self.is_compiled,
            "nearest_tasks": [asdict(near) for near in self.nearest],
        }
        if self.is_record:
            unknown = {"out_of_distribution": None, "nearest_tasks": None}
            return row if self.is_far is not None else row | unknown
        found = self.explanation
        return row | {
            "name": self.name,
            "operator": self.operator,
            "mean_s": self.mean_s,
            "is_scheduled": self.is_scheduled,
            "is_far": self.is_far,
            "is_new_device": self.is_new_device,
            "reason": self.reason,
            "note": self.note or None,
            "explanation": None
            if found is None or self.latency_s is None
            else found.to_json(self.latency_s),
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any], *, is_record: bool = False) -> Prediction:
        """Rebuilds a program's prediction from its `to_json`, without the explanation.

        Args:
            is_record: see `Prediction`.
        """
        own = {one.name for one in fields(cls)} - {"explanation"}
        given = {**row, "note": row.get("note") or ""}
        return cls(
            **{name: value for name, value in given.items() if name in own},
            nearest=tuple(NearTask(**near) for near in row["nearest_tasks"]),
            reasons=() if row["reason"] is None else (row["reason"],), is_record=is_record,
        )  # fmt: skip


def misfit(device: DeviceSpec, *, is_gpu: bool) -> str | None:
    """Returns why a device cannot run a program; None if it can.

    Args:
        is_gpu: whether the program is a GPU kernel.
    """
    if is_gpu and device.kind != "gpu":
        return f"it has GPU threads, {device.name} is a {device.kind}"
    if not is_gpu and device.kind == "gpu":
        return f"it has no thread bindings, {device.name} is a GPU; schedule it for one"
    return None


def reads_no_code(trained: TrainedModel, names: Collection[str]) -> UsageError:
    """Returns the error for devices whose machine code the model cannot read."""
    can = sorted(label for reader in trained.readers for label in reader.targets)
    return UsageError(
        f"--machine-code: the model reads the machine code of {', '.join(can) or 'no device'}, "
        f"not of {', '.join(sorted(names))}. Leave the option out, or extend the model with "
        "`cdmpp train-code`"
    )


def estimated(
    asked: AskedProgram,
    found: Estimates,
    place: int = 0,
    *,
    name: str | None = None,
    is_record: bool = False,
) -> Prediction:
    """Returns the prediction of a program from one entry of a model's estimates.

    Args:
        place: index of the entry.
        name: name of the program; None = derived from its task.
        is_record: see `Prediction`.
    """
    one = Prediction(
        short_task(asked.task, asked.operator) if name is None else name, asked.device.name,
        measured_s=asked.measured_s, operator=asked.operator, program_id=asked.program_id,
        elsewhere_s=asked.elsewhere_s, is_record=is_record, reasons=asked.doubts,
    )  # fmt: skip
    return _with_estimate(one, found, place)


def estimated_samples(samples: Samples, found: Estimates) -> list[Prediction]:
    """Returns the predictions of samples, in their order."""
    programs = samples.programs
    answers = []
    for place, (program, device) in enumerate(zip(samples.program, samples.device, strict=True)):
        operator = str(programs.operator[program])
        task = str(programs.tasks[programs.task_id[program]])
        one = Prediction(
            short_task(task, operator), samples.devices[device].name, operator=operator,
            program_id=str(programs.program_id[program]),
            measured_s=_number(samples.latency_s[place]), is_record=True,
        )  # fmt: skip
        answers.append(_with_estimate(one, found, place))
    return answers


def _with_estimate(one: Prediction, found: Estimates, place: int) -> Prediction:
    """Returns the prediction with its estimate, or with a reason if that is not finite."""
    ends = (each[place] for each in (found.latency_s, found.mean_s, found.low_s, found.high_s))
    if any(math.isinf(end) for end in ends) or not 0 < found.latency_s[place] < math.inf:
        return replace(one, reasons=("the model's prediction for these columns is not finite",))
    rules = {
        BY_SCHEDULE: found.by_schedule, ONE_THREAD: found.on_one_thread, SAME_SET: found.shares_set
    }  # fmt: skip
    said = [text for text, holds in rules.items() if holds is not None and holds[place]]
    return replace(
        one,
        by_schedule=BY_SCHEDULE in said,
        note="; ".join(filter(None, (one.note, *said))),
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
    """Checks that at least one program of a file has a latency.

    Args:
        source: the file, or a description of the source.

    Raises:
        DataError: no program has a latency.
    """
    if all(one.latency_s is None for one in found):
        reasons = sorted({f"{one.name} on {one.device}: {one.reason}" for one in found})
        raise DataError(
            f"no program of {source} can be predicted ({'; '.join(reasons)}); expected "
            "programs that the named devices can run"
        )


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
