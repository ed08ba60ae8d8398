"""What reading the compiled code is worth on programs of unseen tasks: docs/results/compiled.*.

python -m tests.benchmarks.compiled run     # three seeds, resumable, 5 minutes each
python -m tests.benchmarks.compiled page

`run` trains the ensembles of `tests.benchmarks.measured_elsewhere` (by task, all eight labels of
`data/tenset-cpu`) where they are not there, and beside each a model of machine code on the same
parts, whose shares the validation part says. The lines of trees and perceptron alone are what other
models make of the same columns.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from cdmpp.conformal import owner_means
from cdmpp.datasets.cache import load_samples
from cdmpp.datasets.extraction.machine_code import read_machine_code
from cdmpp.datasets.samples import Samples
from cdmpp.datasets.splits import split
from cdmpp.files.atomic import write_columns
from cdmpp.metrics import Judged, mean_and_interval, spearman_by_task
from cdmpp.models.ensemble import EnsembleCostModel
from cdmpp.models.parts.labels import least_mape_factor
from cdmpp.report.stamp import COMPILED, stamp, write_page
from cdmpp.text import markdown_table, percent_text
from cdmpp.training.machine_code.model import CodeModel, CodeRows
from tests.benchmarks.measured_elsewhere import FRACTIONS, PASSES, SEEDS, trained_in
from tests.paths import ROOT
from tvm_helper.extract import extracted_folder

LINES = {
    "constant": "one latency for everything (median)",
    "oracle": "the median of the program's own task and device (known only afterwards)",
    "core": "the time of the instructions on a core, one factor",
    "model": "fast tier: the ensemble, nothing compiled",
    "transformer": "its transformer alone",
    "transformer_mape": "the same, times the factor of least MAPE (validation part)",
    "thirds": "a third each of transformer, perceptron and trees, times that factor",
    "trees": "compiled, trees alone",
    "perceptron": "compiled, perceptron alone",
    "compiled": "compiled tier: the ensemble with both",
    "compiled_mape": "the same, times the factor of least MAPE (validation part)",
}
#: The line that the others are compared with, task by task.
_BASE = "model"


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("run", "page"))
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "measured-elsewhere")
    parser.add_argument("--cache", type=Path, default=ROOT / "cache")
    args = parser.parse_args()
    if args.what == "run":
        folder = extracted_folder(ROOT / "data" / "tenset-cpu", None, cache_dir=args.cache)
        samples, code = load_samples(folder), code_by_label(folder)
        for seed in SEEDS:
            run(samples, code, seed, args.work / f"seed-{seed}")
    page([args.work / f"seed-{seed}" / "compiled.parquet" for seed in SEEDS])


Code = Mapping[str, Mapping[str, NDArray[np.float32]]]


def code_by_label(folder: Path) -> Code:
    """Returns label -> program id -> float32 [columns]."""
    return {label: table.columns for table in read_machine_code(folder) for label in table.targets}


def run(samples: Samples, code: Code, seed: int, folder: Path) -> None:
    """Trains, and predicts the test part."""
    if (folder / "compiled.parquet").is_file():
        return
    trained = trained_in(folder, samples, seed)
    parts = split(samples, "task", seed=seed, fractions=FRACTIONS)
    own = [samples.take(rows) for rows in (parts.train, parts.validation, parts.test)]
    train, validation, test = (
        CodeRows.of(part, _code_of(part, code), trained.model.predict(part)) for part in own
    )
    schema = dict(samples.programs.feature_schema)
    found = CodeModel.fit(
        (train, validation, test), targets=dict.fromkeys(code, "{}"), feature_schema=schema,
        seed=seed,
    )  # fmt: skip
    trees, perceptron = found.parts_log_s(test)
    measured_s = own[2].latency_s
    device = np.array([one.name for one in samples.devices], object)[own[2].device]
    factor = least_mape_factor(np.exp(validation.core_log_s), own[1].latency_s)
    _, owner = np.unique(np.char.add(test.task, device.astype(np.str_)), return_inverse=True)
    own_median = np.array([np.median(measured_s[owner == one]) for one in range(owner.max() + 1)])
    log_s, half_width = found.estimate(test)
    least = least_mape_factor(np.exp(found.estimate(validation)[0]), own[1].latency_s)
    model = trained.model
    assert isinstance(model, EnsembleCostModel)
    known, asked = model.parts_s(own[1]), model.parts_s(own[2])
    third, asked_third = (np.exp(np.log(parts).mean(axis=0)) for parts in (known, asked))
    write_columns(
        folder / "compiled.parquet",
        {
            "task": test.task.astype(object), "device": device, "measured_s": measured_s,
            "constant": np.full(len(test), np.median(own[0].latency_s)),
            "oracle": own_median[owner], "core": factor * np.exp(test.core_log_s),
            "model": np.exp(test.model_log_s), "transformer": asked[0],
            "transformer_mape": least_mape_factor(known[0], own[1].latency_s) * asked[0],
            "thirds": least_mape_factor(third, own[1].latency_s) * asked_third,
            "trees": np.exp(trees),
            "perceptron": np.exp(perceptron), "compiled": np.exp(log_s),
            "compiled_mape": least * np.exp(log_s),
            "low_s": np.exp(log_s - half_width), "high_s": np.exp(log_s + half_width),
            "share_trees": np.full(len(test), found.calibration.trees),
            "share_perceptron": np.full(len(test), found.calibration.perceptron),
        },
    )  # fmt: skip


def _code_of(samples: Samples, code: Code) -> NDArray[np.float32]:
    names = samples.programs.program_id[samples.program]
    labels = [one.name for one in samples.devices]
    return np.stack(
        [code[labels[place]][str(name)] for place, name in zip(samples.device, names, strict=True)]
    )


def page(files: list[Path]) -> None:
    """Writes the page."""
    tables = []
    for file in files:
        table = pq.read_table(file)
        tables.append({name: table[name].to_numpy() for name in table.column_names})
    values = {name: _judged(tables, name) for name in LINES}
    rows = []
    for name, words in LINES.items():
        one = values[name]
        low, high = one["ratio_interval"]
        ratio = f"{one['ratio']:.2f} [{low:.2f}, {high:.2f}]" if name != _BASE else "1"
        rows.append([
            words, *(_spread(one[key]) for key in ("mape", "median_ape")),
            *(f"{np.mean(one[key]):.2f}" for key in ("mean_log_error", "median_ratio", "spearman")),
            ratio,
        ])  # fmt: skip
    heads = ["what is said", "MAPE", "median APE", "log error", "median ratio",
             "Spearman within a task", "error of a task, over the fast tier's"]  # fmt: skip
    inside = [
        float(np.mean((one["low_s"] <= one["measured_s"]) & (one["measured_s"] <= one["high_s"])))
        for one in tables
    ]
    shares = [f"{one['share_trees'][0]:.1f}, {one['share_perceptron'][0]:.1f}" for one in tables]
    text = _PAGE.format(
        passes=PASSES, table=markdown_table(heads, rows), inside=_spread(inside),
        shares="; ".join(shares), n=", ".join(f"{len(one['task']):,}" for one in tables),
        tasks=", ".join(str(len(np.unique(one["task"]))) for one in tables),
    )  # fmt: skip
    out = ROOT / "docs" / "results"
    found = stamp("python -m tests.benchmarks.compiled run", schemas=COMPILED)
    write_page(out, "compiled", text, {"interval_coverage": inside, "lines": values}, found)


def _judged(tables: list[dict[str, NDArray[Any]]], name: str) -> dict[str, Any]:
    """Returns the figures of a line, means over labels by seed; the ratio of a task's error to the
    fast tier's is a geometric mean over the tasks of all seeds.
    """
    found: dict[str, Any] = {
        key: [] for key in ("mape", "median_ape", "mean_log_error", "median_ratio", "spearman")
    }
    ratios: list[float] = []
    for table in tables:
        log_ratio = np.log(table[name].astype(float) / table["measured_s"].astype(float))
        error = np.abs(np.expm1(log_ratio))
        labels = np.unique(table["device"])
        by_label = [table["device"] == label for label in labels]
        found["mape"].append(float(np.mean([error[rows].mean() for rows in by_label])))
        found["median_ape"].append(float(np.mean([np.median(error[rows]) for rows in by_label])))
        found["mean_log_error"].append(float(np.abs(log_ratio).mean()))
        found["median_ratio"].append(float(np.exp(np.median(log_ratio))))
        _, device = np.unique(table["device"], return_inverse=True)
        _, task = np.unique(table["task"], return_inverse=True)
        weight = np.ones(task.max() + 1)
        order = spearman_by_task(Judged(table["measured_s"], table[name], task, device, weight))
        found["spearman"].append(0.0 if order is None else order)
        base = np.abs(table[_BASE] / table["measured_s"] - 1.0)
        ratios += np.log(owner_means(error, task) / owner_means(base, task)).tolist()
    mean, half = mean_and_interval(ratios)
    found["ratio"] = float(np.exp(mean))
    found["ratio_interval"] = [float(np.exp(mean + sign * (half or 0.0))) for sign in (-1, 1)]
    return found


def _spread(values: list[float]) -> str:
    mean, half = mean_and_interval(values)
    return f"{percent_text(mean)} ± {percent_text(half)}"


_PAGE = """# Compiled: programs of unseen tasks

What is known of a program before it runs, with and without its compiled code
(`docs/machine-code.md`). `python -m tests.benchmarks.compiled run`: ensembles on a part of
`data/tenset-cpu` (by task, all eight labels, {passes} passes, three seeds), beside each a model of
machine code on the same parts. TVM 0.27 compiled the programs for this page; TVM 0.8 had compiled
what was measured. Means over labels; ± over seeds, 95 %. Log error: mean |log(predicted /
measured)|; median ratio: predicted over measured; last column: MAPE of a task, geometric mean over
the tasks of three seeds, 95 % interval over tasks.

{table}

Shares of trees and perceptron by seed: {shares}; the rest is the ensemble's. In the 90 % interval
of the compiled tier: {inside} of the programs. {n} programs of {tasks} tasks.
"""


if __name__ == "__main__":
    main()
