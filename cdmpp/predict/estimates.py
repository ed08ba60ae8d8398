"""Predictions of a trained model: latency, 90 % interval and an out-of-distribution flag."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from cdmpp.analytic.roofline.floor import sample_floor_s
from cdmpp.arrays import BoolArray, FloatArray, IntArray
from cdmpp.calibration.ood import NearTask, TrainingTasks
from cdmpp.datasets.samples import Samples
from cdmpp.devices.registry import as_described_now
from cdmpp.devices.spec import DeviceSpec, family
from cdmpp.models.base import CostModel
from cdmpp.models.parts.checks import check_schema
from cdmpp.predict.cpu_rules import SAME_SET_FACTOR, misjudges_set, on_one_thread
from cdmpp.predict.distilled import DistilledModel
from cdmpp.predict.gpu_schedules import schedule_estimates
from cdmpp.predict.machine_code.model import CodeModel
from cdmpp.predict.saved_model import ModelCard, load_model
from cdmpp.programs.compact_ast import LEAF_EXTRA_SCHEMA_VERSION

STRANGE_FACTOR = 2.0
#: Factor on the widest interval of a device family for an unseen device of that family: the lowest
#: multiple of 0.25 that covered 90 % on every left-out device (`docs/results/devices.md`).
NEW_DEVICE_FACTOR = 1.75


@dataclass(frozen=True)
class Estimates:
    """Predictions of N samples; no latency is below its program's lower bound on the device.

    Attributes:
        latency_s: float64 [N], seconds.
        mean_s: float64 [N], expected seconds, for sums over programs
            (`LatencyCalibration.mean_ratio`); latency_s if the model has no calibration.
        low_s: float64 [N], lower end of the interval; NaN if the model has no calibration.
        high_s: float64 [N], upper end of the interval.
        is_far: bool [N], whether the program is unlike every training task, or does work that
            features do not describe; None if the model has no training tasks.
        is_new_device: bool [N], whether the device was not trained on.
        is_floor: bool [N], whether latency_s is the lower bound, because the model predicts less.
        nearest: nearest training tasks of each sample, nearest first; None if the model has no
            training tasks.
        is_compiled: bool [N], whether machine code was used; None = for no sample.
        by_schedule: bool [N], whether lower bound and schedule replace the model's prediction
            (`cdmpp.predict.gpu_schedules`); None = for no sample.
        on_one_thread, shares_set: bool [N], whether these rules of `cdmpp.predict.cpu_rules` apply;
            None = for no sample.
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
        """bool [N], whether program or device is out of distribution; None if `is_far` is None."""
        return None if self.is_far is None else self.is_far | self.is_new_device

    def take(self, index: BoolArray) -> Estimates:
        """Returns the estimates of the chosen samples."""
        chosen: dict[str, Any] = {
            one.name: values[index] if isinstance(values := getattr(self, one.name), np.ndarray)
            else values
            for one in fields(self)
        }  # fmt: skip
        if self.nearest is not None:
            chosen["nearest"] = [self.nearest[row] for row in np.flatnonzero(index)]
        return Estimates(**chosen)


class Correction(Protocol):
    """A step that improves estimates with further knowledge of the programs.

    Attributes:
        reads_model: whether the correction was fitted to the model's own predictions.
    """

    reads_model: ClassVar[bool]

    def apply(self, trained: TrainedModel, samples: Samples, found: Estimates) -> Estimates:
        """Returns improved estimates.

        Args:
            trained: the model of the estimates.
            samples: N programs.
            found: estimates of these programs so far.

        Raises:
            UsageError: the model or the devices do not support the correction.
        """
        ...


@dataclass(frozen=True)
class TrainedModel:
    """A trained model with its card, training tasks and optional models.

    Attributes:
        model: the cost model.
        card: its card, with the intervals.
        tasks: its training tasks; None for a run folder without them.
        code: its machine-code model for CPUs; None if missing or not loaded.
        gpu_code: its machine-code model for GPUs; None if missing or not loaded.
        distilled: its distilled network, which scores candidates of searches; None if missing.
    """

    model: CostModel
    card: ModelCard
    tasks: TrainingTasks | None
    code: CodeModel | None = None
    gpu_code: CodeModel | None = None
    distilled: DistilledModel | None = None

    @property
    def readers(self) -> list[CodeModel]:
        """The machine-code models."""
        return [one for one in (self.code, self.gpu_code) if one is not None]

    @property
    def feature_schema(self) -> dict[str, int]:
        """Versions of the leaf columns of programs to predict: the newest of the model's and its
        machine-code models'. A model reads the columns of a newer version, too.
        """
        schemas = [self.card.feature_schema, *(one.feature_schema for one in self.readers)]
        return max(schemas, key=lambda schema: schema.get("leaf_extra", 0))

    @property
    def leaf_extra_version(self) -> int:
        """Version of the added leaf columns of programs to predict."""
        return self.feature_schema.get("leaf_extra") or LEAF_EXTRA_SCHEMA_VERSION

    @property
    def learned_tasks(self) -> frozenset[str]:
        """Digests (`task_digest`) of the tasks that the model and its machine-code models have
        learned from.
        """
        return self.card.training_tasks.union(*(one.added_tasks for one in self.readers))

    def scorer(self, kind: str) -> CostModel | DistilledModel:
        """Returns the model that scores search candidates on devices of a kind.

        It is the distilled network if its training data has this kind, else the full model.
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

        Half widths (`docs/explanation/intervals.md`):

        - A trained device has those of its calibration, an unseen device of a trained kind those of
          left-out devices, if measured.
        - Another unseen device has `NEW_DEVICE_FACTOR` times the widest of the devices of its kind
          and family or, without such devices, `STRANGE_FACTOR` times the widest of all.
        - A program unlike all training tasks has `STRANGE_FACTOR` times the widest group, of the
          devices of the same kind and family if there are any. On a trained device it has
          `LatencyCalibration.strange_factor` times the usual half width instead, if measured.

        On GPUs, lower bound and schedule replace out-of-distribution predictions
        (`cdmpp.predict.gpu_schedules`), unless features do not describe all of the program's work
        or a correction reads the model. `cdmpp.predict.cpu_rules` has rules for some CPU programs.

        Args:
            corrections: corrections of the estimates, applied in order.
            latency_s, disagreement: float64 [N], the result of `predict_with_disagreement` if
                already computed.

        Raises:
            UsageError: a correction does not support the model or the devices.
            DataError: the leaf features differ from the model's.
        """
        programs = samples.programs
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
            found = step.apply(self, replace(samples, programs=programs), found)
        version: int | IntArray = self.card.feature_schema.get("leaf_extra", 0)
        if self.code is not None and found.is_compiled is not None:
            version = np.where(found.is_compiled, self.code.leaf_extra_version, version)
        is_slow = misjudges_set(samples, found.is_new_device, version)
        return replace(
            found, on_one_thread=samples.device != asked.device, shares_set=is_slow,
            high_s=np.where(is_slow, SAME_SET_FACTOR, 1.0) * found.high_s,
        )  # fmt: skip

    def predict(self, samples: Samples) -> FloatArray:
        """Returns float64 [N], the model's seconds without lower bounds and intervals."""
        return self.model.predict(self._told(samples))

    def predict_with_disagreement(self, samples: Samples) -> tuple[FloatArray, FloatArray | None]:
        """Returns the result of `predict` and the parts' disagreement (see `CostModel`)."""
        return self.model.predict_with_disagreement(self._told(samples))

    def _told(self, samples: Samples) -> Samples:
        return self.card.as_told(on_one_thread(samples, self.card))

    def devices_like(self, device: DeviceSpec) -> list[str]:
        """Returns the labels of calibrated devices of the same kind and family.

        Empty if the family is unknown.
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
        """Returns the half widths of intervals and the expected (mean) seconds.

        Half widths are in log seconds, NaN without calibration.

        Args:
            disagreement: float64 [N], disagreement of the model's parts; None for a model of one
                part.
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
        """Returns float64 [N], lower bounds in seconds.

        The registry's current description of a trained device overrides the one in the card.
        """
        return sample_floor_s(samples, tuple(map(self.described_now, samples.devices)))

    def described_now(self, device: DeviceSpec) -> DeviceSpec:
        """Returns a device; a trained device is returned as the registry describes it now."""
        trained = {spec.name for spec in self.card.devices}
        return as_described_now(device) if device.name in trained else device


def _by_schedule(
    samples: Samples, found: Estimates, floor_s: FloatArray, is_seen: BoolArray | bool
) -> Estimates:
    """Replaces out-of-distribution predictions on GPUs by the lower bound and schedule model.

    Args:
        is_seen: bool [N], whether features describe all of the program's work.
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
    """Returns latency, mean and ends of intervals, bounded by the floor.

    Args:
        latency_s: float64 [N], at least the floor.
        mean_s: float64 [N], clipped to the interval.
        half_width: float64 [N], half width of the interval in log seconds.
        floor_s: float64 [N], lower bound.
    """
    low_s = np.maximum(latency_s * np.exp(-half_width), floor_s)
    high_s = latency_s * np.exp(half_width)
    mean_s = np.fmax(np.fmin(mean_s, high_s), low_s)
    return {"latency_s": latency_s, "mean_s": mean_s, "low_s": low_s, "high_s": high_s}


def load_trained(directory: Path, *, with_code: bool = False) -> TrainedModel:
    """Loads the model of a run folder.

    Args:
        with_code: whether to load its machine-code models.

    Raises:
        DataError: there is no complete model, or it has another format version.
    """
    model, card = load_model(directory)
    distilled = DistilledModel.load(directory, taught_by=card.data_hash)
    trained = TrainedModel(model, card, TrainingTasks.load(directory), distilled=distilled)
    return read_code(trained, directory) if with_code else trained


def read_code(trained: TrainedModel, directory: Path) -> TrainedModel:
    """Adds the machine-code models of a run folder to its trained model.

    Raises:
        DataError: a machine-code model is damaged or has another format version.
    """
    code, gpu_code = CodeModel.load(directory), CodeModel.load(directory, kind="gpu")
    return replace(trained, code=code, gpu_code=gpu_code)
