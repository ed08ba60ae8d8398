"""Predictions of a dataset of one device for another device."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.arrays import FloatArray
from cdmpp.calibration.intervals import interval_metrics
from cdmpp.calibration.transfer import on_device
from cdmpp.datasets.samples import Samples
from cdmpp.datasets.selection import of_devices, times_on
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DataError
from cdmpp.files.atomic import write_columns
from cdmpp.metrics import absolute_percentage_error
from cdmpp.models.parts.labels import least_mape_factor
from cdmpp.predict.corrections import SourceDeviceCorrection
from cdmpp.predict.estimates import Estimates, TrainedModel
from cdmpp.predict.saved_model import task_digests


@dataclass(frozen=True, eq=False)
class Transferred:
    """Predictions for a target device of programs measured on a source device.

    Attributes:
        samples: the programs on the target device, with latencies measured on it, NaN if not
            measured.
        source_s: float64 [N], measured seconds on the source device.
        found: estimates corrected by `source_s`.
        alone: estimates of the model alone.
    """

    samples: Samples
    source_s: FloatArray
    found: Estimates
    alone: Estimates

    def save(self, path: Path) -> None:
        """Writes program_id, task, source_s, predicted_s, low_s, high_s, measured_s (Parquet)."""
        programs = self.samples.programs
        write_columns(
            path,
            {
                "program_id": programs.program_id[self.samples.program],
                "task": programs.tasks[self.samples.task_id],
                "source_s": self.source_s,
                "predicted_s": self.found.latency_s,
                "low_s": self.found.low_s,
                "high_s": self.found.high_s,
                "measured_s": self.samples.latency_s,
            },
        )

    def judged(self, trained: TrainedModel) -> dict[str, Any]:
        """Returns the errors on the programs that were measured on both devices.

        Returns:
            `n`, `tasks`, `in_training` (number of tasks in the model's training data), and line ->
            `mape` and `median_ape` for the lines `transferred` (also with `interval_coverage`),
            `model` (alone) and `one_factor` (times on the source device times the lowest-MAPE
            factor on these programs).

        Raises:
            DataError: no program was measured on both devices.
        """
        rows = np.flatnonzero(np.isfinite(self.samples.latency_s))
        if not len(rows):
            raise DataError(
                "no program was measured on both devices, so --evaluate has no reference; leave "
                "it out"
            )
        both, measured_s = self.samples.take(rows), self.samples.latency_s[rows]
        source_s = self.source_s[rows]
        lines = {
            "transferred": self.found.latency_s[rows],
            "model": self.alone.latency_s[rows],
            "one_factor": least_mape_factor(source_s, measured_s) * source_s,
        }
        values: dict[str, Any] = {
            "n": len(rows), "tasks": len(np.unique(both.task_id)),
            "in_training": len(task_digests(both) & trained.learned_tasks),
        }  # fmt: skip
        for name, predicted_s in lines.items():
            error = absolute_percentage_error(measured_s, predicted_s)
            values[name] = {"mape": float(error.mean()), "median_ape": float(np.median(error))}
        held = interval_metrics(both, self.found.low_s[rows], self.found.high_s[rows])
        values["transferred"] |= {"interval_coverage": held["interval_coverage"]}
        return values


def transfer_dataset(
    trained: TrainedModel, samples: Samples, source: DeviceSpec, target: DeviceSpec
) -> Transferred:
    """Predicts programs measured on a source device for a target device.

    Raises:
        DataError: nothing was measured on the source device.
        UsageError: see `SourceDeviceCorrection`.
    """
    own = of_devices(samples, [source.name])
    asked = on_device(own, target)
    alone = trained.estimate(asked)
    found = SourceDeviceCorrection(own.latency_s, source).apply(trained, asked, alone)
    measured = replace(asked, latency_s=times_on(samples, target.name)[asked.program])
    return Transferred(measured, own.latency_s, found, alone)
