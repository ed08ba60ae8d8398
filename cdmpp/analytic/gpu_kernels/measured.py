"""Measured kernels with their work: which rows a fit may use, and how they are held out."""

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
from cdmpp.analytic.intervals import LogErrors
from cdmpp.arrays import BoolArray, FloatArray, TextArray
from cdmpp.devices.registry import get_device

#: A device with more rows than this below its floor was not timed right: none of them counts.
_MOST_IMPOSSIBLE = 0.04
#: A product whose nominal time is below the first number, seconds, takes the second only where the
#: host was timed; so many such products tell.
_SMALL_S, _HOST_S, _LEAST_SMALL = 5.0e-6, 40.0e-6, 10
#: The same of a serving family, of the nominal time beyond its launches: they are several kernels.
_SMALL_BLOCK_S, _HOST_BLOCK_S = 10.0e-6, 90.0e-6
#: The same of whole blocks of attention, which are 10 to 25 kernels: in a graph the small ones take
#: up to 225 us, eagerly from 300 us on.
_SMALL_WHOLE_S, _HOST_WHOLE_S = 100.0e-6, 260.0e-6
#: Blocks whose nominal time is more than so many times what the host takes are of use nevertheless:
#: the host launches the next kernel while the GPU runs the one before.
_HIDDEN = 3.0
#: Words of calls, each of which may have been timed in its own way.
_PARTS = ("dtype", "kv_dtype", "kind", "step", "phase")
#: Parts of the shapes, one of which is held out of a fit.
_FOLDS = 5
#: Family of few rows -> the sizes that make a shape: its rows at other sizes are held out with it,
#: and each part in turn.
_SHAPES: Mapping[Family, tuple[str, ...]] = {"moe_tuned": ("hidden", "inter", "experts", "top_k")}
#: Rows of a fit of a serving family that leaves something out: there are many of them.
_PART = EfficiencyOptions(most_rows=24_000)


@dataclass(frozen=True)
class Measured:
    """Rows of one family that a fit may use.

    Attributes:
        family: of the rows.
        table: N rows.
        work: of the rows.
        software: text [N], whose kernels ran.
        groups: text [N], what each is judged with.
        left_out: why -> how many rows of the file are not among them.
    """

    family: Family
    table: GpuKernelTable
    work: KernelWork
    software: TextArray
    groups: TextArray
    left_out: Mapping[str, int]

    @property
    def devices(self) -> list[str]:
        """Labels of the GPUs."""
        return [str(label) for label in np.unique(self.table.device)]

    @property
    def is_near(self) -> bool:
        """Whether a fit keeps the rows themselves, to correct its trees by."""
        return self.family in SERVING

    @property
    def frameworks(self) -> Frameworks:
        """What the rows say of frameworks, of a family of `SERVING`."""
        table = self.table
        return Frameworks.of(table.software, table.version, table.device, table.columns)

    def fit(
        self, rows: BoolArray, *, seed: int, options: EfficiencyOptions | None = None
    ) -> Efficiency:
        """Returns what the kernels of some rows (bool [N]) reach; of a family of `SERVING` with
        the rows themselves.
        """
        work, software, table = self.work[rows], self.software[rows], self.table[rows]
        found = fit_efficiency(work, software, table.latency_s, seed=seed, options=options)
        if not self.is_near:
            return found
        effort = np.log(table.latency_s / found.nominal_s(work, software))
        near = NearRows.of(table.columns, software, table.device, effort)
        return replace(found, near=near)

    def fit_part(self, rows: BoolArray, *, seed: int) -> Efficiency:
        """Returns a fit to judge the family by, on fewer rows where the family has many."""
        return self.fit(rows, seed=seed, options=_PART if self.is_near else None)

    def predicted_s(self, model: Efficiency, rows: BoolArray) -> FloatArray:
        """Returns float64 [R], the seconds of some rows (bool [N])."""
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
        """Returns float64 [N], the seconds of every row by the fit without its device."""
        seconds = np.empty(len(self.table))
        for label in self.devices:
            own = self.table.device == label
            seconds[own] = self.predicted_s(self.fit_part(~own, seed=seed), own)
        return seconds

    def version_left_out_s(self, seed: int) -> FloatArray:
        """Returns float64 [N], the seconds of every row by the fit without its version of its
        software; NaN where that is the only one.
        """
        seconds = np.full(len(self.table), np.nan)
        software = self.table.software
        whose = np.char.add(np.char.add(software, " "), self.table.version)
        for name in map(str, np.unique(whose)):
            own = whose == name
            if np.any(software[~own] == name.split()[0]):
                seconds[own] = self.predicted_s(self.fit_part(~own, seed=seed), own)
        return seconds

    def held_shapes(self, seed: int) -> list[BoolArray]:
        """Returns bool [N] each, rows that a fit of their own leaves out: a fifth of the shapes; of
        a family of `_SHAPES` each fifth in turn.
        """
        place = self.shapes()
        fold = np.random.default_rng(seed).integers(_FOLDS, size=int(place.max()) + 1)[place]
        return [fold == part for part in range(_FOLDS if self.family in _SHAPES else 1)]

    def shape_left_out_s(self, seed: int) -> FloatArray:
        """Returns float64 [N], the seconds of the rows of `held_shapes` by the fit without them;
        NaN elsewhere.
        """
        seconds = np.full(len(self.table), np.nan)
        for held in self.held_shapes(seed):
            seconds[held] = self.predicted_s(self.fit_part(~held, seed=seed), held)
        return seconds

    def shapes(self) -> NDArray[np.intp]:
        """Returns int [N], the shape of each row, on whatever device and in whatever type."""
        names = _SHAPES.get(self.family, tuple(self.table.columns))
        sizes = [self.table.columns[name] for name in names]
        whole = [column for column in sizes if np.issubdtype(column.dtype, np.integer)]
        return np.unique(np.stack(whole, axis=1), axis=0, return_inverse=True)[1].reshape(-1)

    def errors(self, logs: FloatArray, groups: TextArray, group: str) -> LogErrors | None:
        """Returns the ends of a group's errors among R held-out rows of one device; of a family of
        `_SHAPES` the widest of its own and of all groups', as a type has few shapes. None = there
        are no such rows, or too few.

        Args:
            logs: float64 [R], log(measured / predicted).
            groups: text [R].
        """
        own = logs[groups == group]
        if self.family not in _SHAPES or not len(own):
            return LogErrors.of(own)
        return LogErrors.widest([LogErrors.of(own), LogErrors.of(logs)])


def host_timed(table: GpuKernelTable, work: KernelWork) -> dict[str, BoolArray]:
    """Returns device, software, version and type -> bool [N], the rows of products, expert layers,
    latent and linear attention that were timed eagerly: none of the small ones is faster than the
    host launches. Of whole blocks only those that do not hide it.
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


def read_measured(folder: Path, family: Family) -> Measured:
    """Returns the rows of a family that a fit may use.

    Left out are: faults that the data's README names (`FAULTS`); products of a type that take 40 us
    however small they are (vLLM's in blocks of fp8 55 to 170 us: the host was timed, not the GPU),
    expert layers, attention and steps of linear attention that take 90 us, whole blocks 260 us;
    rows below their floor;
    and all of a device and software that has more than a few of those.

    Raises:
        DataError: the file is missing or lacks a column.
        DeviceError: the registry does not know a device, or lacks a number of it.
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
    table = table[kept]
    return Measured(
        family,
        table,
        work[kept],
        whose_kernels(family, table.columns, table.software),
        error_groups(family, table.columns),
        reasons,
    )
