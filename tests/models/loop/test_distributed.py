"""Two processes under torchrun do what one does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from cdmpp.errors import UsageError
from cdmpp.models.loop.distributed import first_then_others, training_device
from cdmpp.models.loop.loop import train_loop
from cdmpp.models.loop.shards import gather_samples, process_count, shares
from cdmpp.models.nets.options import LoopOptions
from cdmpp.models.transformer import TransformerCostModel
from cdmpp.testing.synthetic import make_samples, split_by_task
from tests.models.loop.distributed_child import OPTIONS, main
from tests.models.loop.test_loop import Line
from tests.paths import ROOT

pytestmark = pytest.mark.training

REPOSITORY = ROOT


def torchrun(*words: str) -> subprocess.CompletedProcess[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    return subprocess.run(
        [*launcher, *words],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def history_of(run_dir: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run_dir / "log.jsonl").read_text().splitlines()]


@pytest.mark.exhaustive
def test_two_processes_train_the_same_model_as_one(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    main(one)
    done = torchrun("tests/models/loop/distributed_child.py", str(two), "0.0")
    assert done.returncode == 0, done.stderr
    histories = history_of(one), history_of(two)
    assert [entry["step"] for entry in histories[0]] == [entry["step"] for entry in histories[1]]
    for key in ("training_loss", "validation_loss"):
        values = [[entry[key] for entry in history] for history in histories]
        np.testing.assert_allclose(values[0], values[1], rtol=1e-4)
        assert values[0][0] > 1.05 * values[0][-1], "nothing was learned"
    # Adam turns rounding of tiny gradients into steps, so weights differ more than predictions.
    predicted = [np.load(run_dir / "predicted.npy") for run_dir in (one, two)]
    np.testing.assert_allclose(predicted[0], predicted[1], rtol=1e-3)
    assert sorted(p.name for p in two.iterdir()) == sorted(p.name for p in one.iterdir())


def test_one_process_has_everything_to_itself():
    assert process_count() == 1
    items = np.arange(5)
    assert [part.tolist() for part in shares(items)] == [[0, 1, 2, 3, 4]]
    values = torch.ones(2, 3)
    assert gather_samples(values, [3]) is values
    assert first_then_others(lambda: 7) == 7


def test_a_missing_gpu_is_one_sentence():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(UsageError, match="found 0 for process 1"):
        training_device("cuda")
    train, validation, _ = split_by_task(make_samples(4, 4))
    options = replace(OPTIONS, loop=replace(OPTIONS.loop, device_type="cuda"))
    with pytest.raises(UsageError, match="--device-type cpu"):
        TransformerCostModel(options).fit(train, validation, seed=0)


def test_bfloat16_learns_about_as_well():
    train, validation, _ = split_by_task(make_samples(12, 5))
    last = {}
    for precision in ("fp32", "bf16"):
        loop = replace(OPTIONS.loop, precision=precision, epochs=6)
        model = TransformerCostModel(replace(OPTIONS, loop=loop))
        model.fit(train, validation, seed=5)
        last[precision] = model.history[-1]["validation_loss"]
    assert last["bf16"] != last["fp32"]
    assert last["bf16"] == pytest.approx(last["fp32"], rel=0.1)


def test_kinds_without_a_gpu_path_say_so(monkeypatch):
    monkeypatch.setattr("cdmpp.models.loop.loop.training_device", lambda kind: torch.device("cpu"))
    options = LoopOptions(device_type="cuda")
    with pytest.raises(UsageError, match="runs on the CPU only"):
        train_loop(torch.nn.Linear(1, 1), Line(), options, seed=0, fingerprint="x")
