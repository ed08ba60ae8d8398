"""SeerNet on timm's networks: a baseline for one device and one configuration."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from cdmpp.arrays import BoolArray, FloatArray, IntArray
from cdmpp.devices.registry import get_device
from cdmpp.files.atomic import make_folder, write_json
from cdmpp.networks.dataset.samples import TARGETS, NetworkSamples, unmeasured
from cdmpp.networks.models.base import new_model
from cdmpp.networks.models.options import GraphFitOptions, NetworkOptions, SeerNetOptions
from cdmpp.networks.step_time.graphs import read_graphs
from cdmpp.networks.step_time.runs import MeasuredRun

_SEED = 0
#: As on the page of CPU networks: narrower and with fewer epochs than published.
OPTIONS = NetworkOptions(
    seernet=SeerNetOptions(hidden=128, fit=GraphFitOptions(epochs=40, batch=16))
)


def seernet_logs(
    runs: Sequence[MeasuredRun], rows: BoolArray, parts: IntArray, judged: Sequence[int], out: Path
) -> FloatArray:
    """Returns float64 [N], log seconds by one seed; NaN outside the predicted runs.

    Each fit uses the part after the test part for validation.

    Args:
        rows: runs of one device and configuration.
        parts: int64 [N], of the families.
        judged: parts to predict.
        out: stores the predictions of finished fits, so that a killed run resumes.
    """
    chosen = np.flatnonzero(rows)
    samples = _samples([runs[row] for row in chosen.tolist()])
    own = parts[chosen]
    count = int(parts.max()) + 1
    facts = [samples.names, samples.targets[:, 0].tolist(), own.tolist(), repr(OPTIONS)]
    key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
    make_folder(out, what="predictions")
    logs = np.full(len(runs), np.nan)
    for part in judged:
        path = out / f"{key}-part-{part}-seed-{_SEED}.json"
        test = np.flatnonzero(own == part)
        if not path.exists():
            held = own == (part + 1) % count
            model = new_model("seernet", OPTIONS)
            model.fit(
                samples.take(np.flatnonzero(~held & (own != part))),
                samples.take(np.flatnonzero(held)), seed=_SEED,
            )  # fmt: skip
            write_json(path, np.log(model.predict(samples.take(test))[:, 0]).tolist())
        logs[chosen[test]] = json.loads(path.read_text())
    return logs


def _samples(runs: Sequence[MeasuredRun]) -> NetworkSamples:
    """Returns runs of one device as samples with inference times only."""
    (label,) = {run.device for run in runs}
    graphs = read_graphs()
    samples = unmeasured(
        [graphs.graph(run.arch, run.size, run.batch) for run in runs], [get_device(label)]
    )
    targets = np.full((len(runs), len(TARGETS)), np.nan)
    targets[:, 0] = [run.step_s for run in runs]
    return replace(samples, targets=targets)
