"""Fits the kernel models and measures their errors on held-out devices, shapes and versions."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.analytic.gpu_kernels.calls import SERVING, Family
from cdmpp.analytic.gpu_kernels.efficiency import Efficiency
from cdmpp.analytic.gpu_kernels.frameworks import Frameworks
from cdmpp.analytic.gpu_kernels.measured import Measured, read_measured
from cdmpp.analytic.gpu_kernels.model import GpuKernels
from cdmpp.analytic.gpu_kernels.table import FILES, asked_families
from cdmpp.analytic.gpu_kernels.unseen import NEW_VERSION, left_out_errors
from cdmpp.analytic.intervals import DeviceErrors, LogErrors
from cdmpp.files.atomic import sha256_file

logger = logging.getLogger(__name__)


def fit_kernels(
    folder: Path,
    *,
    seed: int = 0,
    about: Mapping[str, Any] | None = None,
    onto: GpuKernels | None = None,
    families: Sequence[str] = (),
) -> GpuKernels:
    """Fits the models to a folder of measured kernels.

    The errors of a device in the fit are from a fit that holds out a fifth of the shapes; those of
    unseen devices are from fits that each hold out one device, or all boards of a chip
    (`left_out_errors`). A family with a single device has no intervals for other devices.

    Args:
        about: facts to store with the model.
        onto: a model whose other families are kept.
        families: families to fit; empty = all of the folder.

    Raises:
        DataError, DeviceError: as `read_measured`.
        UsageError: the folder lacks a named family.
    """
    fitted: dict[Family, Efficiency] = {}
    devices: dict[Family, tuple[str, ...]] = {}
    errors: DeviceErrors = {}
    rows: dict[str, Any] = {}
    frameworks: dict[Family, Frameworks] = {}
    own_families = asked_families(folder, families)
    if onto is not None:
        fitted.update(onto.families)
        devices.update(onto.devices)
        frameworks.update(onto.frameworks)
        for label, groups in onto.errors.items():
            errors[label] = {
                name: one for name, one in groups.items() if name.split()[0] not in own_families
            }
        rows.update(onto.about["families"])
    for family in own_families:
        measured = read_measured(folder, family)
        logger.info("fitting %s on %d rows", family, len(measured.table))
        fitted[family] = measured.fit(np.ones(len(measured.table), np.bool_), seed=seed)
        devices[family] = tuple(measured.devices)
        for label, own in _errors(measured, seed).items():
            errors.setdefault(label, {}).update(own)
        if family in SERVING:
            frameworks[family] = measured.frameworks
        rows[family] = {"rows": len(measured.table), "left_out": dict(measured.left_out)}
    facts = {
        "seed": seed,
        "families": rows,
        "sha256": {
            **(onto.about["sha256"] if onto is not None else {}),
            **{FILES[name]: sha256_file(Path(folder) / FILES[name]) for name in own_families},
        },
    }
    return GpuKernels(fitted, devices, errors, frameworks, {**facts, **(about or {})})


def _errors(measured: Measured, seed: int) -> DeviceErrors:
    predicted = measured.shape_left_out_s(seed)
    held = np.isfinite(predicted)
    logs = np.log(measured.table.latency_s[held] / predicted[held])
    found: DeviceErrors = {}
    if measured.has_several_devices:
        table_s = measured.table.latency_s
        found = left_out_errors(
            np.log(table_s / measured.left_out_s(seed)),
            np.log(table_s / measured.chip_left_out_s(seed)),
            measured.table.device,
            measured.groups,
            measured.devices,
            is_near=measured.is_near,
        )
    for label in measured.devices:
        own = measured.table.device[held] == label
        for group in map(str, np.unique(measured.groups)):
            one = measured.errors(logs[own], measured.groups[held][own], group)
            if one is not None:
                found.setdefault(label, {})[group] = one
    if measured.family in SERVING:
        found[NEW_VERSION] = _version_errors(measured, seed)
    return found


def _version_errors(measured: Measured, seed: int) -> dict[str, LogErrors]:
    """Returns family -> errors on a version that is not in the fit, from versions that were each
    held out of a fit; empty if there are too few.
    """
    seconds = measured.version_left_out_s(seed)
    is_known = np.isfinite(seconds)
    logs = np.log(measured.table.latency_s[is_known] / seconds[is_known])
    whose = measured.table.software_version[is_known]
    found = LogErrors.of_unseen_group([logs[whose == name] for name in np.unique(whose)])
    return {} if found is None else {measured.family: found}
