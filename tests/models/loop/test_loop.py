"""The training loop on a small problem of its own."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from cdmpp.errors import DataError, UsageError
from cdmpp.models.loop.loop import train_loop
from cdmpp.models.loop.pace import triangle
from cdmpp.models.nets.options import LoopOptions, NetOptions
from cdmpp.models.options import GbdtOptions, RecursiveLstmOptions, TlpOptions


class Line:
    """Fits y = 3 x with one weight; the validation loss can be dictated."""

    def __init__(self, validation_losses=None, factor=1.0):
        self.x = torch.linspace(-1, 1, 32)[:, None]
        self.validation_losses = list(validation_losses or [])
        self.factor = factor

    def batches(self, epoch):
        order = np.random.default_rng(epoch).permutation(32).astype(np.int64)
        return [order[start : start + 8] for start in range(0, 32, 8)]

    def loss(self, network, batch):
        x = self.x[torch.from_numpy(batch)]
        return self.factor * torch.mean((network(x) - 3 * x) ** 2), len(batch)

    def validate(self, network):
        if self.validation_losses:
            return self.validation_losses.pop(0)
        return float(torch.mean((network(self.x) - 3 * self.x) ** 2))


def train(trainee, run_dir=None, **options):
    torch.manual_seed(0)
    network = torch.nn.Linear(1, 1)
    loop = LoopOptions(learning_rate=0.05, weight_decay=0.0, average_decay=0.9, **options)
    return train_loop(network, trainee, loop, seed=0, fingerprint="x", run_dir=run_dir)


def test_it_learns():
    result = train(Line(), epochs=80, patience=80)
    assert result.weights["weight"].item() == pytest.approx(3.0, abs=0.05)
    assert result.history[-1]["validation_loss"] < result.history[0]["validation_loss"] / 100


def test_stops_after_patience_and_keeps_the_best():
    losses = [3.0, 2.0, 2.5, 2.5, 2.5, 1.0]
    result = train(Line(losses), epochs=50, patience=3)
    assert result.best_epoch == 2
    assert len(result.history) == 5
    assert result.steps == 5 * 4


def test_log_has_one_line_an_epoch(tmp_path):
    result = train(Line(), run_dir=tmp_path, epochs=3)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert lines == result.history
    assert [line["epoch"] for line in lines] == [1, 2, 3]


def test_only_the_newest_checkpoint_is_kept(tmp_path):
    train(Line(), run_dir=tmp_path, epochs=3, checkpoint_every=2)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000012"]


def test_finished_training_is_not_repeated(tmp_path):
    first = train(Line(), run_dir=tmp_path, epochs=3)
    again = train(Line(validation_losses=[0.0]), run_dir=tmp_path, epochs=3)
    assert again.history == first.history
    assert torch.equal(again.weights["weight"], first.weights["weight"])


def test_random_state_and_threads_of_the_caller_are_left_alone():
    threads = torch.get_num_threads()
    torch.manual_seed(7)
    network = torch.nn.Linear(1, 1)
    state = torch.get_rng_state()
    train_loop(network, Line(), LoopOptions(epochs=1, threads=1), seed=3, fingerprint="x")
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize(
    ("trainee", "text"),
    [(Line(factor=float("nan")), "training loss"), (Line([float("inf")]), "validation loss")],
)
def test_loss_that_is_not_finite_is_an_error(trainee, text):
    with pytest.raises(DataError, match=text):
        train(trainee, epochs=2)


def test_validations_can_be_closer_than_passes():
    result = train(Line(), epochs=3, validate_every=3)
    assert [entry["step"] for entry in result.history] == [3, 6, 9, 12]
    assert result.steps == 12
    every_pass = train(Line(), epochs=3)
    assert [entry["step"] for entry in every_pass.history] == [4, 8, 12]


def test_validations_can_be_farther_than_passes():
    result = train(Line(), epochs=5, validate_every=8)
    assert [entry["step"] for entry in result.history] == [8, 16, 20]


def test_stretches_see_the_same_batches_as_passes():
    seen = {0: [], 3: []}
    for every, batches in seen.items():

        class Watched(Line):
            def loss(self, network, batch, batches=batches):
                batches.append(batch.tolist())
                return super().loss(network, batch)

        train(Watched(), epochs=3, validate_every=every)
    assert seen[0] == seen[3]


@pytest.mark.parametrize("every", [0, 3, 9])
def test_a_pass_with_fewer_batches_than_the_first_begins_again(every):
    class Uneven(Line):
        def batches(self, epoch):
            batches = super().batches(epoch)
            return batches if epoch == 0 else batches[: 4 - epoch % 2]

    assert train(Uneven(), epochs=4, validate_every=every).steps == 16


def test_most_steps_end_the_training():
    assert train(Line(), epochs=50, patience=50, max_steps=10).steps == 10


def test_cpu_time_ends_the_training_at_a_validation():
    result = train(Line(), epochs=10_000_000, patience=10_000_000, cpu_seconds=0.3)
    assert result.history[-1]["cpu_s"] >= 0.3
    assert all(entry["cpu_s"] < 0.3 for entry in result.history[:-1])


def test_cpu_time_of_an_interrupted_training_counts(tmp_path):
    first = train(Line(), run_dir=tmp_path, epochs=3, cpu_seconds=1e-9)
    assert len(first.history) == 1
    assert train(Line(), run_dir=tmp_path, epochs=3, cpu_seconds=1e-9).steps == first.steps


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (LoopOptions, {"epochs": -1}),
        (LoopOptions, {"learning_rate": -1.0}),
        (LoopOptions, {"weight_decay": -0.1}),
        (LoopOptions, {"average_decay": 1.0}),
        (NetOptions, {"heads": 5, "hidden": 64}),
        (NetOptions, {"members": 0}),
        (NetOptions, {"dropout": 1.5}),
        (NetOptions, {"layers": -1}),
        (TlpOptions, {"heads": 0}),
        (GbdtOptions, {"trees": 0}),
        (GbdtOptions, {"subsample": 0.0}),
        (RecursiveLstmOptions, {"embed": ()}),
        (RecursiveLstmOptions, {"dropout": -0.1}),
    ],
)
def test_numbers_that_no_training_can_have(kind, options):
    with pytest.raises(UsageError, match=f"{next(iter(options))} must"):
        kind(**options)


def test_triangle_goes_from_a_tenth_to_ten_times_and_back():
    factors = [triangle(step, 4) for step in range(9)]
    assert factors == pytest.approx([0.1, 2.575, 5.05, 7.525, 10, 7.525, 5.05, 2.575, 0.1])


def test_adam_couples_its_weight_decay():
    weights = {
        kind: train(Line(), epochs=5, optimiser=kind, schedule="triangular").weights["weight"]
        for kind in ("adam", "adamw")
    }
    # No decay: the same, but for the last bit of the fused kernel of adamw.
    assert torch.allclose(weights["adam"], weights["adamw"], rtol=1e-6, atol=0.0)
