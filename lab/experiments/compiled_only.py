"""Can a model of leaf columns alone learn what the compiler does?

Kernels of networks (the campaigns that have machine code) and the compiled programs of
`data/tenset-cpu`. A part of the kernels counts as measured, all as compiled. A perceptron first
learns to say the columns of machine code from leaf columns, on everything that is compiled and not
judged, then the times of the measured part from what it has learned.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cdmpp.conformal import owner_means
from cdmpp.datasets.cache import load_samples
from cdmpp.datasets.extraction.machine_code import read_machine_code
from cdmpp.datasets.sources import extracted_folder
from cdmpp.datasets.splits import uniform_draw
from cdmpp.models.parts.pooling import pooled_features
from cdmpp.predict.machine_code.core_time import core_log_s
from cdmpp.text import markdown_table, percent_text
from lab.figures import between, geometric_mean, spread
from lab.journal import Journal
from lab.pages import filled, write_page
from lab.paths import ROOT
from lab.shell import cdmpp
from lab.stamp import COMPILED, stamp

NAME = "compiled-only"
KERNELS = ("networks", "large", "batched", "many", "broad", "broad2", "chosen")
SEEDS = (0, 1, 2)
#: Judged part of the kernels' tasks, and the shares of the others that count as measured.
JUDGED = 0.2
SHARES = (0.1, 0.3)
WIDTH, LAYERS, DROPOUT, BATCH = 384, 3, 0.1, 128
CODE_PASSES, TIME_STEPS = 30, 6000
#: What saying the code weighs beside saying the time, while times are learned.
CODE_WEIGHT = 0.3
LINES = {
    "leaves": "leaf columns, the measured part",
    "taught": "the same, taught by compiled programs first",
    "code": "leaf columns and machine code, the measured part",
    "measured": "leaf columns, were all of them measured",
}

FloatArray = NDArray[np.float32]


def experiment(
    seeds: tuple[int, ...] = SEEDS,
    work: Path = ROOT / "runs" / NAME,
    cache: Path = ROOT / "cache",
) -> None:
    """Trains the missing seeds (after `make tables`; 15 minutes each) and writes the page."""
    cdmpp("measure", machine_code=True, out=cache / "data" / "metaschedule-cpu-broad2")
    rows = Rows.read(cache)
    print(f"{len(rows.leaves):,} compiled, {int(rows.is_kernel.sum()):,} measured", flush=True)
    journal = Journal(work / "seeds.jsonl")
    page([journal.cell(str(seed), partial(run, rows, seed)) for seed in seeds])


class Rows:
    """Compiled programs: leaf columns, machine code, times.

    Attributes:
        leaves: float32 [N, leaf columns].
        code: float32 [N, machine code and core times].
        core, log_s: float32 [N]; log_s only of kernels.
        task: str [N].
        is_kernel: bool [N], whether it is a measured kernel of a network.
    """

    def __init__(self, parts: Sequence[dict[str, NDArray[Any]]]) -> None:
        for name in parts[0]:
            setattr(self, name, np.concatenate([part[name] for part in parts]))

    leaves: FloatArray
    code: FloatArray
    core: FloatArray
    log_s: FloatArray
    task: NDArray[np.str_]
    is_kernel: NDArray[np.bool_]

    @classmethod
    def read(cls, cache: Path) -> Rows:
        """Returns the rows of all campaigns and of tenset-cpu for AVX-512."""
        folders = [cache / "data" / f"metaschedule-cpu-{name}" for name in KERNELS]
        tenset = extracted_folder(ROOT / "data" / "tenset-cpu", None, cache_dir=cache)
        return cls([_rows(folder, is_kernel=folder != tenset) for folder in (*folders, tenset)])


def _rows(folder: Path, *, is_kernel: bool) -> dict[str, NDArray[Any]]:
    samples = load_samples(folder)
    table = next(one for one in read_machine_code(folder) if "epyc-avx512-1c" in one.targets)
    names = np.array([str(name) for name in samples.programs.program_id])[samples.program]
    _, first = np.unique(samples.program, return_index=True)
    rows = np.array([row for row in first if names[row] in table.columns], np.int64)
    samples = samples.take(rows)
    code = np.stack([table.columns[name] for name in names[rows]]).astype(np.float32)
    device = next(one for one in samples.devices if one.name == "epyc-avx512-1c")
    core = core_log_s(code, [device], np.zeros(len(code), np.int64)).astype(np.float32)
    return {
        "leaves": pooled_features(samples.programs, samples.program),
        "code": np.concatenate([code, core], axis=1), "core": core[:, 0],
        "log_s": np.log(samples.latency_s).astype(np.float32),
        "task": np.asarray(samples.programs.tasks, np.str_)[samples.task_id],
        "is_kernel": np.full(len(code), is_kernel),
    }  # fmt: skip


def run(rows: Rows, seed: int) -> dict[str, Any]:
    """Returns errors by line and share, with each judged task's."""
    draw = {task: uniform_draw(task, seed) for task in np.unique(rows.task).tolist()}
    place = np.array([draw[task] for task in rows.task.tolist()])
    judged = rows.is_kernel & (place < JUDGED)
    others = ~np.isin(rows.task, rows.task[judged])
    found: dict[str, Any] = {"judged": int(judged.sum()), "compiled": int(others.sum())}
    kernels = others & rows.is_kernel
    taught_by = fitted_code(rows, others, seed)
    whole = fitted(rows.leaves, rows, kernels, None, seed)
    for share in SHARES:
        measured = kernels & (place < JUDGED + share * (1.0 - JUDGED))
        both = np.concatenate([rows.leaves, rows.code], axis=1)
        models = {
            "leaves": (rows.leaves, fitted(rows.leaves, rows, measured, None, seed)),
            "taught": (rows.leaves, fitted(rows.leaves, rows, measured, taught_by, seed)),
            "code": (both, fitted(both, rows, measured, None, seed, is_ratio=True)),
            "measured": (rows.leaves, whole),
        }
        found[str(share)] = {"kernels": int(measured.sum())}
        for name, (columns, model) in models.items():
            log_s = model.log_s(columns[judged]) + (rows.core[judged] if name == "code" else 0.0)
            missed = log_s - rows.log_s[judged]
            error = np.abs(np.expm1(missed))
            _, owner = np.unique(rows.task[judged], return_inverse=True)
            found[str(share)][name] = {
                "mape": float(error.mean()), "median_ape": float(np.median(error)),
                "log_error": float(np.abs(missed).mean()),
                "by_task": owner_means(error, owner).tolist(),
            }  # fmt: skip
            print(seed, share, name, f"{error.mean():.3f}", time.process_time(), flush=True)
    return found


class Taught:
    """A perceptron over standardised columns, with a head for times and one for machine code."""

    def __init__(self, columns: FloatArray, code_columns: int, seed: int) -> None:
        self._mean, spread = columns.mean(axis=0), columns.std(axis=0)
        self._deviation = np.where(spread > 1e-4, spread, np.inf).astype(np.float32)
        torch.manual_seed(seed)
        layers: list[nn.Module] = []
        width = columns.shape[1]
        for _ in range(LAYERS):
            layers += [nn.Linear(width, WIDTH), nn.GELU(), nn.Dropout(DROPOUT)]
            width = WIDTH
        self.trunk = nn.Sequential(*layers)
        self.of_time, self.of_code = nn.Linear(width, 1), nn.Linear(width, code_columns)
        self.code: tuple[FloatArray, FloatArray] | None = None
        self.label = (0.0, 1.0)

    def standardised(self, columns: FloatArray) -> Tensor:
        """Returns float32 [N, columns]."""
        values = np.clip((columns - self._mean) / self._deviation, -5.0, 5.0)
        return torch.from_numpy(values.astype(np.float32))

    def log_s(self, columns: FloatArray) -> FloatArray:
        """Returns float32 [N]."""
        for part in (self.trunk, self.of_time):
            part.eval()
        with torch.no_grad():
            found = self.of_time(self.trunk(self.standardised(columns))).squeeze(1).numpy()
        return np.asarray(found * self.label[1] + self.label[0], np.float32)

    def learn(self, columns: Tensor, targets: Sequence[Tensor], steps: int) -> None:
        """Learns times, machine code (either may be NaN throughout), or both."""
        times, code = targets
        parts = nn.ModuleList([self.trunk, self.of_time, self.of_code]).train()
        optimiser = torch.optim.AdamW(parts.parameters(), weight_decay=0.05)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2e-3, total_steps=steps)
        loss_of = nn.functional.smooth_l1_loss
        order = torch.randperm(len(columns))
        for step in range(steps):
            if (step + 1) * BATCH % len(columns) < BATCH:
                order = torch.randperm(len(columns))
            rows = order[torch.arange(step * BATCH, (step + 1) * BATCH) % len(columns)]
            hidden = self.trunk(columns[rows])
            loss = torch.zeros(())
            if len(times):
                loss = loss + loss_of(self.of_time(hidden).squeeze(1), times[rows], beta=0.3)
            if len(code):
                weight = CODE_WEIGHT if len(times) else 1.0
                loss = loss + weight * loss_of(self.of_code(hidden), code[rows], beta=0.3)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            schedule.step()


def fitted_code(rows: Rows, where: NDArray[np.bool_], seed: int) -> Taught:
    """Returns a perceptron that says machine code from leaf columns."""
    found = Taught(rows.leaves[where], rows.code.shape[1], seed)
    mean, spread = rows.code[where].mean(axis=0), rows.code[where].std(axis=0)
    found.code = mean, np.where(spread > 1e-4, spread, np.inf).astype(np.float32)
    steps = CODE_PASSES * int(where.sum()) // BATCH
    targets = (torch.zeros(0), _code(rows, where, found))
    found.learn(found.standardised(rows.leaves[where]), targets, steps)
    return found


def _code(rows: Rows, where: NDArray[np.bool_], model: Taught) -> Tensor:
    assert model.code is not None
    mean, deviation = model.code
    return torch.from_numpy(((rows.code[where] - mean) / deviation).astype(np.float32))


def fitted(
    columns: FloatArray, rows: Rows, where: NDArray[np.bool_], taught_by: Taught | None, seed: int,
    *, is_ratio: bool = False,
) -> Taught:  # fmt: skip
    """Returns a perceptron that says times, begun from one that says machine code where given."""
    log_s = rows.log_s[where] - (rows.core[where] if is_ratio else 0.0)
    found = Taught(columns[where], rows.code.shape[1], seed)
    code = torch.zeros(0)
    if taught_by is not None:
        found.trunk.load_state_dict(taught_by.trunk.state_dict())
        found.of_code.load_state_dict(taught_by.of_code.state_dict())
        found._mean, found._deviation = taught_by._mean, taught_by._deviation
        found.code = taught_by.code
        code = _code(rows, where, found)
    found.label = float(log_s.mean()), float(log_s.std())
    times = torch.from_numpy((log_s - found.label[0]) / found.label[1])
    found.learn(found.standardised(columns[where]), (times, code), TIME_STEPS)
    return found


def page(found: list[dict[str, Any]]) -> None:
    """Writes the page of some seeds."""
    counts = {key: ", ".join(f"{one[key]:,}" for one in found) for key in ("compiled", "judged")}
    counts["tasks"] = ", ".join(str(len(one[str(SHARES[0])]["leaves"]["by_task"])) for one in found)
    texts = []
    for share in SHARES:
        own = [one[str(share)] for one in found]
        rows = []
        for name, words in LINES.items():
            ratios = [
                np.log(np.array(one[name]["by_task"]) / np.array(one["leaves"]["by_task"]))
                for one in own
            ]
            mean = geometric_mean(np.concatenate(ratios).tolist())
            ratio = "1" if name == "leaves" else between(*mean)
            rows.append([
                words, spread([one[name]["mape"] for one in own]),
                spread([one[name]["median_ape"] for one in own]),
                f"{np.mean([one[name]['log_error'] for one in own]):.3f}", ratio,
            ])  # fmt: skip
        kernels = ", ".join(f"{one['kernels']:,}" for one in own)
        heads = ["perceptron on", "MAPE", "median APE", "log error",
                 "error of a task, over the first"]  # fmt: skip
        texts += [
            f"## {percent_text(share)} measured ({kernels} kernels)",
            markdown_table(heads, rows),
        ]
    origin = stamp("python -m lab run compiled-only", schemas=COMPILED)
    text = filled(NAME, sections="\n\n".join(texts), **counts)
    write_page(NAME, text, {"seeds": [_short(one) for one in found]}, origin)


def _short(seed: dict[str, Any]) -> dict[str, Any]:
    for share in SHARES:
        for name in LINES:
            del seed[str(share)][name]["by_task"]
    return seed
