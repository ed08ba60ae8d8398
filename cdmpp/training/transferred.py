"""A data set of one device, told for another."""

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
    """What programs measured on one device take on another.

    Attributes:
        samples: the programs on the other device; its latencies are those measured there, NaN
            where they were not.
        source_s: float64 [N], measured seconds on the one device.
        found: what the model says, their times counted in.
        alone: what it says without them.
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
        """Returns the errors on the programs that were measured on both devices: `n`, `tasks`,
        `in_training` (tasks that the model has learned from), and by line `mape` and `median_ape`:
        `transferred` (with `interval_coverage`), `model` alone, and `one_factor`, the times on the
        one device times the factor that fits these programs best.

        Raises:
            DataError: none was measured on both.
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
            "in_training": len(task_digests(both) & trained.card.training_tasks),
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
    """Returns what the programs that were measured on one device take on another.

    Raises:
        DataError: nothing was measured on the one device.
        UsageError: see `SourceDeviceCorrection`.
    """
    own = of_devices(samples, [source.name])
    asked = on_device(own, target)
    alone = trained.estimate(asked)
    found = SourceDeviceCorrection(own.latency_s, source).apply(trained, asked, alone)
    measured = replace(asked, latency_s=times_on(samples, target.name)[asked.program])
    return Transferred(measured, own.latency_s, found, alone)
