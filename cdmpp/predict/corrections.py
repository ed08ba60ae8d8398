"""Corrections of a model's estimates: machine code, and measurements on another device."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from cdmpp.arrays import FloatArray
from cdmpp.calibration.transfer import on_device, relation
from cdmpp.datasets.samples import Samples
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import UsageError
from cdmpp.models.parts.checks import check_schema
from cdmpp.predict.cpu_rules import SAME_SET_FACTOR, misjudges_set
from cdmpp.predict.estimates import STRANGE_FACTOR, Estimates, TrainedModel, interval_s
from cdmpp.predict.machine_code.model import CodeRows
from cdmpp.programs.code_layout import CodeKind


@dataclass(frozen=True, eq=False)
class MachineCodeCorrection:
    """Corrects estimates by the machine code of the programs.

    `mean_s` becomes the corrected latency: its sums have lower errors than sums of a higher mean
    (held-out networks, `docs/lab/experiments.md`). The half width of an out-of-distribution
    program is multiplied by `CodeModel.strange_factor`, or by `STRANGE_FACTOR` if that was not
    measured.

    Attributes:
        code: float32 [N, columns], see `cdmpp.programs.code_layout`; NaN if the code is unknown or
            the device is unsupported: these estimates stay, as do those of parallel programs on
            more threads than a device in the training data of the machine-code model.
        kind: kind of the devices that the code runs on.
        are_fastest: whether each program is the fastest of many measured programs of its task.
        in_network: whether the programs are kernels of a network, which have wider intervals.
    """

    reads_model: ClassVar[bool] = True
    code: NDArray[np.float32]
    kind: CodeKind = "cpu"
    are_fastest: bool = False
    in_network: bool = False

    def apply(self, trained: TrainedModel, samples: Samples, found: Estimates) -> Estimates:
        """Returns estimates corrected by machine code."""
        reader = trained.gpu_code if self.kind == "gpu" else trained.code
        assert reader is not None
        samples = check_schema(reader.feature_schema, samples)
        # Serial programs are on one thread here.
        supports = np.array([reader.supports_threads(one) for one in samples.devices], bool)
        is_compiled = ~np.isnan(self.code[:, 0]) & supports[samples.device]
        known = np.flatnonzero(is_compiled)
        if len(known) == 0:
            return found
        told = trained.card.as_told(samples.take(known))
        rows = CodeRows.of(told, self.code[known], found.latency_s[known], kind=self.kind)
        log_s, half_width = reader.estimate(rows, are_fastest=self.are_fastest)
        strange = found.out_of_distribution
        strange_factor = reader.strange_factor or STRANGE_FACTOR
        factor = 1.0 if strange is None else np.where(strange[known], strange_factor, 1.0)
        half_width = factor * half_width
        if self.in_network and reader.network_widths is not None:
            half_width = np.hypot(half_width, reader.network_widths.half_width(log_s))
        floor_s = trained.floor_s(samples)[known]
        latency_s = np.maximum(np.exp(log_s), floor_s)
        low_s = np.maximum(np.exp(log_s - half_width), floor_s)
        upwards = np.exp(half_width)
        is_slow = found.shares_set
        if is_slow is not None:  # finished estimates include the rule for cache sets
            of_compiled = misjudges_set(samples, found.is_new_device, reader.leaf_extra_version)
            is_slow = np.where(is_compiled, of_compiled, is_slow)
            upwards = upwards * np.where(is_slow[known], SAME_SET_FACTOR, 1.0)
        new = {
            "latency_s": latency_s, "mean_s": latency_s, "low_s": low_s,
            "high_s": latency_s * upwards, "is_floor": np.exp(log_s) < floor_s,
        }  # fmt: skip
        values = {name: getattr(found, name).copy() for name in new}
        for name, column in new.items():
            values[name][known] = column
        if found.is_compiled is not None:
            is_compiled |= found.is_compiled
        return replace(found, **values, is_compiled=is_compiled, shares_set=is_slow)


@dataclass(frozen=True, eq=False)
class SourceDeviceCorrection:
    """Corrects estimates by measurements of the same programs on another device.

    Out-of-distribution programs keep the width of their interval, as do all programs if too few
    tasks were measured on such a pair of devices.

    Attributes:
        measured_s: float64 [N], seconds on the source device; NaN if unknown.
        device: the source device.
    """

    reads_model: ClassVar[bool] = False
    measured_s: FloatArray
    device: DeviceSpec

    def apply(self, trained: TrainedModel, samples: Samples, found: Estimates) -> Estimates:
        """Returns estimates corrected by the times on the source device.

        Raises:
            UsageError: the model was not trained on the source device, or the transfer between the
                two devices was not evaluated.
        """
        source = self.device.name
        names = [spec.name for spec in trained.card.devices]
        if source not in names:
            raise UsageError(
                f"the model was not trained on {source}, so its errors there are not known; "
                f"expected one of {', '.join(names)}, or a model fine-tuned on {source}: `cdmpp "
                "finetune --help`"
            )
        there = np.log(trained.estimate(on_device(samples, self.device)).latency_s)
        measured = np.log(self.measured_s)
        latency_s, half_width = found.latency_s.copy(), np.log(found.high_s / found.latency_s)
        mean_s = found.mean_s.copy()
        strange = found.out_of_distribution
        is_strange = found.is_new_device if strange is None else strange
        known = trained.card.transfer
        for index in np.unique(samples.device).tolist():
            asked = samples.devices[index]
            if asked.name == source:
                continue
            related = relation(self.device, asked)
            if related is None:
                raise UsageError(
                    f"{source} is a {self.device.kind}, {asked.name} a {asked.kind}: they do not "
                    "run the same programs"
                )
            pair = known.pair(source, asked.name) if known else None
            if known is None or (pair is None and related not in known.shares):
                raise UsageError(
                    "the model was not evaluated on programs measured on two devices like "
                    f"{source} and {asked.name}; expected a model trained on records of the same "
                    "programs on both kinds of device"
                )
            rows = np.flatnonzero((samples.device == index) & np.isfinite(self.measured_s))
            own = np.log(latency_s[rows])
            if pair is None:
                log_s = own + known.shares[related] * (measured - there)[rows]
                widths = known.intervals.get(related)
            else:
                log_s, widths = pair.log_s(own, there[rows], measured[rows]), pair.intervals
            latency_s[rows] = np.exp(log_s)
            mean_s[rows] *= np.exp(log_s - own)
            if widths is not None:
                near = rows[~is_strange[rows]]
                half_width[near] = widths.half_width(samples.take(near))
                mean_s[near] = widths.mean_s(samples.take(near), latency_s[near])
        floor_s = trained.floor_s(samples)
        is_floor = latency_s < floor_s
        values = interval_s(np.maximum(latency_s, floor_s), mean_s, half_width, floor_s)
        return replace(found, **values, is_floor=is_floor)
