"""What machine code says of the time of GPU programs, beside leaf columns; workloads held out.

`python -m tests.benchmarks.gpu_code` (resumable; needs `pip install 'cdmpp[nvrtc]'`, no GPU).
Compiles programs of each workload with TVM and NVIDIA's compiler; trees see leaf columns,
columns of machine code, or both. Workloads are shared out into folds by a hash; each is
judged by trees that never saw it, and another fold says when trees stop. Writes gpu-code.json and
gpu-code.md.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.datasets.cache import load_samples
from cdmpp.datasets.judge import judge
from cdmpp.datasets.read_report import ReadReport
from cdmpp.datasets.samples import Samples
from cdmpp.datasets.selection import of_devices
from cdmpp.datasets.splits import uniform_draw
from cdmpp.datasets.tenset.record_file import read_records
from cdmpp.datasets.tenset.task_index import load_tasks
from cdmpp.devices.registry import get_device
from cdmpp.errors import ReplayError
from cdmpp.features.added_columns import LEAF_EXTRA_NAMES
from cdmpp.features.gpu_code.columns import (
    GPU_CODE_NAMES,
    GPU_CODE_SCHEMA_VERSION,
    gpu_code_columns,
)
from cdmpp.files.atomic import make_folder, write_json, write_text
from cdmpp.files.boosted_trees import grow_trees, tree_rows
from cdmpp.machine import commit, machine, versions
from cdmpp.metrics import mean_and_interval
from cdmpp.models.parts.pooling import pooled_features
from cdmpp.records import MeasureRecord, program_id_of_text
from cdmpp.text import markdown_table, percent_text
from tests.paths import ROOT
from tvm_helper.extract import extracted_folder
from tvm_helper.programs.gpu_code import gpu_launches
from tvm_helper.records.dag import Dag, parse_dag
from tvm_helper.tir.schedule_of_record import replay

NAME = "gpu-code"
FOLDS = 5
#: As of the model of machine code, in fewer and longer steps.
TREES = {
    "objective": "reg:squarederror",
    "max_depth": 6,
    "eta": 0.08,
    "subsample": 0.8,
    "colsample_bytree": 0.3,
    "min_child_weight": 3,
    "max_bin": 64,
    "nthread": 1,
}
MOST_TREES, PATIENCE = 400, 30
METRICS = ("mape", "median_ape", "spearman_by_task", "log_error")
DRAWS = 1000

FloatArray = NDArray[np.float64]
Predictions = dict[str, list[FloatArray]]


def main() -> int:
    """Writes the files; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", type=Path, default=ROOT / "data" / "ansor-gpu")
    parser.add_argument("--device", default="v100")
    parser.add_argument("--programs", type=int, default=8, help="most of a workload")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--cache", type=Path, default=Path("cache"))
    parser.add_argument("--work", type=Path, default=Path("runs") / NAME)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results")
    args = parser.parse_args()
    make_folder(args.work, what="columns")
    known = _compiled(args.dataset, args.device, args.programs, args.work)
    folder = extracted_folder(args.dataset, [args.device], cache_dir=args.cache, jobs=1)
    samples = of_devices(load_samples(folder, cache_dir=args.cache), [args.device])
    names = [str(name) for name in samples.programs.program_id[samples.program]]
    samples = samples.take(np.array([known.get(name) is not None for name in names]))
    names = [name for name in names if known.get(name) is not None]
    code = np.array([known[name] for name in names], np.float32)
    columns = _columns(samples, code)
    found: Predictions = {}
    for seed in args.seeds:
        for line, predicted_s in _predictions(samples, columns, seed):
            found.setdefault(line, []).append(predicted_s)
            print(seed, line, _scores(samples, predicted_s), flush=True)
    _write(samples, found, args, sum(value is None for value in known.values()))
    return 0


def _compiled(
    dataset: Path, device: str, programs: int, work: Path
) -> dict[str, list[float] | None]:
    """Returns the columns of programs by id, None of those that do not compile; those of an earlier
    run are in the folder.
    """
    path = work / f"{device}-v{GPU_CODE_SCHEMA_VERSION}.jsonl"
    known: dict[str, list[float] | None] = {}
    if path.is_file():
        entries = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        known = {entry["program_id"]: entry["columns"] for entry in entries}
    tasks, dags = load_tasks(dataset / "network_info"), dict[str, Dag]()
    wanted = list(_chosen(dataset / "measure_records" / device, programs))
    with path.open("a", encoding="utf-8") as file:
        for number, (name, record) in enumerate(wanted, 1):
            if name in known:
                continue
            key = record.workload_key
            if key not in dags:
                dags[key] = parse_dag(tasks.find(key, record.target_kind).dag_json)
            try:
                module = replay(dags[key], record.steps).mod
                launches = gpu_launches(module, get_device(device))
                known[name] = [float(value) for value in gpu_code_columns(launches)]
            except ReplayError as error:
                print(f"{name}: {error}", flush=True)
                known[name] = None
            file.write(json.dumps({"program_id": name, "columns": known[name]}) + "\n")
            file.flush()
            if number % 100 == 0:
                print(f"compiled {number} of {len(wanted)}", flush=True)
    return {name: known[name] for name, _ in wanted}


def _chosen(folder: Path, programs: int) -> Iterator[tuple[str, MeasureRecord]]:
    """Yields programs of each workload, chosen by a hash, and their ids: one of each workload, then
    a second one, and so on.
    """
    by_task = []
    for path in sorted(folder.iterdir()):
        records = {
            program_id_of_text("tenset", one.workload_key, one.schedule, one.target_kind): one
            for one in read_records(path, ReadReport())
        }
        by_task.append(sorted(records.items(), key=lambda item: _hash(item[0])))
    for place in range(programs):
        for found in by_task:
            yield from found[place : place + 1]


def _hash(name: str) -> str:
    return hashlib.sha1(name.encode()).hexdigest()


def _columns(samples: Samples, code: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
    """Returns what the models see: each line's float32 [N, columns]."""
    programs = samples.programs
    leaves = pooled_features(programs, samples.program)
    operations = programs.leaf_extra[
        programs.leaf_offset[samples.program], LEAF_EXTRA_NAMES.index("program.float_ops")
    ]
    more = code[:, GPU_CODE_NAMES.index("program.flops")] - operations
    return {
        "leaf columns": leaves,
        "machine code": code,
        "both": np.concatenate([leaves, code, more[:, None]], axis=1),
    }


def _predictions(
    samples: Samples, columns: dict[str, NDArray[np.float32]], seed: int
) -> Iterator[tuple[str, FloatArray]]:
    """Yields what trees see and float64 [N] seconds of each program, said by trees that saw
    no program of its workload.
    """
    log_s = np.log(samples.latency_s)
    tasks = np.asarray(samples.programs.tasks, np.str_)[samples.task_id]
    fold = np.array([int(FOLDS * uniform_draw(task, seed)) for task in tasks])
    for seen, values in columns.items():
        said = np.empty(len(samples))
        for held_out in range(FOLDS):
            test, watched = fold == held_out, fold == (held_out + 1) % FOLDS
            train = ~(test | watched)
            booster = grow_trees(
                {**TREES, "seed": seed},
                tree_rows(values[train], log_s[train], threads=1),
                tree_rows(values[watched], log_s[watched], threads=1),
                trees=MOST_TREES, patience=PATIENCE,
            )  # fmt: skip
            said[test] = booster.predict(tree_rows(values[test], threads=1))
        yield seen, np.exp(said)


def _scores(samples: Samples, predicted_s: FloatArray) -> dict[str, float]:
    found = judge(samples, predicted_s)
    scores = {name: float(found[name]) for name in METRICS[:3]}
    return {**scores, "log_error": float(_log_error(samples, predicted_s).mean())}


def _log_error(samples: Samples, predicted_s: FloatArray) -> FloatArray:
    return np.abs(np.log(predicted_s / samples.latency_s))


def _ape(samples: Samples, predicted_s: FloatArray) -> FloatArray:
    return np.abs(predicted_s / samples.latency_s - 1.0)


def _ratio(
    samples: Samples,
    found: Predictions,
    line: str,
    error: Callable[[Samples, FloatArray], FloatArray],
) -> tuple[float, float, float]:
    """Returns the mean error of a line over that on leaf columns, and the 90 %
    interval of that: workloads drawn again and again.
    """  # fmt: skip
    own, other = (
        np.mean([error(samples, predicted_s) for predicted_s in found[one]], axis=0)
        for one in (line, "leaf columns")
    )
    rows = [np.flatnonzero(samples.task_id == task) for task in np.unique(samples.task_id)]
    sums = np.array([(own[some].sum(), other[some].sum()) for some in rows])
    rng = np.random.default_rng(0)
    draws = sums[rng.integers(0, len(rows), (DRAWS, len(rows)))].sum(axis=1)
    low, high = np.quantile(draws[:, 0] / draws[:, 1], [0.05, 0.95])
    return float(own.mean() / other.mean()), float(low), float(high)


def _write(samples: Samples, found: Predictions, args: argparse.Namespace, failed: int) -> None:
    scores = {
        line: [_scores(samples, predicted_s) for predicted_s in seeds]
        for line, seeds in found.items()
    }
    errors = {"mape": _ape, "log_error": _log_error}
    ratios = {
        line: {name: _ratio(samples, found, line, of) for name, of in errors.items()}
        for line in found
        if line != "leaf columns"
    }
    write_json(
        args.out / f"{NAME}.json",
        {
            "command": "python -m tests.benchmarks.gpu_code",
            "commit": commit(), "machine": machine(), "versions": versions(),
            "data_hash": samples.programs.data_hash, "device": args.device,
            "programs": len(samples), "failed": failed, "seeds": args.seeds, "scores": scores,
            "ratios": ratios,
        },
    )  # fmt: skip
    write_text(args.out / f"{NAME}.md", _page(samples, found, scores, ratios, args, failed))


def _page(
    samples: Samples,
    found: Predictions,
    scores: dict[str, list[dict[str, float]]],
    ratios: dict[str, Any],
    args: argparse.Namespace,
    failed: int,
) -> str:
    table = []
    for line in found:
        row = [line]
        for metric in METRICS:
            mean, half = mean_and_interval([one[metric] for one in scores[line]])
            is_share = metric in METRICS[:2]
            scale = 100 if is_share else 1
            text = f"{scale * mean:.1f}" if is_share else f"{mean:.3f}"
            row.append(f"{text} ± {scale * half:.{1 if is_share else 3}f}" if half else text)
        for metric in ("mape", "log_error"):
            ratio = ratios.get(line, {}).get(metric)
            row.append("1" if ratio is None else "{:.2f} ({:.2f} to {:.2f})".format(*ratio))
        table.append(row)
    kinds = samples.programs.operator[samples.program]
    by_kind = []
    for kind in sorted(set(kinds.tolist())):
        part = kinds == kind
        row = [str(kind), str(len(np.unique(samples.task_id[part]))), f"{part.sum():,}"]
        for line in found:
            ape = np.mean([_ape(samples, predicted_s)[part] for predicted_s in found[line]])
            row.append(percent_text(float(ape)))
        by_kind.append(row)
    return "\n".join([
        "# Machine code of GPU programs",
        "",
        f"`python -m tests.benchmarks.gpu_code`: {len(samples):,} programs of "
        f"{len(np.unique(samples.task_id))} workloads (at most {args.programs} each, by a hash) "
        f"that were measured on the device {args.device}, compiled without a GPU; {failed} did not "
        f"compile. Workloads are shared out into {FOLDS} folds by a hash, and each is judged by "
        f"trees that never saw it. Seeds {', '.join(map(str, args.seeds))} draw folds and "
        "training; ± is the 95 % interval over seeds. Ratios are to the trees on leaf "
        "columns, with their 90 % interval over workloads.",
        "",
        markdown_table(
            ["trees see", "MAPE, %", "median APE, %", "Spearman", "mean log error",
             "MAPE ratio", "log error ratio"],
            table, "l" + "r" * 6,
        ),
        "",
        "MAPE by operator:",
        "",
        markdown_table(
            ["operator", "workloads", "programs", *found], by_kind,
            "l" + "r" * 5,
        ),
        "",
    ])  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
