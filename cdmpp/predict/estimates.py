"""Predictions of a trained model: latency, 90 % interval and an out-of-distribution flag."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from cdmpp.analytic.roofline.floor import sample_floor_s
from cdmpp.arrays import BoolArray, FloatArray
from cdmpp.calibration.ood import NearTask, TrainingTasks
from cdmpp.datasets.samples import Samples
from cdmpp.devices.registry import as_described_now
from cdmpp.devices.spec import DeviceSpec, family
from cdmpp.models.base import CostModel
from cdmpp.models.parts.checks import check_schema
from cdmpp.predict.cpu_rules import SAME_SET_FACTOR, on_one_thread, shares_set
from cdmpp.predict.distilled import DistilledModel
from cdmpp.predict.gpu_schedules import schedule_estimates
from cdmpp.predict.machine_code.model import CodeModel
from cdmpp.predict.saved_model import ModelCard, load_model

STRANGE_FACTOR = 2.0
#: Of a device whose family the model knows, over what the worst device of that family needs: the
#: least multiple of a quarter that held 90 % on each of them (`docs/results/devices.md`).
NEW_DEVICE_FACTOR = 1.75


@dataclass(frozen=True)
class Estimates:
    """Predictions of N samples. None is below the lower bound of its program on its device.

    Attributes:
        latency_s: float64 [N], seconds.
        mean_s: float64 [N], what a sum over programs adds up (`LatencyCalibration.mean_ratio`);
            latency_s where the model has no calibration.
        low_s: float64 [N], lower end of the interval; NaN where the model has no calibration.
        high_s: float64 [N], upper end.
        is_far: bool [N], whether the program is unlike every training task, or does work that the
            model cannot see; None where the model does not know its training tasks.
        is_new_device: bool [N], whether the device was not trained on.
        is_floor: bool [N], whether latency_s is the lower bound, because the model predicts less.
        nearest: for each sample the nearest training tasks, nearest first; None as `is_far`.
        is_compiled: bool [N], whether machine code was used; None where it was for none.
        by_schedule: bool [N], whether lower bound and schedule answer in the model's place
            (`cdmpp.predict.gpu_schedules`); None where they do for none.
        on_one_thread, shares_set: bool [N], which rules of `cdmpp.predict.cpu_rules` were applied;
            None = none.
    """

    latency_s: FloatArray
    mean_s: FloatArray
    low_s: FloatArray
    high_s: FloatArray
    is_far: BoolArray | None
    is_new_device: BoolArray
    is_floor: BoolArray
    nearest: list[list[NearTask]] | None
    is_compiled: BoolArray | None = None
    by_schedule: BoolArray | None = None
    on_one_thread: BoolArray | None = None
    shares_set: BoolArray | None = None

    @property
    def out_of_distribution(self) -> BoolArray | None:
        """bool [N], whether program or device is strange to the model; None as `is_far`."""
        return None if self.is_far is None else self.is_far | self.is_new_device

    def take(self, index: BoolArray) -> Estimates:
        """Returns those of the chosen samples."""
        chosen: dict[str, Any] = {
            one.name: values[index] if isinstance(values := getattr(self, one.name), np.ndarray)
            else values
            for one in fields(self)
        }  # fmt: skip
        if self.nearest is not None:
            chosen["nearest"] = [self.nearest[row] for row in np.flatnonzero(index)]
        return Estimates(**chosen)


class Correction(Protocol):
    """A step that makes estimates better by something else that is known of the programs.

    Attributes:
        reads_model: whether it was fitted to what the model itself predicts.
    """

    reads_model: ClassVar[bool]

    def apply(self, trained: TrainedModel, samples: Samples, found: Estimates) -> Estimates:
        """Returns better estimates.

        Args:
            trained: the model that they are of.
            samples: N programs.
            found: what is estimated of them so far.

        Raises:
            UsageError: the model or the devices do not allow it.
        """
        ...


@dataclass(frozen=True)
class TrainedModel:
    """A trained model with all that is known of it.

    Attributes:
        model: the model.
        card: its card, with the intervals.
        tasks: where its training tasks lie; None for a run folder without them.
        code: what answers with it where the machine code of programs of CPUs is known; None
            without it, and where nobody asked for it.
        gpu_code: likewise of GPUs.
        distilled: the small network that scores candidates of searches for it; None without one.
    """

    model: CostModel
    card: ModelCard
    tasks: TrainingTasks | None
    code: CodeModel | None = None
    gpu_code: CodeModel | None = None
    distilled: DistilledModel | None = None

    @property
    def readers(self) -> list[CodeModel]:
        """What reads machine code."""
        return [one for one in (self.code, self.gpu_code) if one is not None]

    def scorer(self, kind: str) -> CostModel | DistilledModel:
        """Returns what scores candidates of searches on devices of a kind: the distilled network
        where it learned from such, else the model.
        """
        network = self.distilled
        return self.model if network is None or kind not in network.kinds else network

    def estimate(
        self,
        samples: Samples,
        corrections: Sequence[Correction] = (),
        *,
        latency_s: FloatArray | None = None,
        disagreement: FloatArray | None = None,
    ) -> Estimates:
        """Returns latencies, intervals and flags.

        A device of the model's kind that it was not trained on has the intervals that were measured
        on devices left out, where any were. Else no calibration task speaks for what is strange to
        the model, and the half widths of the devices that are like its own are a rule of thumb
        (`docs/explanation/intervals.md`): on another device of their kind and family
        `NEW_DEVICE_FACTOR` times what the worst of them needs, for a program unlike all training
        tasks `STRANGE_FACTOR` times that of their widest group, and on a device that is like none
        `STRANGE_FACTOR` times the widest of all. Where kinds of operators were left out of
        trainings, a strange program on a known device has what those asked for
        (`LatencyCalibration.strange_factor`). On GPUs the lower bound and the schedule answer for
        what is strange (`cdmpp.predict.gpu_schedules`), unless a model cannot see all of the
        program's work. `cdmpp.predict.cpu_rules` has what holds for some programs on CPUs.

        Args:
            corrections: steps that the estimates go through, in their order.
            latency_s, disagreement: float64 [N], what `predict_with_disagreement` returns, if it is
                known already.

        Raises:
            UsageError: a correction does not fit the model or the devices.
            DataError: other leaf features than the model's.
        """
        asked = check_schema(self.card.feature_schema, samples)
        samples = on_one_thread(asked, self.card)
        if latency_s is None:
            told = self.card.as_told(samples)
            latency_s, disagreement = self.model.predict_with_disagreement(told)
        floor_s = self.floor_s(samples)
        is_floor = latency_s < floor_s
        predicted_s = np.maximum(latency_s, floor_s)
        trained = {spec.name for spec in self.card.devices}
        is_new = np.array([spec.name not in trained for spec in samples.devices], bool)
        is_new_device = is_new[samples.device]
        familiarity = self.tasks.familiarity(samples) if self.tasks else None
        is_far = familiarity.is_far if familiarity else None
        doubtful = samples.programs.is_doubtful
        if doubtful is not None and doubtful.any():
            unseen = doubtful[samples.program]
            is_far = unseen if is_far is None else is_far | unseen
        half_width, mean_s = self._widths(samples, predicted_s, disagreement, is_new, is_far)
        found = Estimates(
            **interval_s(predicted_s, mean_s, half_width, floor_s),
            is_far=is_far,
            is_new_device=is_new_device,
            is_floor=is_floor,
            nearest=familiarity.nearest if familiarity else None,
        )
        if not any(step.reads_model for step in corrections):
            is_seen = True if doubtful is None else ~doubtful[samples.program]
            found = _by_schedule(samples, found, floor_s, is_seen)
        for step in corrections:
            found = step.apply(self, samples, found)
        is_slow = shares_set(samples)
        return replace(
            found, on_one_thread=samples.device != asked.device, shares_set=is_slow,
            high_s=np.where(is_slow, SAME_SET_FACTOR, 1.0) * found.high_s,
        )  # fmt: skip

    def predict(self, samples: Samples) -> FloatArray:
        """Returns float64 [N], seconds that the model says, without bounds and intervals."""
        return self.model.predict(self._told(samples))

    def predict_with_disagreement(self, samples: Samples) -> tuple[FloatArray, FloatArray | None]:
        """Returns the same and how far the model's parts disagree (`CostModel`)."""
        return self.model.predict_with_disagreement(self._told(samples))

    def _told(self, samples: Samples) -> Samples:
        return self.card.as_told(on_one_thread(samples, self.card))

    def devices_like(self, device: DeviceSpec) -> list[str]:
        """Returns the calibrated devices of the kind and family of another one; none where its
        family is not known.
        """
        known = self.card.calibration.by_device if self.card.calibration else {}
        own = (device.kind, family(device))
        return [
            spec.name
            for spec in self.card.devices
            if spec.name in known and own[1] is not None and (spec.kind, family(spec)) == own
        ]

    def _widths(
        self,
        samples: Samples,
        predicted_s: FloatArray,
        disagreement: FloatArray | None,
        is_new: BoolArray,
        is_far: BoolArray | None,
    ) -> tuple[FloatArray, FloatArray]:
        """Returns the half widths of intervals, in log seconds, NaN without calibration, and the
        mean seconds to be expected.

        Args:
            disagreement: float64 [N], of the model's parts; None for a model of one part.
            is_new: bool [D], whether the model was not trained on a device.
            is_far: bool [N], see `Estimates`.
        """
        half_width, mean_s = np.full(len(samples), np.nan), predicted_s.copy()
        kinds = {spec.kind for spec in self.card.devices}
        for index in np.unique(samples.device).tolist():
            spec = samples.devices[index]
            rows = np.flatnonzero(samples.device == index)
            own, is_left_out = samples.take(rows), False
            calibration = self.card.calibration
            if is_new[index] and self.card.of_new_devices is not None and spec.kind in kinds:
                calibration, is_left_out = self.card.of_new_devices, True
            if calibration is None:
                continue
            alike = [] if is_left_out else self.devices_like(spec)
            worst = calibration.of_the_worst_device(alike) if alike else calibration
            widest = np.full(len(rows), STRANGE_FACTOR * worst.widest)
            if is_left_out or not is_new[index]:
                near = calibration.half_width(own)
                if calibration.strange_factor is not None and not is_new[index]:
                    widest = calibration.strange_factor * near
                if disagreement is not None:
                    near = calibration.half_width(own, disagreement[rows])
            else:
                near = NEW_DEVICE_FACTOR * worst.half_width(own) if alike else widest
            widest = np.maximum(widest, near)
            half_width[rows] = near if is_far is None else np.where(is_far[rows], widest, near)
            mean_s[rows] = calibration.mean_s(own, predicted_s[rows])
        return half_width, mean_s

    def floor_s(self, samples: Samples) -> FloatArray:
        """Returns float64 [N], what each takes at the least; what the registry says of the model's
        devices wins over what they were trained with.
        """
        return sample_floor_s(samples, tuple(map(self.described_now, samples.devices)))

    def described_now(self, device: DeviceSpec) -> DeviceSpec:
        """Returns a device, one of the model's own as the registry describes it now."""
        trained = {spec.name for spec in self.card.devices}
        return as_described_now(device) if device.name in trained else device


def _by_schedule(
    samples: Samples, found: Estimates, floor_s: FloatArray, is_seen: BoolArray | bool
) -> Estimates:
    """Returns the estimates with lower bound and schedule in place of the model where programs on
    GPUs are unlike its training.

    Args:
        is_seen: bool [N], whether a model can see all of the work.
    """
    strange = found.out_of_distribution
    is_asked = (found.is_new_device if strange is None else strange) & is_seen
    answered, log_s, half_width = schedule_estimates(samples, is_asked, floor_s)
    if not answered.any():
        return found
    latency_s = np.maximum(np.exp(log_s), floor_s[answered])  # exp(log(x)) may be below x
    new = interval_s(latency_s, latency_s, half_width, floor_s[answered])
    new["is_floor"] = log_s <= np.log(floor_s[answered])
    values = {name: getattr(found, name).copy() for name in new}
    for name, column in new.items():
        values[name][answered] = column
    return replace(found, **values, by_schedule=answered)


def interval_s(
    latency_s: FloatArray, mean_s: FloatArray, half_width: FloatArray, floor_s: FloatArray
) -> dict[str, Any]:
    """Returns latency, mean and ends of intervals, none below the floor.

    Args:
        latency_s: float64 [N], none below the floor.
        mean_s: float64 [N], held to the interval.
        half_width: float64 [N], of the interval of the logarithm.
        floor_s: float64 [N].
    """
    low_s = np.maximum(latency_s * np.exp(-half_width), floor_s)
    high_s = latency_s * np.exp(half_width)
    mean_s = np.fmax(np.fmin(mean_s, high_s), low_s)
    return {"latency_s": latency_s, "mean_s": mean_s, "low_s": low_s, "high_s": high_s}


def load_trained(directory: Path, *, with_code: bool = False) -> TrainedModel:
    """Returns the model of a run folder.

    Args:
        with_code: whether its models of machine code are read too.

    Raises:
        DataError: there is no complete model, or it was written by another version of this format.
    """
    model, card = load_model(directory)
    distilled = DistilledModel.load(directory, taught_by=card.data_hash)
    trained = TrainedModel(model, card, TrainingTasks.load(directory), distilled=distilled)
    return read_code(trained, directory) if with_code else trained


def read_code(trained: TrainedModel, directory: Path) -> TrainedModel:
    """Returns the model of a run folder with its models of machine code.

    Raises:
        DataError: as `load_trained`.
    """
    code, gpu_code = CodeModel.load(directory), CodeModel.load(directory, kind="gpu")
    return replace(trained, code=code, gpu_code=gpu_code)
