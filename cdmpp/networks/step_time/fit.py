"""Fits the step-time model; its intervals are from left-out families of networks and devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.arrays import FloatArray, IntArray
from cdmpp.conformal import owner_quantile
from cdmpp.devices.registry import get_device
from cdmpp.errors import DataError
from cdmpp.files.atomic import write_atomic
from cdmpp.networks.kernels.torch_kernels import TorchKernels, torch_kernels
from cdmpp.networks.step_time.graphs import ArchitectureGraphs
from cdmpp.networks.step_time.inputs import StepQuestion, StepTimeInputs
from cdmpp.networks.step_time.macs_baseline import macs_factors
from cdmpp.networks.step_time.memory import memory_factors
from cdmpp.networks.step_time.model import (
    KernelRanges,
    StepTimeModel,
    StepWidths,
    mean_log_seconds,
    way_of,
)
from cdmpp.networks.step_time.network import StepNetwork, fit_network
from cdmpp.networks.step_time.runs import MeasuredRun

COVERAGE = 0.9
#: Quantile of the runs' seconds below which a prediction is out of distribution.
_SHORTEST = 0.001


@dataclass(frozen=True)
class StepFitOptions:
    """Options of fitting the step-time model.

    Attributes:
        seeds: number of networks whose logs are averaged.
        epochs: number of passes over the runs.
        batch: runs per step of the optimiser.
        rate: maximum learning rate.
        folds: number of folds of families for the intervals.
    """

    seeds: int = 3
    epochs: int = 25
    batch: int = 32
    rate: float = 1e-2
    folds: int = 5


@dataclass(frozen=True, eq=False)
class MeasuredSteps:
    """Measured runs with a graph, and the model's inputs.

    Attributes:
        runs: the runs.
        inputs: inputs of the runs, in the same order.
        log_s: float64 [N], log seconds.
        untraced: (architecture, size) -> number of runs left out without a graph.
    """

    runs: Sequence[MeasuredRun]
    inputs: StepTimeInputs
    log_s: FloatArray
    untraced: Mapping[tuple[str, int], int]


@dataclass(frozen=True, eq=False)
class LeftOut:
    """Cross-validated predictions of runs.

    Attributes:
        by_seed: seed -> float64 [N], log seconds with the run's family left out.
        device: float64 [N], log seconds with the run's family and device left out; NaN = not
            computed.
    """

    by_seed: Mapping[int, FloatArray]
    device: FloatArray

    @property
    def mean(self) -> FloatArray:
        """Mean over the seeds, as in the shipped model."""
        return np.asarray(np.mean(list(self.by_seed.values()), axis=0))


#: (description, steps done, number of steps) -> None.
OnFit = Callable[[str, int, int], None]


def measured_steps(runs: Sequence[MeasuredRun], graphs: ArchitectureGraphs) -> MeasuredSteps:
    """Returns the runs on GPUs whose architectures have graphs.

    Raises:
        DataError: there is no such run.
    """
    devices = {name: get_device(name) for name in {run.device for run in runs}}
    tables: list[TorchKernels] = []
    places: dict[Any, int] = {}
    untraced: dict[tuple[str, int], int] = {}
    kept, questions = [], []
    names = sorted(name for name, spec in devices.items() if spec.kind == "gpu")
    for run in runs:
        if run.device not in names:
            continue
        if (run.arch, run.size) not in graphs:
            untraced[run.arch, run.size] = untraced.get((run.arch, run.size), 0) + 1
            continue
        execution = run.execution
        key = run.arch, run.size, run.batch, execution
        if key not in places:
            places[key] = len(tables)
            graph = graphs.graph(run.arch, run.size, run.batch)
            tables.append(torch_kernels(graph, execution))
        kept.append(run)
        questions.append(StepQuestion(places[key], names.index(run.device), execution, run.torch))
    if not kept:
        raise DataError("no run on a GPU of a traced architecture")
    inputs = StepTimeInputs(tables, [devices[name] for name in names], questions)
    log_s = np.log(np.array([run.step_s for run in kept]))
    return MeasuredSteps(kept, inputs, log_s, untraced)


def family_folds(runs: Sequence[MeasuredRun], folds: int, *, seed: int) -> IntArray:
    """Returns int64 [N], the fold of each run; a family is in one fold, folds are balanced."""
    names, counts = np.unique([run.family for run in runs], return_counts=True)
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(names))
    order = order[np.argsort(-counts[order], kind="stable")]
    sizes = np.zeros(folds)
    fold: dict[str, int] = {}
    for place in order:
        smallest = int(np.argmin(sizes))
        fold[str(names[place])] = smallest
        sizes[smallest] += counts[place]
    return np.array([fold[run.family] for run in runs], np.int64)


def run_groups(runs: Sequence[MeasuredRun]) -> IntArray:
    """Returns int64 [N], the group of each run. Runs of a group have the same step, device and
    torch, and differ in the execution.
    """
    places: dict[tuple[object, ...], int] = {}
    return np.array(
        [
            places.setdefault(
                (run.arch, run.size, run.batch, run.device, run.torch, run.execution.mode),
                len(places),
            )
            for run in runs
        ],
        np.int64,
    )


def fit_networks(
    steps: MeasuredSteps,
    chosen: IntArray,
    options: StepFitOptions,
    *,
    seeds: Sequence[int],
) -> dict[str, StepNetwork]:
    """Returns one network per seed, fitted to the chosen runs."""
    return {
        f"seed{seed}": fit_network(
            steps.inputs, steps.log_s, chosen, run_groups(steps.runs), seed=seed,
            epochs=options.epochs, batch=options.batch, rate=options.rate,
        )
        for seed in seeds
    }  # fmt: skip


def left_out_logs(
    steps: MeasuredSteps,
    options: StepFitOptions,
    *,
    seed: int,
    device: str | None = None,
    keep: Path | None = None,
    on_fit: OnFit | None = None,
) -> FloatArray:
    """Returns float64 [N], log seconds predicted with the run's family left out; NaN if a run was
    not predicted.

    Args:
        seed: seed of the networks; the folds do not depend on it.
        device: a GPU to leave out too, whose runs are predicted; None = all runs are predicted.
        keep: folder in which the predictions of each fold are stored for resuming; None = not
            stored.
    """
    parts = family_folds(steps.runs, options.folds, seed=0)
    is_on = np.array([device is None or run.device == device for run in steps.runs])
    found = np.full(len(steps.runs), np.nan)
    for part in range(options.folds):
        judged = np.flatnonzero((parts == part) & is_on)
        path = None if keep is None else keep / f"{device or 'all'}-{part}-{seed}.npy"
        if path is None or not path.is_file():
            fit = np.flatnonzero((parts != part) & (~is_on if device else True))
            networks = fit_networks(steps, fit, options, seeds=[seed])
            logs = mean_log_seconds(list(networks.values()), steps.inputs, judged)
            if path is not None:
                _write_array(path, logs)
        found[judged] = logs if path is None else np.load(path, allow_pickle=False)
        if on_fit is not None:
            without = f"families left out{f' and {device}' if device else ''}, seed {seed}"
            on_fit(without, part + 1, options.folds)
    return found


def _write_array(path: Path, values: FloatArray) -> None:
    def write(place: Path) -> None:
        with place.open("wb") as file:
            np.save(file, values, allow_pickle=False)

    write_atomic(path, write)


def fit_step_time(
    steps: MeasuredSteps,
    graphs: ArchitectureGraphs,
    options: StepFitOptions,
    *,
    keep: Path | None = None,
    on_fit: OnFit | None = None,
) -> tuple[StepTimeModel, LeftOut]:
    """Returns the model fitted to all runs, and the cross-validated predictions from which its
    intervals are calibrated.

    Args:
        keep: see `left_out_logs`.
    """
    seeds = range(options.seeds)
    known = {
        seed: left_out_logs(steps, options, seed=seed, keep=keep, on_fit=on_fit) for seed in seeds
    }
    labels = sorted({run.device for run in steps.runs})
    unseen = np.full(len(steps.runs), np.nan)
    for label in labels if len(labels) > 1 else []:
        logs = left_out_logs(steps, options, seed=0, device=label, keep=keep, on_fit=on_fit)
        unseen = np.where(np.isfinite(logs), logs, unseen)
    left_out = LeftOut(known, unseen)
    every = np.arange(len(steps.runs))
    networks = fit_networks(steps, every, options, seeds=seeds)
    known_widths = _widths(steps, left_out.mean)
    widths = StepWidths(known_widths, _unseen_widths(steps, known_widths, unseen))
    facts = {
        "runs": len(steps.runs), "architectures": sorted({run.arch for run in steps.runs}),
        "families": len({run.family for run in steps.runs}), "coverage": COVERAGE,
        "shortest_s": float(np.exp(np.quantile(steps.log_s, _SHORTEST))),
        "macs_factors": macs_factors(steps.runs, every),
        "left_out_median_ape": _median_ape(steps, left_out.mean),
        "left_out_device_median_ape": _median_ape(steps, unseen),
    }  # fmt: skip
    memory = memory_factors(steps.runs, graphs)
    ranges = KernelRanges.of(steps.inputs.rows)
    return StepTimeModel(networks, labels, widths, memory, ranges, facts), left_out


def _median_ape(steps: MeasuredSteps, logs: FloatArray) -> float | None:
    error = np.abs(np.expm1(logs - steps.log_s))
    error = error[np.isfinite(error)]
    return float(np.median(error)) if len(error) else None


def _unseen_widths(
    steps: MeasuredSteps, known: Mapping[str, float], unseen: FloatArray
) -> dict[str, float]:
    """Returns way -> half width on a left-out device. A way measured on only one device gets its
    width on known devices times the median ratio of the other ways.
    """
    measured: dict[str, set[str]] = {}
    for run in steps.runs:
        measured.setdefault(way_of(run.execution), set()).add(run.device)
    found = {way: width for way, width in _widths(steps, unseen).items() if len(measured[way]) > 1}
    wider = float(np.median([width / known[way] for way, width in found.items()] or [1.0]))
    return {way: found.get(way, wider * width) for way, width in known.items()}


def _widths(steps: MeasuredSteps, logs: FloatArray) -> dict[str, float]:
    """Returns way -> half width that covers `COVERAGE` of the runs, with equal weight per
    architecture.
    """
    ways = np.array([way_of(run.execution) for run in steps.runs])
    names = np.array([run.arch for run in steps.runs])
    error = np.abs(logs - steps.log_s)
    found = {}
    for way in np.unique(ways):
        rows = np.flatnonzero((ways == way) & np.isfinite(error))
        if not len(rows):
            continue
        owner = np.unique(names[rows], return_inverse=True)[1].astype(np.int64)
        found[str(way)] = owner_quantile(error[rows], owner, COVERAGE)
    return found


def left_out_columns(steps: MeasuredSteps, left_out: LeftOut) -> dict[str, Any]:
    """Returns the columns of a table of measured and cross-validated seconds, one row per run."""
    runs = steps.runs
    columns: dict[str, Any] = {
        "arch": [run.arch for run in runs], "family": [run.family for run in runs],
        "device": [run.device for run in runs], "torch": [run.torch for run in runs],
        "way": [way_of(run.execution) for run in runs],
        "size": [run.size for run in runs], "batch": [run.batch for run in runs],
        "measured_s": np.exp(steps.log_s),
    }  # fmt: skip
    columns |= {f"seed{seed}_s": np.exp(logs) for seed, logs in left_out.by_seed.items()}
    return columns | {"device_left_out_s": np.exp(left_out.device)}
