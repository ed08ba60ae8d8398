"""How far analytic kernels are off: between which errors 90 % of NeuSight's instances lie.

`python -m tests.benchmarks.kernel_intervals DIR` prints what stands under `log_errors` (kernels as
a replay times them), `queued_log_errors` (operators behind others) and `roofline_log_errors`
(rooflines with the fitted launch) in `cdmpp/pretrained/operators/card.json`; DIR has
`peers/op_instances.csv.gz`, which nothing was fitted on. By kernel or operator and by whether the
operator model was fitted on the GPU (`seen`).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from cdmpp.analytic.kernels.times import KernelCall, KernelTimes, error_group, kernel_names
from cdmpp.analytic.operators.errors import judged_as
from cdmpp.analytic.operators.model import OperatorModel, known_hardware, packaged_model_path
from cdmpp.analytic.operators.operators import Operators
from cdmpp.analytic.operators.tables import read_instances
from cdmpp.analytic.roofline.operators import operator_bound
from cdmpp.devices.registry import get_device

COVERAGE = 0.9


Errors = dict[tuple[str, str], list[float]]


def log_errors(folder: Path) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Returns entry of the card -> group -> seen or unseen -> 5 and 95 % quantiles of
    log(measured / predicted), at most and at least 0.
    """
    model = OperatorModel.load(packaged_model_path())
    kernels: Errors = {}
    queued: Errors = {}
    rooflines: Errors = {}
    for rows in read_instances(folder / "peers" / "op_instances.csv.gz").values():
        labels = [str(label) for label in rows.table.device]
        known = known_hardware(sorted(set(labels)))
        launch_s = {label: model.launch_s(label, one) for label, one in known.items()}
        times = {label: KernelTimes(get_device(label)) for label in known}
        one = rows.table.operators
        queued_s = model.predict(one, rows.table.device, known, context="queued")
        for place, (kind, label) in enumerate(zip(one.kind, labels, strict=True)):
            which = "seen" if label in model.known else "unseen"
            call = kernel_call(one, place)
            bound = operator_bound(one, place, known[label], launch_s=launch_s[label])
            for errors, group, seconds in (
                (kernels, error_group(call.kernel), times[label].latency_s(call)),
                (queued, judged_as(str(kind)), float(queued_s[place])),
                (rooflines, judged_as(str(kind)), bound.seconds),
            ):
                error = float(np.log(rows.table.latency_s[place] / seconds))
                errors.setdefault((group, which), []).append(error)
    return {
        "log_errors": ends(kernels),
        "queued_log_errors": ends(queued),
        "roofline_log_errors": ends(rooflines),
    }


def kernel_call(operators: Operators, place: int) -> KernelCall:
    """Returns the kernel of one of the operators."""
    kind = str(operators.kind[place])
    name = {"linear": "gemm", "bmm": "gemm", "ln": "layer-norm"}.get(kind, kind)
    name = name.removesuffix("u") if name not in kernel_names() else name
    sizes = {key: float(getattr(operators, key)[place]) for key in ("rows", "cols")}
    if name == "gemm":
        sizes = {key: float(getattr(operators, key)[place]) for key in ("batch", "m", "n", "k")}
    elif name not in ("softmax", "layer-norm"):
        sizes = {"elements": sizes["rows"] * sizes["cols"]}
    return KernelCall(name, sizes)


def ends(errors: Errors) -> dict[str, dict[str, list[float]]]:
    """Returns group -> seen or unseen -> the quantiles."""
    found: dict[str, dict[str, list[float]]] = {}
    for (group, which), values in sorted(errors.items()):
        low, high = np.quantile(values, [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2])
        both = [min(float(low), 0.0), max(float(high), 0.0)]
        found.setdefault(group, {})[which] = [round(end, 3) for end in both]
    return found


if __name__ == "__main__":
    print(json.dumps(log_errors(Path(sys.argv[1])), indent=1))
