"""How well models predict and rank programs of MetaSchedule on an A100, workloads held out.

The 13 workloads of `data/metaschedule-a100` are shared out into folds by the seed; each is judged
by models that never saw it.

- `KIND`: trained on the shipped GPU records (`data/ansor-gpu`) and the A100's other workloads.
- `KIND, no A100`: trained on the former alone, so that the A100 is a device that nobody measured.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.config import load_config
from cdmpp.datasets.cache import load_samples
from cdmpp.datasets.extraction.extracted import read_manifest
from cdmpp.datasets.extraction.merge import merged_folder
from cdmpp.datasets.judge import judge, judged, oracle_task_median
from cdmpp.datasets.samples import Samples
from cdmpp.datasets.selection import cap_programs, of_devices
from cdmpp.datasets.sources import extracted_folder
from cdmpp.datasets.splits import split, uniform_draw
from cdmpp.files.atomic import make_folder
from cdmpp.metrics import mean_and_interval, top_k_score
from cdmpp.text import markdown_table, percent_text, seconds_text
from cdmpp.training.options import TrainOptions
from cdmpp.training.run import new_model
from lab.pages import filled, write_page
from lab.paths import ROOT
from lab.stamp import PROGRAMS, stamp

NAME = "metaschedule-a100"
DEVICE = "a100"
KINDS = ("ensemble", "gbdt", "segment-mlp")
FOLDS = 4
BEST_OF = (1, 5, 10, 64)
#: Most programs a device that train: the records of a device are many of few workloads.
MOST_PROGRAMS = 1000
#: Of every training: what a core does in a minute.
SETTINGS = (
    "gbdt.threads=1", "ensemble.trees.threads=1", "ensemble.transformer.loop.epochs=12",
    "ensemble.transformer.network.members=1",
)  # fmt: skip


def experiment(
    seeds: tuple[int, ...] = (0, 1, 2),
    kinds: tuple[str, ...] = KINDS,
    cache: Path = ROOT / "cache",
    work: Path = ROOT / "runs" / NAME,
) -> None:
    """Trains what is missing, and writes the page."""
    make_folder(work, what="predictions")
    folders = [
        extracted_folder(ROOT / "data" / name, None, cache_dir=cache)
        for name in (NAME, "ansor-gpu")
    ]
    samples = load_samples(merged_folder(folders, cache))
    a100 = of_devices(samples, [DEVICE])
    others = of_devices(samples, [s.name for s in samples.devices if s.name != DEVICE])
    lines: dict[str, dict[int, NDArray[np.float64]]] = {}
    for seed in seeds:
        for line, predicted_s in _predictions(a100, others, seed, kinds, work):
            lines.setdefault(line, {})[seed] = predicted_s
    lines["oracle-task-median"] = dict.fromkeys(seeds, oracle_task_median(a100))
    _write(a100, lines, read_manifest(folders[0]))


def folds_of(samples: Samples, seed: int) -> NDArray[np.int64]:
    """Returns int64 [N], the fold in which each sample's workload is judged."""
    tasks = np.unique(samples.task_id)
    order = sorted(tasks, key=lambda task: uniform_draw(str(samples.programs.tasks[task]), seed))
    fold = {int(task): place % FOLDS for place, task in enumerate(order)}
    return np.array([fold[int(task)] for task in samples.task_id])


def _predictions(
    a100: Samples, others: Samples, seed: int, kinds: Sequence[str], work: Path
) -> Iterator[tuple[str, NDArray[np.float64]]]:
    """Yields (line, float64 [N] seconds): what models that never saw a workload say of it."""
    fold = folds_of(a100, seed)
    few = cap_programs(others, MOST_PROGRAMS, seed=seed)
    for kind in [*kinds, "constant"]:
        found = np.empty(len(a100))
        for held_out in range(FOLDS):
            known = cap_programs(a100.take(fold != held_out), MOST_PROGRAMS, seed=seed)
            test = a100.take(fold == held_out)
            name = f"{kind}-s{seed}-f{held_out}"
            found[fold == held_out] = _kept(work, name, kind, _joined(few, known), test, seed)
        yield kind, found
    for kind in kinds:
        found = _kept(work, f"{kind}-s{seed}-no-a100", kind, few, a100, seed)
        yield f"{kind}, no A100", found


def _joined(first: Samples, second: Samples) -> Samples:
    columns = {
        name: np.concatenate([getattr(first, name), getattr(second, name)])
        for name in ("program", "device", "latency_s", "latency_std_s")
    }
    return Samples(programs=first.programs, devices=first.devices, **columns)


def _kept(
    work: Path, name: str, kind: str, learn: Samples, test: Samples, seed: int
) -> NDArray[np.float64]:
    """Returns predictions of a model trained on `learn`, of an earlier run where it is there."""
    path = work / f"{name}.npy"
    if path.is_file():
        kept: NDArray[np.float64] = np.load(path)
        return kept
    began = time.perf_counter()
    options = load_config(TrainOptions, None, overrides=SETTINGS)
    parts = split(learn, "task", seed=seed, fractions=(0.9, 0.1, 0.0))
    model = new_model(kind, options)
    model.fit(learn.take(parts.train), learn.take(parts.validation), seed=seed)
    predicted_s = model.predict(test)
    temporary = path.with_suffix(".tmp.npy")
    np.save(temporary, predicted_s)
    temporary.replace(path)
    print(f"{name}: {time.perf_counter() - began:.0f} s", flush=True)
    return predicted_s


def _write(
    a100: Samples,
    lines: dict[str, dict[int, NDArray[np.float64]]],
    read: dict[str, Any],
) -> None:
    scores = {
        line: {seed: _scores(a100, predicted_s) for seed, predicted_s in seeds.items()}
        for line, seeds in lines.items()
    }
    workloads = {
        str(a100.programs.tasks[task]): np.flatnonzero(a100.task_id == task)
        for task in np.unique(a100.task_id)
    }
    rows = [
        (NAME, NAME, "workload-folds", DEVICE, "test", line, seed, metric, value, len(a100))
        for line, seeds in scores.items()
        for seed, found in seeds.items()
        for metric, value in found.items()
    ]
    table = [
        [line, *(_over_seeds(list(seeds.values()), metric) for metric in _SHOWN)]
        for line, seeds in scores.items()
    ]
    by_workload = []
    for rows_of in workloads.values():
        part = a100.take(rows_of)
        entry = [
            str(part.programs.operator[part.program[0]]), f"{len(part):,}",
            seconds_text(float(part.latency_s.min())),
            seconds_text(float(np.median(part.latency_s))),
        ]  # fmt: skip
        for seeds in lines.values():
            found = [_scores(part, predicted_s[rows_of]) for predicted_s in seeds.values()]
            mape = float(np.mean([one["mape"] for one in found]))
            rank = [one["spearman_by_task"] for one in found if one["spearman_by_task"] is not None]
            text = percent_text(mape, 0)
            entry.append(f"{text} / {np.mean(rank):.2f}" if rank else text)
        by_workload.append(entry)
    origin = stamp("python -m lab run metaschedule-a100", schemas=PROGRAMS,
                   data={"metaschedule-a100": a100.programs.data_hash})  # fmt: skip
    heads = ["MAPE", "median APE", "log error", "median ratio", "Spearman"]
    heads += [f"best of {k}" for k in BEST_OF]
    titles = ["workload", "n", "fastest", "median", *lines]
    page = filled(
        NAME, table=markdown_table(["", *heads], table, "l" + "r" * len(heads)),
        by_workload=markdown_table(titles, by_workload, "l" + "r" * (len(titles) - 1)),
    )  # fmt: skip
    write_page(NAME, page, {"read": read, "scores": scores}, origin, rows=rows)


_SHOWN = (
    "mape", "median_ape", "mean_log_error", "median_ratio", "spearman_by_task",
    *(f"best_of_{k}" for k in BEST_OF),
)  # fmt: skip


def _scores(samples: Samples, predicted_s: NDArray[np.float64]) -> dict[str, float | None]:
    found = judge(samples, predicted_s)
    everything = judged(samples, predicted_s)
    scores = {name: found[name] for name in _SHOWN if name in found}
    return {**scores, **{f"best_of_{k}": top_k_score(everything, k) for k in BEST_OF}}


def _over_seeds(found: list[dict[str, float | None]], metric: str) -> str:
    values = [one[metric] for one in found if one[metric] is not None]
    if not values:
        return "-"
    mean, half = mean_and_interval([float(value) for value in values if value is not None])
    if metric in ("mape", "median_ape"):
        half_text = f" ± {100 * half:.1f}" if half else ""
        return f"{100 * mean:.1f}{half_text} %"
    return f"{mean:.3f} ± {half:.3f}" if half else f"{mean:.3f}"
