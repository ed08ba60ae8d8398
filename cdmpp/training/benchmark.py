"""A grid of training runs, seeds x models, that continues where it was stopped."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cdmpp.config import dump_text
from cdmpp.datasets.samples import Samples
from cdmpp.training.options import SplitKind, TrainOptions
from cdmpp.training.run import ORACLE, train_run

#: suite name -> kind of split
SUITES: dict[str, SplitKind] = {"by-task": "task", "by-network": "network"}

CellProgress = Callable[[str, dict[str, Any] | None], None]


@dataclass(frozen=True)
class GridResult:
    """Test metrics of every cell.

    Attributes:
        lines: line name -> one metrics object a seed, in the order of `seeds`; with `by_device`.
        seeds: the seeds.
        splits: for each seed the facts of its split.
        parts: for each seed the sizes of its parts.
        training_s: line name -> seconds of training, one a seed.
        reused: cells that had been finished before.
    """

    lines: dict[str, list[dict[str, Any]]]
    seeds: tuple[int, ...]
    splits: list[dict[str, Any]]
    parts: list[dict[str, Any]]
    training_s: dict[str, list[float]]
    reused: int


def run_grid(
    options: TrainOptions,
    samples: Samples,
    seeds: Sequence[int],
    runs_dir: Path,
    *,
    on_progress: CellProgress | None = None,
) -> GridResult:
    """Trains and judges `options.model` and `options.baselines` with every seed.

    A seed decides the split and the training. Each cell is a run folder `runs_dir/seedN-KIND`; a
    finished one with the same options and data is not run again.

    Raises:
        UsageError: a cell's folder holds a run with other options.
    """
    kinds = [options.model, *(kind for kind in options.baselines if kind != options.model)]
    lines: dict[str, list[dict[str, Any]]] = {kind: [] for kind in [*kinds, ORACLE]}
    training_s: dict[str, list[float]] = {kind: [] for kind in kinds}
    splits: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    reused = 0
    for seed in seeds:
        metrics: dict[str, Any] = {}
        for kind in kinds:
            cell = replace(options, model=kind, baselines=(), seed=seed)
            run_dir = runs_dir / f"seed{seed}-{kind}"
            finished = _finished(run_dir, cell, samples)
            reused += finished is not None
            metrics = (
                finished
                or train_run(
                    cell, samples, run_dir, on_progress=_with_seed(on_progress, seed)
                ).metrics
            )
            lines[kind].append(metrics["test"][kind])
            training_s[kind].append(metrics["training_s"])
        lines[ORACLE].append(metrics["test"][ORACLE])
        splits.append(metrics["split"])
        parts.append(metrics["parts"])
    return GridResult(lines, tuple(seeds), splits, parts, training_s, reused)


def _finished(run_dir: Path, options: TrainOptions, samples: Samples) -> dict[str, Any] | None:
    """Returns the metrics of a finished cell with these options and data, else None."""
    try:
        config = (run_dir / "config.yaml").read_text("utf-8")
        metrics: dict[str, Any] = json.loads((run_dir / "metrics.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    is_same = config == dump_text(options) and metrics["data_hash"] == samples.programs.data_hash
    return metrics if is_same else None


def _with_seed(on_progress: CellProgress | None, seed: int) -> CellProgress | None:
    if on_progress is None:
        return None
    return lambda what, progress: on_progress(f"seed {seed}: {what}", progress)
