"""Simulated addition of a GPU by a sweep: a measured GPU without any fit is the new one."""

from __future__ import annotations

import hashlib
import io
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.analytic.gpu_kernels.calls import Family, Gemm
from cdmpp.analytic.gpu_kernels.families import columns_of
from cdmpp.analytic.gpu_kernels.measured import Measured, read_measured
from cdmpp.analytic.gpu_kernels.table import FILES
from cdmpp.analytic.operators.device import Hardware
from cdmpp.analytic.operators.errors import judged_as
from cdmpp.analytic.operators.intervals import chips_of
from cdmpp.analytic.operators.model import OperatorModel, fit_family, known_hardware
from cdmpp.analytic.operators.tables import OperatorTable
from cdmpp.analytic.operators.training import FitOptions, read_training_tables
from cdmpp.analytic.sweep.calls import Fp32Operator, SweepCall, sweep_calls
from cdmpp.analytic.sweep.correction import CorrectionOptions, fit_correction, left_out_logs
from cdmpp.analytic.sweep.inputs import kernel_inputs, operator_inputs
from cdmpp.analytic.sweep.rules import (
    MATMUL,
    ROW_WISE,
    RULES_FILE,
    FamilyRules,
    SweepRules,
    corrected_family,
    operator_family,
    widened,
)
from cdmpp.arrays import BoolArray, FloatArray, IntArray, TextArray
from cdmpp.cli.shared.options import command_line, parse_seeds
from cdmpp.files.atomic import make_folder, sha256_file, write_bytes
from cdmpp.files.stored import from_json, to_json
from cdmpp.report.page import Page, Section, page_markdown
from cdmpp.report.tables import plain_table
from lab.journal import Journal
from lab.pages import write_page
from lab.paths import ROOT, SHARED_DATA
from lab.stamp import stamp

logger = logging.getLogger(__name__)

#: Version of the cells in the journal: cells of other versions are recomputed.
VERSION = 2
_KERNELS: tuple[Family, ...] = ("prefill", "decode", "gemm")
_OPERATORS = {MATMUL: ("matmul",), ROW_WISE: ("elementwise", "softmax", "ln")}
_FAMILIES = (*_KERNELS, *_OPERATORS)
#: Maximum distance of a call of the sweep and the row that replaces it: octaves, summed over sizes.
_FARTHEST = 2.0
#: Maximum number of test rows per device and family.
_MOST_JUDGED = 6000
#: Candidates for the correction.
_OPTIONS: tuple[CorrectionOptions, ...] = (
    CorrectionOptions(trees=0),
    CorrectionOptions(depth=3, least_rows=10),
    CorrectionOptions(least_rows=10),
    CorrectionOptions(),
)
_WIDENINGS = np.round(np.arange(1.0, 4.01, 0.1), 1)
_COVERAGE, _GOAL = 0.9, 0.06


@dataclass(frozen=True)
class Rows:
    """Measured calls of one corrected family, with predictions of fits without their device.

    Attributes:
        family: its name.
        device: text [N], label.
        kind: text [N]; a kind is corrected if the sweep measured it.
        group: text [N], errors are pooled by it.
        measured_s, floor_s: float64 [N].
        predicted_s: float64 [S, N], one row per seed.
        inputs: float64 [S, N, F], of the correction.
        place: float64 [N, D], log2 of the sizes.
        may_stand: bool [N], whether a row can replace a call of the sweep.
        chip: label -> labels that are held out with it.
    """

    family: str
    device: TextArray
    kind: TextArray
    group: TextArray
    measured_s: FloatArray
    floor_s: FloatArray
    predicted_s: FloatArray
    inputs: FloatArray
    place: FloatArray
    may_stand: BoolArray
    chip: Mapping[str, Sequence[str]]

    @property
    def devices(self) -> list[str]:
        return [str(label) for label in np.unique(self.device)]


@dataclass(frozen=True)
class Outcome:
    """Errors for one family of one device, with and without the sweep.

    Attributes:
        before, factor, after: (mean, median) error, fractions, means over the seeds: unseen device,
            single factor, correction.
    """

    family: str
    device: str
    before: tuple[float, float]
    factor: tuple[float, float]
    after: tuple[float, float]


def experiment(
    data: Path = ROOT / "data" / "gpu-kernels",
    neusight: Path = SHARED_DATA / "neusight",
    seeds: str = "0,1,2",
    write: bool = False,
) -> None:
    """Adds every measured GPU by the sweep, held out in turn, and writes the page. With `write`,
    also writes the packaged correction rules, chosen on all devices.
    """
    wanted = parse_seeds(seeds)
    journal = Journal(ROOT / "runs" / "device-add-gpu" / "cells.jsonl")
    outcomes: list[Outcome] = []
    rules: dict[str, FamilyRules] = {}
    for family in _FAMILIES:
        key = f"{family} {wanted} {VERSION}"
        cell = journal.cell(key, partial(_judged, data, neusight, family, wanted))
        outcomes += [from_json(Outcome, one) for one in cell["outcomes"]]
        rules[family] = from_json(FamilyRules, cell["rules"])
    if write:
        SweepRules(rules).save(ROOT / "cdmpp" / "pretrained" / "gpu_sweep" / RULES_FILE)
    hashes = {FILES[family]: sha256_file(data / FILES[family]) for family in _KERNELS}
    for part in ("train", "test"):
        for path in sorted((neusight / part).glob("*.csv.gz")):
            hashes[f"neusight/{part}/{path.name}"] = sha256_file(path)
    page = _page(outcomes, rules)
    write_page("device-add-gpu", page, {}, stamp(command_line(), data=hashes))
    print(page_markdown(page), end="")


class Judged:
    """A family's rows, with the rows that replace the sweep on each device."""

    def __init__(self, rows: Rows, calls: Sequence[SweepCall]) -> None:
        self.rows = rows
        self.calls = [call for call in calls if corrected_family(call) == rows.family]
        rng = np.random.default_rng(0)
        self.sweeps: dict[str, IntArray] = {}
        self.judged: dict[str, IntArray] = {}
        for label in rows.devices:
            self.sweeps[label] = chosen = self._standing(label)
            rest = np.setdiff1d(np.flatnonzero(rows.device == label), chosen)
            self.judged[label] = np.sort(rng.permutation(rest)[:_MOST_JUDGED])
        self._after: dict[tuple[str, int, int], FloatArray] = {}
        self._held: dict[tuple[str, int, int], FloatArray] = {}

    def _standing(self, label: str) -> IntArray:
        """Returns the rows that replace a device's sweep."""
        rows = self.rows
        kinds, places = _places(rows.family, self.calls)
        own = np.flatnonzero((rows.device == label) & rows.may_stand)
        found: set[int] = set()
        for kind in np.unique(kinds):
            of_kind = own[rows.kind[own] == kind]
            for place in places[kinds == kind] if len(of_kind) else ():
                distance = np.abs(rows.place[of_kind] - place).sum(axis=1)
                nearest = int(np.argmin(distance))
                if distance[nearest] <= _FARTHEST:
                    found.add(int(of_kind[nearest]))
        return np.array(sorted(found), np.int64)

    def logs(self, label: str, seed: int) -> FloatArray:
        """Returns float64 [N], log(measured / predicted) of every row without a correction."""
        return np.asarray(np.log(self.rows.measured_s / self.rows.predicted_s[seed]), np.float64)

    def after(self, label: str, seed: int, option: int) -> FloatArray:
        """Returns float64 [J], log(measured / corrected) of a device's test rows."""
        key = (label, seed, option)
        if key not in self._after:
            rows, swept, judged = self.rows, self.sweeps[label], self.judged[label]
            logs, inputs = self.logs(label, seed), rows.inputs[seed]
            fit = fit_correction(inputs[swept], logs[swept], _OPTIONS[option], seed=seed)
            least = np.log(rows.measured_s[judged] / rows.floor_s[judged])
            self._after[key] = np.minimum(logs[judged] - fit.logs(inputs[judged]), least)
        return self._after[key]

    def held(self, label: str, seed: int, option: int) -> FloatArray:
        """Returns float64 [C], log(measured / corrected) of the sweep, each eighth held out."""
        key = (label, seed, option)
        if key not in self._held:
            swept = self.sweeps[label]
            self._held[key] = left_out_logs(
                self.rows.inputs[seed][swept],
                self.logs(label, seed)[swept],
                _OPTIONS[option],
                seed=seed,
            )
        return self._held[key]

    def in_sweep(self, label: str) -> BoolArray:
        """Returns bool [J], whether the sweep measured the kind of a test row."""
        known = np.unique(self.rows.kind[self.sweeps[label]])
        return np.isin(self.rows.kind[self.judged[label]], known)

    def usable(self, labels: Sequence[str]) -> list[str]:
        """Returns the devices with rows that replace the sweep."""
        return [label for label in labels if len(self.sweeps[label]) and self.in_sweep(label).any()]

    def option(self, labels: Sequence[str]) -> int:
        """Returns the index of the options with the smallest mean log of the mean error over
        devices, seed 0.
        """
        scores = [
            np.mean([
                np.log(_errors(self.after(label, 0, option)[self.in_sweep(label)])[0])
                for label in self.usable(labels)
            ])
            for option in range(len(_OPTIONS))
        ]  # fmt: skip
        return int(np.argmin(scores))

    def covered(self, label: str, option: int, widening: float) -> float:
        """Returns the share of test rows inside their intervals, kinds of the sweep, seed 0."""
        swept, inside = self.sweeps[label], self.in_sweep(label)
        judged = self.judged[label][inside]
        logs = self.after(label, 0, option)[inside]
        held, groups = self.held(label, 0, option), self.rows.group[swept]
        found = np.zeros(len(logs), np.bool_)
        for group in np.unique(self.rows.group[judged]):
            errors = widened(held[groups == group], held, widening)
            rows = self.rows.group[judged] == group
            if errors is not None:
                found[rows] = errors.holds(logs[rows])
        return float(found.mean())

    def widening(self, labels: Sequence[str], option: int) -> float:
        """Returns the smallest widening that covers 90 % on the mean over devices, seed 0."""
        for one in _WIDENINGS:
            covered = [self.covered(label, option, one) for label in self.usable(labels)]
            if np.mean(covered) >= _COVERAGE:
                return float(one)
        return float(_WIDENINGS[-1])

    def rules(self, labels: Sequence[str]) -> FamilyRules:
        """Returns the rules chosen on these devices."""
        option = self.option(labels)
        return FamilyRules(_OPTIONS[option], self.widening(labels, option))

    def outcome(self, label: str) -> Outcome:
        """Returns a device's errors with the rules chosen on the other devices."""
        rows, judged, swept = self.rows, self.judged[label], self.sweeps[label]
        others = [one for one in rows.devices if one not in rows.chip[label]]
        option = self.option(others)
        inside, seeds = self.in_sweep(label), range(len(rows.predicted_s))
        logs = [self.logs(label, seed) for seed in seeds]
        after = [self.after(label, seed, option)[inside] for seed in seeds]
        before = [own[judged][inside] for own in logs]
        factor = [own[judged][inside] - np.median(own[swept]) for own in logs]
        errors = (_mean([_errors(one) for one in line]) for line in (before, factor, after))
        return Outcome(rows.family, label, *errors)


def _judged(data: Path, neusight: Path, family: str, seeds: Sequence[int]) -> dict[str, Any]:
    """Returns the outcomes and rules of a family as JSON values."""
    if family in _KERNELS:
        rows = _kernel_rows(read_measured(data, family), seeds)  # type: ignore[arg-type]
    else:
        tables = read_training_tables(neusight / "train", neusight / "test")
        rows = _operator_rows(tables, _OPERATORS[family], seeds)
    logger.info("%s: %d rows", family, len(rows.device))
    judged = Judged(rows, sweep_calls())
    outcomes = [to_json(judged.outcome(label)) for label in rows.devices]
    return {"outcomes": outcomes, "rules": to_json(judged.rules(rows.devices))}


def _kernel_rows(measured: Measured, seeds: Sequence[int]) -> Rows:
    columns, family = measured.table.columns, measured.family
    predicted = np.stack([
        _kept(f"{family}-{seed}", measured.table.latency_s, partial(measured.left_out_s, seed))
        for seed in seeds
    ])  # fmt: skip
    kind = columns["dtype"].astype(np.str_)
    may_stand = np.ones(len(kind), np.bool_)
    if family != "gemm":
        kind = np.char.add(np.char.add(kind, "/"), columns["kv_dtype"].astype(np.str_))
        may_stand = columns["window"] == 0
    return Rows(
        family, measured.table.device, kind, measured.groups, measured.table.latency_s,
        measured.work.floor_s, predicted,
        np.stack([kernel_inputs(measured.work, own) for own in predicted]),
        _log_sizes(columns, _SIZES[family]), np.asarray(may_stand, np.bool_),
        {label: (label,) for label in measured.devices},
    )  # fmt: skip


def _operator_rows(
    tables: Mapping[str, OperatorTable], families: Sequence[str], seeds: Sequence[int]
) -> Rows:
    table = OperatorTable.concatenate([tables[family] for family in families])
    labels = [str(label) for label in np.unique(table.device)]
    known: Mapping[str, Hardware] = known_hardware(labels)
    chips = {label: chip for chip in chips_of(table, known) for label in chip}
    parts = [_left_out_s(tables[family], family, known, chips, seeds) for family in families]
    predicted = np.concatenate(parts, axis=1)
    operators = table.operators
    family = operator_family(str(operators.kind[0]))
    names = _SIZES[family]
    return Rows(
        family, table.device, operators.kind,
        np.array([judged_as(str(kind)) for kind in operators.kind]), table.latency_s,
        np.full(len(table), 1e-9), predicted,
        np.stack([operator_inputs(operators, own) for own in predicted]),
        _log_sizes({name: getattr(operators, name) for name in names}, names),
        np.ones(len(table), np.bool_), chips,
    )  # fmt: skip


def _left_out_s(
    table: OperatorTable,
    family: str,
    known: Mapping[str, Hardware],
    chips: Mapping[str, Sequence[str]],
    seeds: Sequence[int],
) -> FloatArray:
    """Returns float64 [S, N], predicted seconds of every operator by a fit without its chip."""

    def predict(seed: int) -> FloatArray:
        seconds = np.empty(len(table))
        for chip in set(map(tuple, chips.values())):
            own = np.isin(table.device, chip)
            if own.any():
                most = FitOptions().most_rows
                fit = fit_family(table[~own], family, known, seed=seed, most_rows=most)
                model = OperatorModel({family: (fit,)}, octaves, dict(known), {})
                rows = table[own]
                seconds[own] = model.predict(rows.operators, rows.device, known)
        return seconds

    octaves = OperatorModel.load(OperatorModel.packaged_path()).octaves
    return np.stack(
        [_kept(f"{family}-{seed}", table.latency_s, partial(predict, seed)) for seed in seeds]
    )


def _kept(name: str, measured_s: FloatArray, predict: Callable[[], FloatArray]) -> FloatArray:
    """Returns cached predictions for the same measurements, or computes and stores them."""
    digest = hashlib.sha256(measured_s.tobytes()).hexdigest()[:16]
    path = ROOT / "runs" / "device-add-gpu" / f"{name}-{digest}.npy"
    if not path.is_file():
        make_folder(path.parent, what="kept predictions")
        logger.info("predicting devices left out: %s", name)
        buffer = io.BytesIO()
        np.save(buffer, predict())
        write_bytes(path, buffer.getvalue())
    return np.asarray(np.load(path), np.float64)


_SIZES: Mapping[str, Sequence[str]] = {
    "gemm": ("m", "n", "k"),
    "prefill": ("batch", "length", "heads", "kv_heads", "head_size"),
    "decode": ("batch", "context", "heads", "kv_heads", "head_size"),
    MATMUL: ("batch", "m", "n", "k"),
    ROW_WISE: ("rows", "cols"),
}


def _places(family: str, calls: Sequence[SweepCall]) -> tuple[TextArray, FloatArray]:
    """Returns the kinds (text [C]) and log2 sizes (float64 [C, D]) of calls of a family."""
    if family in _KERNELS:
        columns = columns_of(calls)  # type: ignore[arg-type]
        kind = columns["dtype"].astype(np.str_)
        if not isinstance(calls[0], Gemm):
            kind = np.char.add(np.char.add(kind, "/"), columns["kv_dtype"].astype(np.str_))
        return kind, _log_sizes(columns, _SIZES[family])
    own = [call for call in calls if isinstance(call, Fp32Operator)]
    names = _SIZES[family]
    sizes = {name: np.array([call.sizes[name] for call in own]) for name in names}
    return np.array([call.kind for call in own]), _log_sizes(sizes, names)


def _log_sizes(columns: Mapping[str, np.ndarray], names: Sequence[str]) -> FloatArray:
    return np.stack([np.log2(np.asarray(columns[name], np.float64)) for name in names], axis=1)


def _errors(logs: FloatArray) -> tuple[float, float]:
    """Returns (mean, median) absolute error as fractions, from log(measured / predicted)."""
    error = np.abs(np.exp(-logs) - 1.0)
    return float(error.mean()), float(np.median(error))


def _mean(parts: Sequence[tuple[float, float]]) -> tuple[float, float]:
    first, second = np.mean(np.array(parts), axis=0)
    return float(first), float(second)


def _page(outcomes: Sequence[Outcome], rules: Mapping[str, FamilyRules]) -> Page:
    means = []
    for family in dict.fromkeys(one.family for one in outcomes):
        own = [one for one in outcomes if one.family == family]
        columns = (
            [one.before for one in own],
            [one.factor for one in own],
            [one.after for one in own],
        )
        reached = sum(one.after[0] <= _GOAL for one in own)
        rule = rules[family]
        fit = "trees" if rule.options.trees else "one factor"
        means.append([
            family, str(len(own)), *(_cell(_mean(column)) for column in columns),
            f"{reached} of {len(own)}", f"{fit}, leaves of {rule.options.least_rows}",
            f"{rule.widening:g}",
        ])  # fmt: skip
    titles = ["kernels", "devices", "before", "one factor", "after", "mean error at most 6 %",
              "correction", "widening"]  # fmt: skip
    lead = (
        "A measured GPU that no fit knows plays the new one: its rows nearest to the calls of "
        "`cdmpp device add --sweep` are the sweep, all others are judged. Cells: mean / median "
        "absolute error in percent, mean over the seeds."
    )
    section = Section("By family, mean over the devices", tables=[plain_table(titles, means)])
    return Page("Adding a GPU with a five-minute sweep", lead, [section], notes=_NOTES)


_NOTES = (
    "Simulation: no GPU was there. The rows were measured by serving frameworks and NeuSight; a "
    "sweep of a user's own runs torch's kernels, whose attention and fp8 products are others, and "
    "corrects the predictions for these.",
    "Before: a fit without the device. One factor: times the median ratio of the family's sweep. "
    "After: trees on the ratios of the sweep. What is fitted how (trees or one factor, size of "
    "leaves) and the widening of the intervals are chosen on the other devices, seed 0.",
    f"A call of the sweep has a row where one of its kind is at most {_FARTHEST:g} octaves away, "
    "summed over its sizes; each row stands once. Rows of the sweep are not judged; of others at "
    f"most {_MOST_JUDGED} a device and family, drawn once.",
    "The base of the other devices' corrections has seen the device that is left out: it decides "
    "nothing but the options and the widening.",
    "Operators are NeuSight's in fp32, a chip left out with its other boards.",
)


def _cell(error: tuple[float, float]) -> str:
    return f"{100 * error[0]:.1f} / {100 * error[1]:.1f}"
