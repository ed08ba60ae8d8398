"""Measurements of the same programs on a trained device, as a correction for a new device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cdmpp.arrays import BoolArray, FloatArray
from cdmpp.calibration.transfer import LEAST_TASKS, PairTransfer, fit_pairs, on_device
from cdmpp.datasets.samples import Samples
from cdmpp.datasets.selection import of_devices, times_on
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import UsageError
from cdmpp.models.base import CostModel
from cdmpp.predict.corrections import SourceDeviceCorrection
from cdmpp.predict.estimates import TrainedModel
from cdmpp.predict.saved_model import ModelCard


@dataclass(frozen=True, eq=False)
class Elsewhere:
    """Times on a device that the model was trained on.

    Attributes:
        device: the trained device.
        latency_s: float64 [P], seconds of each program; NaN if not measured.
    """

    device: DeviceSpec
    latency_s: FloatArray

    def known(self, samples: Samples) -> BoolArray:
        """Returns bool [N], whether each sample's program was measured on the device."""
        return np.asarray(np.isfinite(self.latency_s[samples.program]), bool)

    def check(self, budget: Samples) -> None:
        """Checks that a budget has enough tasks measured on the device to fit the transfer.

        Raises:
            UsageError: the budget is too small.
        """
        tasks = len(np.unique(budget.task_id[self.known(budget)]))
        if tasks < LEAST_TASKS:
            raise UsageError(
                f"--measured-on {self.device.name}: {tasks} tasks of the budget were also "
                f"measured there, expected at least {LEAST_TASKS}; give a larger --budget"
            )

    def pairs(
        self, model: CostModel, held_out: Samples, held_out_s: FloatArray
    ) -> tuple[PairTransfer, ...]:
        """Fits the transfer to each device of a budget.

        Args:
            model: the adapted model, whose predictions for the trained device are unchanged.
            held_out: the budget.
            held_out_s: float64 [N], cross-validated predictions for the budget, in seconds.
        """
        there_s = model.predict(on_device(held_out, self.device))
        source_s = self.latency_s[held_out.program]
        return fit_pairs(held_out, held_out_s, self.device.name, source_s, there_s)

    def counted_in(self, trained: TrainedModel, samples: Samples) -> FloatArray:
        """Returns float64 [N], seconds predicted with the times on the device as a correction."""
        times = SourceDeviceCorrection(self.latency_s[samples.program], self.device)
        return trained.estimate(samples, [times]).latency_s


def times_elsewhere(samples: Samples, label: str, new: Sequence[str], card: ModelCard) -> Elsewhere:
    """Returns the times of a dataset's programs on a device that a model was trained on.

    Args:
        new: labels of the devices that the model is adapted to.

    Raises:
        UsageError: the model was not trained on the device, or it is one of the new devices.
        DataError: nothing was measured on the device.
    """
    known = {spec.name: spec for spec in card.devices}
    if label not in known or label in new or not new:
        raise UsageError(
            f"--measured-on {label}: expected a device that the model was trained on "
            f"({', '.join(known)}), and a different --device"
        )
    of_devices(samples, [label])  # raises for a device without measurements
    return Elsewhere(known[label], times_on(samples, label))
