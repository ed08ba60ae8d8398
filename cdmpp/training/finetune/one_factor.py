"""The single-factor baseline: predictions for a trained device times a scale factor."""

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
    """Returns the nearest source device and the factor on its predictions for the target.

    The factor is the median ratio of measured to predicted on the budget. The nearest device has
    the smallest median absolute log error after scaling.

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
    """Returns the samples with their device replaced by a label; measurements stay."""
    index = [spec.name for spec in samples.devices].index(label)
    return replace(samples, device=np.full(len(samples), index, np.int64))


def with_devices(samples: Samples, specs: Iterable[DeviceSpec]) -> Samples:
    """Returns the samples with further devices in `devices`."""
    known = {spec.name for spec in samples.devices}
    new = tuple(spec for spec in specs if spec.name not in known)
    return replace(samples, devices=(*samples.devices, *new))
