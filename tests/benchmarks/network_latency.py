"""Predicted against measured latency of untuned networks: `make bench-networks`.

Every task is scheduled by its first valid MetaSchedule sample (seed 0), which is what
`cdmpp predict --network` predicts; the network compiled with exactly these schedules is timed here,
and so is every task alone. Writes network-prediction.md and .json to --out.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tvm
from tvm import relax
from tvm.s_tir import meta_schedule as ms

from cdmpp.datasets.atomic import make_folder, write_atomic, write_json
from cdmpp.devices.registry import get_device
from cdmpp.training.origin import commit, machine, versions
from tests.benchmarks.example_networks import NETWORKS
from tvm_helper.benchmark_search import built
from tvm_helper.device_target import device_target
from tvm_helper.network_tasks import fused_network, load_network, network_tasks
from tvm_helper.prediction import Predictor
from tvm_helper.sample_modules import first_valid_schedule

_REPEATS = 15


@dataclass(frozen=True)
class Row:
    """A network: seconds."""

    network: str
    tasks: int
    calls: int
    predicted_s: float
    low_s: float
    high_s: float
    missing: list[str]
    measured_s: float
    sum_measured_s: float
    task_predicted_s: list[float]
    task_low_s: list[float]
    task_high_s: list[float]
    task_measured_s: list[float]
    weights: list[int]
    names: list[str]

    @property
    def error(self) -> float:
        """Relative error of the prediction."""
        return self.predicted_s / self.measured_s - 1.0

    @property
    def task_errors(self) -> Any:
        """Relative errors of the tasks."""
        return np.array(self.task_predicted_s) / np.array(self.task_measured_s) - 1.0

    @property
    def covered(self) -> Any:
        """Whether each task's time lies within its interval."""
        times = np.array(self.task_measured_s)
        return (times >= self.task_low_s) & (times <= self.task_high_s)


def predict_and_measure(name: str, model: str, device: str, scratch: Path) -> Row:
    """Returns a network's row."""
    network, inputs = NETWORKS[name]()
    path = scratch / f"{name}.pt2"
    torch.manual_seed(0)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.export.save(torch.export.export(network, inputs), path)
    module = load_network(path)
    answer = Predictor(model, [device]).network(module)
    (total,) = answer.totals()
    target = device_target(get_device(device))
    found = network_tasks(module, target)
    weights = {task.workload_key: task.weight for task in found.tasks}
    predicted = {task.workload_key: rows[0] for task, rows in answer.tasks}
    database = ms.database.MemoryDatabase()
    alone: dict[str, float] = {}
    for number, task in enumerate(found.tasks):
        function = task.module["main"]
        schedule = first_valid_schedule(task.module, target, seed=0)
        if schedule is None:
            raise SystemExit(f"{name}: no valid schedule of {task.operator}")
        workload = database.commit_workload(task.module)
        database.commit_tuning_record(
            ms.database.TuningRecord(schedule.trace, workload, [1.0], target, [])
        )
        compiled, arguments = built(function, schedule, target, scratch, f"{name}-{number}")
        timer = compiled.time_evaluator("main", tvm.cpu(0), number=1, repeat=5, min_repeat_ms=30)
        alone[task.workload_key] = float(np.median(timer(*arguments).results))
    fused = fused_network(module, target)
    with target, database, tvm.transform.PassContext(opt_level=3):
        scheduled = relax.transform.MetaScheduleApplyDatabase(enable_warning=True)(fused)
        executable = tvm.compile(scheduled, target=target)
    machine_ = relax.VirtualMachine(executable, tvm.cpu(0))
    tensors = [tvm.runtime.tensor(np.asarray(value)) for value in inputs]
    timer = machine_.time_evaluator("main", tvm.cpu(0), number=1, repeat=_REPEATS)
    timer(*tensors)
    measured_s = float(np.median(timer(*tensors).results))
    known = [
        (task, row.latency_s, row.low_s, row.high_s)
        for task in found.tasks
        for row in (predicted[task.workload_key],)
        if row.latency_s is not None and row.low_s is not None and row.high_s is not None
    ]
    if total.latency_s is None or total.low_s is None or total.high_s is None:
        raise SystemExit(f"{name}: no total ({', '.join(map(str, total.missing))})")
    return Row(
        network=name, tasks=len(found.tasks), calls=sum(weights.values()),
        predicted_s=total.latency_s, low_s=total.low_s, high_s=total.high_s,
        missing=[str(value) for value in total.missing], measured_s=measured_s,
        sum_measured_s=sum(weights[key] * alone[key] for key in alone),
        task_predicted_s=[latency_s for _, latency_s, _, _ in known],
        task_low_s=[low_s for _, _, low_s, _ in known],
        task_high_s=[high_s for _, _, _, high_s in known],
        task_measured_s=[alone[task.workload_key] for task, _, _, _ in known],
        weights=[task.weight for task, _, _, _ in known],
        names=[task.operator for task, _, _, _ in known],
    )  # fmt: skip


def main() -> int:
    """Writes both files; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="pretrained")
    parser.add_argument("--device", default="epyc-avx512-1c")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    args = parser.parse_args()
    make_folder(args.out, what="results")
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for name in args.networks:
            rows.append(predict_and_measure(name, args.model, args.device, Path(scratch)))
            print(f"{name}: {rows[-1].error:+.1%}", file=sys.stderr, flush=True)
    write_json(args.out / "network-prediction.json", {
        "device": args.device, "model": args.model, "commit": commit(), "machine": machine(),
        "versions": versions(), "networks": [asdict(row) for row in rows],
    })  # fmt: skip
    write_atomic(args.out / "network-prediction.md", partial(_write, _page(rows, args)))
    return 0


def _page(rows: list[Row], args: argparse.Namespace) -> str:
    lines = [
        "# Predicted against measured networks", "",
        f"`make bench-networks`: random weights, batch 1, `{args.device}`, model `{args.model}`. "
        "Every task has the first valid sample of its MetaSchedule space (seed 0) as its "
        "schedule; *measured* is the network compiled with exactly these schedules, *sum of "
        "measured* calls x the time of each task alone (warm caches): what a perfect model would "
        "predict. Tasks: error of each task's prediction and how many of their times lie in the "
        "90 % interval.", "",
        "| network | tasks / calls | predicted ms | interval | measured ms | error "
        "| in the interval | sum of measured ms | its error | tasks: mean error | median "
        "| in their interval |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for row in rows:
        errors = np.abs(row.task_errors)
        lines.append(
            f"| {row.network} | {row.tasks} / {row.calls} | {1e3 * row.predicted_s:.1f} | "
            f"{1e3 * row.low_s:.1f}-{1e3 * row.high_s:.1f} | {1e3 * row.measured_s:.1f} | "
            f"{row.error:+.0%} | {'yes' if row.low_s <= row.measured_s <= row.high_s else 'no'} | "
            f"{1e3 * row.sum_measured_s:.1f} | {row.sum_measured_s / row.measured_s - 1:+.0%} | "
            f"{errors.mean():.0%} | {np.median(errors):.0%} | {row.covered.sum()} of "
            f"{len(row.covered)} |"
        )
        if row.missing:
            lines.append(f"| | without a prediction: {', '.join(row.missing)} " + "| " * 10 + "|")
    mean = np.mean([abs(row.error) for row in rows])
    lines += ["", f"Mean absolute error of the networks: {mean:.0%}.", ""]
    return "\n".join(lines)


def _write(text: str, path: Path) -> None:
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
