"""The simplest adaptation: what the model says of a device it knows, times one number."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from cdmpp.datasets.samples import Samples
from cdmpp.devices.spec import DeviceSpec
from cdmpp.models.base import CostModel


def fit_one_factor(
    model: CostModel, budget: Samples, sources: tuple[str, ...]
) -> tuple[str, float]:
    """Returns the nearest source device and the factor from its predicted latencies to the target.

    The factor is the median ratio of measured to predicted on the budget; nearest is the device
    whose predictions, so scaled, have the smallest median logarithmic error there.

    Args:
        sources: labels among `budget.devices` (see `with_devices`), at least one.
    """
    fits = []
    for label in sorted(sources):
        predicted_s = model.predict(as_device(budget, label))
        log_ratio = np.log(budget.latency_s) - np.log(predicted_s)
        centre = float(np.median(log_ratio))
        fits.append((float(np.median(np.abs(log_ratio - centre))), label, float(np.exp(centre))))
    _, label, factor = min(fits)
    return label, factor


def as_device(samples: Samples, label: str) -> Samples:
    """Returns the same programs as if they ran on another device; measurements stay."""
    index = [spec.name for spec in samples.devices].index(label)
    return replace(samples, device=np.full(len(samples), index, np.int64))


def with_devices(samples: Samples, specs: Iterable[DeviceSpec]) -> Samples:
    """Returns the same samples with more devices to refer to."""
    known = {spec.name for spec in samples.devices}
    new = tuple(spec for spec in specs if spec.name not in known)
    return replace(samples, devices=(*samples.devices, *new))
