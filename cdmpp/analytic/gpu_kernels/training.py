"""Fits the kernel models, with their errors on devices and on shapes that were left out."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.analytic.gpu_kernels.calls import Family
from cdmpp.analytic.gpu_kernels.efficiency import Efficiency
from cdmpp.analytic.gpu_kernels.measured import Measured, read_measured
from cdmpp.analytic.gpu_kernels.model import GpuKernels
from cdmpp.analytic.gpu_kernels.table import FILES, families_in
from cdmpp.analytic.gpu_kernels.unseen import left_out_errors
from cdmpp.analytic.intervals import DeviceErrors, LogErrors
from cdmpp.files.atomic import sha256_file

logger = logging.getLogger(__name__)


def fit_kernels(
    folder: Path, *, seed: int = 0, about: Mapping[str, Any] | None = None
) -> GpuKernels:
    """Returns the models of a folder of measured kernels.

    A device of the fit has the errors of a fifth of the shapes that another fit left out; an
    unknown one what devices that a fit of their own left out say (`left_out_errors`).

    Args:
        about: facts to keep with the model.

    Raises:
        DataError, DeviceError: as `read_measured`.
    """
    families: dict[Family, Efficiency] = {}
    devices: dict[Family, tuple[str, ...]] = {}
    errors: DeviceErrors = {}
    rows: dict[str, Any] = {}
    for family in families_in(folder):
        measured = read_measured(folder, family)
        logger.info("fitting %s on %d rows", family, len(measured.table))
        families[family] = measured.fit(np.ones(len(measured.table), np.bool_), seed=seed)
        devices[family] = tuple(measured.devices)
        for label, own in _errors(measured, seed).items():
            errors.setdefault(label, {}).update(own)
        rows[family] = {"rows": len(measured.table), "left_out": dict(measured.left_out)}
    facts = {
        "seed": seed,
        "families": rows,
        "sha256": {FILES[name]: sha256_file(Path(folder) / FILES[name]) for name in families},
    }
    return GpuKernels(families, devices, errors, {**facts, **(about or {})})


def _errors(measured: Measured, seed: int) -> DeviceErrors:
    held = measured.in_fold(seed)
    predicted = measured.predicted_s(measured.fit(~held, seed=seed), held)
    logs = np.log(measured.table.latency_s[held] / predicted)
    left_out = np.log(measured.table.latency_s / measured.left_out_s(seed))
    found = left_out_errors(left_out, measured.table.device, measured.groups, measured.devices)
    for label in measured.devices:
        own = measured.table.device[held] == label
        for group in map(str, np.unique(measured.groups)):
            one = LogErrors.of(logs[own & (measured.groups[held] == group)])
            if one is not None:
                found.setdefault(label, {})[group] = one
    return found
