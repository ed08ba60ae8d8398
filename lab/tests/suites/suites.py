"""Tiny suites on synthetic samples, for the tests of the engine and of the tables."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np

from cdmpp.datasets.samples import Samples
from cdmpp.testing.synthetic import make_samples
from lab.suites.options import SuiteDataset, SuiteFamily, SuiteModel, SuiteOptions
from lab.suites.plan import SuiteCell, dataset_facts, plan_cells

QUICK = (
    "gbdt.trees=5",
    "gbdt.threads=1",
    "transformer.network.hidden=16",
    "transformer.network.layers=1",
    "transformer.network.members=1",
    "transformer.loop.epochs=1",
)

CROSS_MODEL = SuiteOptions(
    name="small-model",
    protocol="cross-model",
    subject="gbdt",
    datasets=(
        SuiteDataset("synthetic", splits=("task",)),
        SuiteDataset("elsewhere", splits=("task",)),
    ),
    seeds=(0, 1),
    models=(SuiteModel("gbdt"), SuiteModel("roofline"), SuiteModel("constant")),
    fractions=(0.4, 0.3, 0.3),
    few_workloads=2,
    settings=QUICK,
)

CROSS_DEVICE = SuiteOptions(
    name="small-device",
    protocol="cross-device",
    subject="transformer",
    datasets=(SuiteDataset("synthetic", families=(SuiteFamily("pair", ("fast", "slow")),)),),
    seeds=(0,),
    methods=("one-factor", "constant-budget", "zero-shot", "roofline-zero-shot"),
    budgets=(0, 1, 3, 30),
    sampler_budget=3,
    settings=QUICK,
)


def load_synthetic(folder: Path) -> Samples:
    """Samples with varying operators and repeats; `folder` only gives their name."""
    samples = make_samples(20, 5)
    names = ["conv2d+add+relu", "dense", "max_pool", "softmax"]
    operator = np.array([names[t % 4] for t in samples.programs.task_id], object)
    return replace(samples, programs=replace(samples.programs, operator=operator))


def load_or_die(folder: Path) -> Samples:
    """Kills its process for one of the two datasets."""
    if folder.name == "deadly":
        os.kill(os.getpid(), signal.SIGKILL)
    return load_synthetic(folder)


def plan(suite: SuiteOptions) -> list[SuiteCell]:
    return plan_cells(suite, {"synthetic": dataset_facts(load_synthetic(Path()))})
