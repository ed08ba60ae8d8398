"""Times training and prediction of the cost models on one thread, in interleaved rounds.

All times are CPU time of the process: training samples per second (one sample is one program on one
device; includes building the batches), and predictions per second of `predict` on extracted
programs.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cdmpp.config import load_config
from cdmpp.datasets.cache import load_samples
from cdmpp.datasets.samples import Samples
from cdmpp.datasets.splits import split
from cdmpp.models.loop.progress import TrainProgress
from cdmpp.training.options import TrainOptions
from cdmpp.training.run import new_model
from lab.pages import sections, write_page
from lab.paths import ROOT
from lab.stamp import PROGRAMS, stamp

COMMAND = "python -m lab run model-speed"
KINDS = ("transformer", "ensemble", "segment-mlp", "gbdt", "recursive-lstm", "cdmpp-paper")
#: Baseline of the ratios.
ORIGINAL = "cdmpp-paper"
#: Number of timed steps, after as many warm-up steps.
STEPS = 30


class _EnoughError(Exception):
    """Ends a training whose steps have been timed."""


def options_of(kind: str) -> TrainOptions:
    """Returns the preset of a model kind, or the defaults, for one thread."""
    preset = ROOT / "configs" / "models" / f"{kind}.yaml"
    options = load_config(TrainOptions, preset if preset.is_file() else None)
    return replace(options, gbdt=replace(options.gbdt, threads=1))


def training_speed(kind: str, train: Samples) -> float | None:
    """Returns training samples per CPU second; None for kinds without steps."""
    options = options_of(kind)
    own = getattr(options, kind.replace("-", "_"))
    if not hasattr(own, "loop"):
        return None
    times: list[float] = []

    def note(_: TrainProgress) -> None:
        times.append(time.process_time())
        if len(times) > 2 * STEPS:
            raise _EnoughError

    try:
        new_model(kind, options).fit(train, train.take(np.arange(200)), seed=0, on_progress=note)
    except _EnoughError:
        per_program = len(train) / len(np.unique(train.program))
        samples = own.loop.programs_per_batch * per_program
        return float(samples * STEPS / (times[2 * STEPS] - times[STEPS]))
    raise SystemExit(f"{kind}: the training ended after {len(times)} steps, {2 * STEPS} are needed")


def trained_briefly(kind: str, train: Samples) -> Any:
    """Returns a barely trained model of the right size; its accuracy does not matter."""
    options = options_of(kind)
    own = getattr(options, kind.replace("-", "_"))
    if kind == "ensemble":
        own = replace(
            own,
            transformer=replace(own.transformer, loop=replace(own.transformer.loop, max_steps=5)),
            perceptron=replace(own.perceptron, loop=replace(own.perceptron.loop, max_steps=5)),
        )
    elif hasattr(own, "loop"):
        own = replace(own, loop=replace(own.loop, max_steps=5))
    model = new_model(kind, replace(options, **{kind.replace("-", "_"): own}))
    model.fit(train, train.take(np.arange(200)), seed=0)
    return model


def parameters_of(model: Any) -> int | None:
    """Returns the number of weights of the networks; None for trees."""
    with tempfile.TemporaryDirectory() as folder:
        state = model.save(Path(folder))
    parts = [state, state.get("transformer", {}), state.get("perceptron", {})]
    found = [int(part["parameters"]) for part in parts if "parameters" in part]
    return sum(found) or None


def prediction_speed(model: Any, samples: Samples) -> float:
    """Returns predictions per CPU second."""
    began = time.process_time()
    model.predict(samples)
    return float(len(samples) / (time.process_time() - began))


def experiment(extracted: Path = ROOT / "cache" / "tenset-cpu", rounds: int = 5) -> None:
    """Trains every model briefly, times all models in every round, and writes the page."""
    torch.set_num_threads(1)
    samples = load_samples(extracted)
    parts = split(samples, "task", seed=0)
    train, test = samples.take(parts.train), samples.take(parts.test)
    print(f"{len(train)} training samples, {len(test)} to predict", file=sys.stderr)
    models = {kind: trained_briefly(kind, train) for kind in KINDS}
    training: dict[str, list[float]] = {kind: [] for kind in KINDS}
    prediction: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for number in range(rounds):
        for kind in KINDS:
            speed = training_speed(kind, train)
            if speed is not None:
                training[kind].append(speed)
            prediction[kind].append(prediction_speed(models[kind], test))
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
    result = {
        "training_samples_per_cpu_s": training,
        "predictions_per_cpu_s": prediction,
        "parameters": {kind: parameters_of(models[kind]) for kind in KINDS},
        "programs": {"training": len(train), "test": len(test)},
    }
    found = stamp(COMMAND, schemas=PROGRAMS, data={"tenset-cpu": samples.programs.data_hash})
    write_page("model-speed", _page(result), result, found)


def _page(result: dict[str, Any]) -> str:
    training, prediction = result["training_samples_per_cpu_s"], result["predictions_per_cpu_s"]
    lines = [
        "| model | weights | training samples/s | x | predictions/s | x |",
        "|---|---|---|---|---|---|",
    ]
    for kind in KINDS:
        size = result["parameters"][kind]
        cells = [kind, "trees" if size is None else f"{size:,}"]
        for speeds in (training, prediction):
            if not speeds[kind]:
                cells += ["", ""]
                continue
            pairs = zip(speeds[kind], speeds[ORIGINAL], strict=True)
            ratio = statistics.median(own / original for own, original in pairs)
            cells += [f"{statistics.median(speeds[kind]):,.0f}", f"{ratio:.1f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return sections("model-speed", table="\n".join(lines))
