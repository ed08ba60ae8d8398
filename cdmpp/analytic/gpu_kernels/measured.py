"""Measured kernels with their work: the rows that a fit may use, and the held-out parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cdmpp.analytic.gpu_kernels.account.work import KernelWork
from cdmpp.analytic.gpu_kernels.calls import SERVING, Family
from cdmpp.analytic.gpu_kernels.efficiency import Efficiency, EfficiencyOptions, fit_efficiency
from cdmpp.analytic.gpu_kernels.families import error_groups, whose_kernels, work_of_rows
from cdmpp.analytic.gpu_kernels.frameworks import Frameworks
from cdmpp.analytic.gpu_kernels.nearest import NearRows
from cdmpp.analytic.gpu_kernels.table import GpuKernelTable, read_kernels
from cdmpp.analytic.gpu_kernels.unseen import siblings_of
from cdmpp.analytic.intervals import LogErrors
from cdmpp.arrays import BoolArray, FloatArray, TextArray
from cdmpp.devices.registry import get_device

#: Maximum share of a device's rows below their lower bound; above it the device was not timed
#: correctly, and all of its rows are excluded.
_MOST_IMPOSSIBLE = 0.04
#: Products with a nominal time below the first number (seconds) take the second only if the host
#: was timed; the last is the minimum number of such products.
_SMALL_S, _HOST_S, _LEAST_SMALL = 5.0e-6, 40.0e-6, 10
#: The same for families of `SERVING`, which are several kernels; their nominal time has no launch.
_SMALL_BLOCK_S, _HOST_BLOCK_S = 10.0e-6, 90.0e-6
#: The same for whole blocks of attention, which are 10 to 25 kernels: small ones take up to 225 us
#: in a graph, and at least 300 us eagerly.
_SMALL_WHOLE_S, _HOST_WHOLE_S = 100.0e-6, 260.0e-6
#: Blocks with a nominal time above this multiple of the host's time are used nevertheless: the host
#: launches the next kernel while the GPU runs the previous one.
_HIDDEN = 3.0
#: Messages of at least so many bytes that reach a smaller share of the GPU's links than this are
#: limited by another part of the machine. An all-reduce of two L40S reaches 0.6; of four or eight
#: on one machine 0.04 to 0.17, on another 0.7. That of two RTX PRO 6000 reaches 0.6 or 0.24.
_LARGE_BYTES, _LEAST_SHARE = 2.0**26, 0.3
#: Fields of calls whose values may each have been timed differently.
_PARTS = ("dtype", "kv_dtype", "kind", "step", "phase")
#: Folds of the shapes; one is held out of a fit.
_FOLDS = 5
#: Family with few rows -> the sizes that define a shape: all rows of a shape are held out together,
#: and each fold in turn.
_SHAPES: Mapping[Family, tuple[str, ...]] = {"moe_tuned": ("hidden", "inter", "experts", "top_k")}
#: Options of the validation fits of a family of `SERVING`: there are many such fits.
_PART = EfficiencyOptions(most_rows=24_000)


@dataclass(frozen=True)
class Measured:
    """Rows of one family that a fit may use.

    Attributes:
        family: family of the rows.
        table: N rows.
        work: work of the rows.
        software: text [N], software whose kernels ran.
        groups: text [N], group that each row is evaluated in.
        is_evaluated_only: bool [N], rows that no fit uses: collectives on a machine whose GPUs do
            not reach each other at the rate of their links.
        left_out: reason -> number of rows of the file that were excluded.
    """

    family: Family
    table: GpuKernelTable
    work: KernelWork
    software: TextArray
    groups: TextArray
    is_evaluated_only: BoolArray
    left_out: Mapping[str, int]

    @property
    def devices(self) -> list[str]:
        """Labels of the GPUs."""
        return [str(label) for label in np.unique(self.table.device)]

    @property
    def has_several_devices(self) -> bool:
        """Whether a fit can hold out a device."""
        return len(self.devices) > 1

    @property
    def is_near(self) -> bool:
        """Whether a fit stores the rows, to correct its trees."""
        return self.family in SERVING

    @property
    def frameworks(self) -> Frameworks:
        """Versions and kernels of the frameworks in the rows, for a family of `SERVING`."""
        table = self.table
        return Frameworks.of(table.software, table.version, table.device, table.columns)

    def fit(
        self, rows: BoolArray, *, seed: int, options: EfficiencyOptions | None = None
    ) -> Efficiency:
        """Fits the efficiency of the selected rows (bool [N]); a family of `SERVING` also stores
        the rows.
        """
        rows = rows & ~self.is_evaluated_only
        work, software, table = self.work[rows], self.software[rows], self.table[rows]
        found = fit_efficiency(work, software, table.latency_s, seed=seed, options=options)
        if not self.is_near:
            return found
        effort = np.log(table.latency_s / found.nominal_s(work, software))
        near = NearRows.of(table.columns, software, table.device, effort)
        return replace(found, near=near)

    def fit_part(self, rows: BoolArray, *, seed: int) -> Efficiency:
        """Fits the family for an evaluation; families of `SERVING` use fewer rows."""
        return self.fit(rows, seed=seed, options=_PART if self.is_near else None)

    def predicted_s(self, model: Efficiency, rows: BoolArray) -> FloatArray:
        """Returns float64 [R], the predicted seconds of the selected rows (bool [N])."""
        table, work, software = self.table[rows], self.work[rows], self.software[rows]
        if model.near is None:
            return model.latency_s(work, software)
        seconds = np.empty(len(table))
        for label in map(str, np.unique(table.device)):
            own = table.device == label
            seconds[own] = model.near_s(
                work[own], self.family, table[own].columns, software[own], get_device(label)
            )
        return seconds

    def left_out_s(self, seed: int) -> FloatArray:
        """Returns float64 [N], the seconds of every row predicted by the fit without its device."""
        seconds = np.empty(len(self.table))
        for label in self.devices:
            own = self.table.device == label
            seconds[own] = self.predicted_s(self.fit_part(~own, seed=seed), own)
        return seconds

    def chip_left_out_s(self, seed: int) -> FloatArray:
        """Returns float64 [N], the seconds of every row predicted by the fit without its device and
        the device's siblings; NaN without siblings, and if the family has no other device.
        """
        seconds = np.full(len(self.table), np.nan)
        fits: dict[frozenset[str], Efficiency] = {}
        for label in self.devices:
            chip = frozenset([label, *siblings_of(label, self.devices, self.family)])
            left_out = np.isin(self.table.device, list(chip))
            if len(chip) == 1 or not np.any(~left_out & ~self.is_evaluated_only):
                continue
            if chip not in fits:
                fits[chip] = self.fit_part(~left_out, seed=seed)
            own = self.table.device == label
            seconds[own] = self.predicted_s(fits[chip], own)
        return seconds

    def version_left_out_s(self, seed: int) -> FloatArray:
        """Returns float64 [N], the seconds of every row predicted by the fit without its version of
        its software; NaN if the software has no other version.
        """
        seconds = np.full(len(self.table), np.nan)
        software, whose = self.table.software, self.table.software_version
        for name in map(str, np.unique(whose)):
            own = whose == name
            if np.any(software[~own] == name.split()[0]):
                seconds[own] = self.predicted_s(self.fit_part(~own, seed=seed), own)
        return seconds

    def held_shapes(self, seed: int) -> list[BoolArray]:
        """Returns bool [N] each, the rows that a fit holds out: one fifth of the shapes; for a
        family of `_SHAPES` each fifth in turn.
        """
        place = self.shapes()
        fold = np.random.default_rng(seed).integers(_FOLDS, size=int(place.max()) + 1)[place]
        return [fold == part for part in range(_FOLDS if self.family in _SHAPES else 1)]

    def shape_left_out_s(self, seed: int) -> FloatArray:
        """Returns float64 [N], the seconds of the rows of `held_shapes` predicted by the fit
        without them; NaN in other rows.
        """
        seconds = np.full(len(self.table), np.nan)
        for held in self.held_shapes(seed):
            seconds[held] = self.predicted_s(self.fit_part(~held, seed=seed), held)
        return seconds

    def shapes(self) -> NDArray[np.intp]:
        """Returns int [N], the shape of each row, independent of device and type."""
        names = _SHAPES.get(self.family, tuple(self.table.columns))
        sizes = [self.table.columns[name] for name in names]
        whole = [column for column in sizes if np.issubdtype(column.dtype, np.integer)]
        return np.unique(np.stack(whole, axis=1), axis=0, return_inverse=True)[1].reshape(-1)

    def errors(self, logs: FloatArray, groups: TextArray, group: str) -> LogErrors | None:
        """Returns the interval of a group's errors among R held-out rows of one device; for a
        family of `_SHAPES` the widest of the group's and of all rows, as a type has few shapes.
        None without rows of the group, or with too few.

        Args:
            logs: float64 [R], log(measured / predicted).
            groups: text [R].
        """
        own = logs[groups == group]
        if self.family not in _SHAPES or not len(own):
            return LogErrors.of(own)
        return LogErrors.widest([LogErrors.of(own), LogErrors.of(logs)])


def host_timed(table: GpuKernelTable, work: KernelWork) -> dict[str, BoolArray]:
    """Returns device, software, version and type -> bool [N], the eagerly timed rows of products,
    expert layers and attention: all small ones are slower than the host's launches. For whole
    blocks, only those that do not hide the launches.
    """
    nominal_s = np.zeros(len(table))
    for name, term in work.terms.items():
        nominal_s = nominal_s + work.prior[name] * term
    most_s, host_s = _SMALL_BLOCK_S, _HOST_BLOCK_S
    is_whole = "indexed" in table.columns
    if is_whole:
        most_s, host_s = _SMALL_WHOLE_S, _HOST_WHOLE_S
    if "release" not in table.columns:
        nominal_s, most_s, host_s = nominal_s + work.launch_s, _SMALL_S, _HOST_S
    words = [table.columns[name] for name in _PARTS if name in table.columns]
    facts = (table.device, table.software, table.version, *(word.astype(np.str_) for word in words))
    names, place = np.unique([" ".join(row) for row in zip(*facts, strict=True)],
                             return_inverse=True)  # fmt: skip
    is_whole_row = table.fault == ""
    found = {}
    for number, name in enumerate(map(str, names)):
        rows = (place == number) & is_whole_row
        small_s = table.latency_s[rows & (nominal_s < most_s)]
        if len(small_s) >= _LEAST_SMALL and small_s.min() > host_s:
            hidden_s = _HIDDEN * float(np.median(small_s)) if is_whole else np.inf
            found[name] = rows & (nominal_s <= hidden_s)
    return found


def _slow_machines(table: GpuKernelTable, work: KernelWork) -> BoolArray:
    """Returns bool [N], the rows of `Measured.is_evaluated_only`."""
    found = np.zeros(len(table), np.bool_)
    if "ring" in work.terms:
        facts = table.device, table.software, table.version, table.columns["gpus"].astype(np.str_)
        names, place = np.unique([" ".join(row) for row in zip(*facts, strict=True)],
                                 return_inverse=True)  # fmt: skip
        share = work.terms["ring"] / table.latency_s
        for number in range(len(names)):
            own = place == number
            large = share[own & (work.size >= _LARGE_BYTES)]
            found[own] = len(large) > 0 and float(np.median(large)) < _LEAST_SHARE
    return found


def read_measured(folder: Path, family: Family) -> Measured:
    """Reads the rows of a family that a fit may use.

    The excluded rows are: faults in the README of the data (`FAULTS`); types whose smallest calls
    all take longer than the host's launches, so that the host was timed, not the GPU
    (`host_timed`); rows below their lower bound; and all rows of a device with more than 4 % of
    such rows. Collectives on slow machines (`Measured.is_evaluated_only`) are kept.

    Raises:
        DataError: the file is missing or lacks a column.
        DeviceError: the registry does not know a device, or lacks a value of it.
    """
    table = read_kernels(folder, family)
    labels = [str(label) for label in np.unique(table.device)]
    work = work_of_rows(family, table.columns, table.device, {n: get_device(n) for n in labels})
    reasons: dict[str, int] = {}
    kept = np.ones(len(table), np.bool_)

    def leave_out(rows: BoolArray, why: str) -> None:
        if np.any(rows & kept):
            reasons[why] = int(np.sum(rows & kept))
            kept[rows] = False

    for why in map(str, np.unique(table.fault[table.fault != ""])):
        leave_out(table.fault == why, why)
    if family.startswith("gemm") or family in SERVING:
        for what, rows in host_timed(table, work).items():
            leave_out(rows, f"{what}: the host was timed")
    is_impossible = table.latency_s < work.floor_s
    for label in labels:
        own = (table.device == label) & kept
        if own.any() and np.mean(is_impossible[own]) > _MOST_IMPOSSIBLE:
            leave_out(
                own, f"{label}: {np.mean(is_impossible[own]):.0%} of its rows below the lower bound"
            )
    leave_out(is_impossible, "below the lower bound of its GPU")
    table, work = table[kept], work[kept]
    return Measured(
        family,
        table,
        work,
        whose_kernels(family, table.columns, table.software),
        error_groups(family, table.columns),
        _slow_machines(table, work),
        reasons,
    )
