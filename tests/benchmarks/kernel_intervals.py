"""How far analytic kernels are off: between which errors 90 % of NeuSight's instances lie.

`python -m tests.benchmarks.kernel_intervals DIR` prints what stands under `log_errors` in
`cdmpp/pretrained/operators/card.json`; DIR has `peers/op_instances.csv.gz`, which nothing was
fitted on. By kernel and by whether the operator model was fitted on the GPU (`seen`).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from cdmpp.analytic.kernels.times import KernelCall, KernelTimes, error_group, kernel_names
from cdmpp.analytic.operators.model import OperatorModel, packaged_model_path
from cdmpp.analytic.operators.tables import read_instances
from cdmpp.devices.registry import get_device

COVERAGE = 0.9


def log_errors(folder: Path) -> dict[str, dict[str, list[float]]]:
    """Returns kernel group -> seen or unseen -> 5 and 95 % quantiles of log(measured / predicted),
    at most and at least 0.
    """
    known = OperatorModel.load(packaged_model_path()).known
    errors: dict[tuple[str, str], list[float]] = {}
    times: dict[str, KernelTimes] = {}
    for rows in read_instances(folder / "peers" / "op_instances.csv.gz").values():
        one = rows.table.operators
        for place, (kind, label) in enumerate(zip(one.kind, rows.table.device, strict=True)):
            name = {"linear": "gemm", "bmm": "gemm", "ln": "layer-norm"}.get(kind, str(kind))
            name = name.removesuffix("u") if name not in kernel_names() else name
            sizes = {key: float(getattr(one, key)[place]) for key in ("rows", "cols")}
            if name == "gemm":
                sizes = {key: float(getattr(one, key)[place]) for key in ("batch", "m", "n", "k")}
            elif name not in ("softmax", "layer-norm"):
                sizes = {"elements": sizes["rows"] * sizes["cols"]}
            device = times.setdefault(str(label), KernelTimes(get_device(str(label))))
            seconds = device.latency_s(KernelCall(name, sizes))
            group = error_group(name), "seen" if str(label) in known else "unseen"
            error = float(np.log(rows.table.latency_s[place] / seconds))
            errors.setdefault(group, []).append(error)
    found: dict[str, dict[str, list[float]]] = {}
    for (kernel, which), values in sorted(errors.items()):
        low, high = np.quantile(values, [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2])
        ends = [min(float(low), 0.0), max(float(high), 0.0)]
        found.setdefault(kernel, {})[which] = [round(end, 3) for end in ends]
    return found


if __name__ == "__main__":
    print(json.dumps(log_errors(Path(sys.argv[1])), indent=1))
