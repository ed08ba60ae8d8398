"""What a training on a handful of tasks starts from; on synthetic samples."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cdmpp.datasets.samples import Samples
from cdmpp.models.constant import ConstantCostModel
from cdmpp.models.nets.options import LoopOptions, NetOptions
from cdmpp.models.options import TransformerOptions
from cdmpp.models.transformer import TransformerCostModel
from cdmpp.predict.saved_model import ModelCard, load_model, save_model
from cdmpp.testing.synthetic import make_samples
from cdmpp.training.finetune import start
from cdmpp.training.finetune.options import FinetuneOptions
from cdmpp.training.finetune.start import (
    HANDFUL,
    choose_start,
    may_start_from,
    start_from,
    start_sentence,
)
from cdmpp.training.options import TrainOptions
from cdmpp.training.run import OtherStart, train_run
from cdmpp.training.run_folder import split_facts

pytestmark = pytest.mark.training

NETWORK = NetOptions(hidden=16, layers=1, heads=2, feed_forward=16, head_hidden=16)
SHIPPED = TransformerOptions(
    network=NETWORK, loop=LoopOptions(epochs=10, programs_per_batch=16, learning_rate=1e-2)
)
POOR = TransformerOptions(network=NETWORK, loop=LoopOptions(epochs=1))
OPTIONS = FinetuneOptions(what="adapters", steps=10, validate_every=10, folds=2)


@pytest.fixture(scope="module")
def samples() -> Samples:
    return make_samples(60, 6)


@pytest.fixture(scope="module")
def shipped(samples: Samples, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the first device and of tasks from 20 on."""
    folder = tmp_path_factory.mktemp("shipped")
    train = samples.take((samples.device == 0) & (samples.task_id >= 20))
    model = TransformerCostModel(SHIPPED)
    model.fit(train, train, seed=0)
    save_model(model, folder, ModelCard.of("transformer", train, split_facts("task", 0, "")))
    return folder


@pytest.fixture(scope="module")
def handful(samples: Samples) -> Samples:
    """Ten tasks on a device that is nearly the shipped one's, but that it never saw."""
    rows = samples.take((samples.device == 0) & (samples.task_id < 10))
    new = replace(samples.devices[0], name="new-box")
    return replace(
        rows, devices=(samples.devices[0], new), device=np.ones(len(rows), np.int64),
        latency_s=1.2 * rows.latency_s,
    )  # fmt: skip


def chosen(
    shipped: Path, handful: Samples, run_dir: Path
) -> tuple[OtherStart | None, dict[str, Any] | None]:
    """What is chosen beside a model that learns little from nothing."""
    train, validation = handful.take(handful.task_id < 6), handful.take(handful.task_id >= 6)
    return choose_start(
        lambda: TransformerCostModel(POOR), "transformer", shipped, handful, train, validation,
        options=OPTIONS, seed=0, run_dir=run_dir,
    )  # fmt: skip


@pytest.mark.exhaustive
def test_the_shipped_model_wins_where_little_can_be_learned(
    shipped: Path, handful: Samples, tmp_path: Path
) -> None:
    found, facts = chosen(shipped, handful, tmp_path)
    assert found is not None
    assert facts is not None
    assert len(found.held_out) == len(found.held_out_s) == len(handful)
    errors = facts["held_out_error"]
    assert errors[facts["kept"]] < errors["nothing"]
    assert "the shipped model" in start_sentence(facts)


def test_tasks_that_the_shipped_model_has_seen_on_other_devices_are_counted(
    shipped: Path, handful: Samples, samples: Samples, tmp_path: Path
) -> None:
    """`evaluate` leaves such tasks out, so `train` says how many there are."""
    assert "training data" not in start_sentence(chosen(shipped, handful, tmp_path / "new")[1])
    rows = samples.take((samples.device == 0) & (samples.task_id >= 17) & (samples.task_id < 27))
    seen = replace(rows, devices=handful.devices, device=np.ones(len(rows), np.int64))
    train, validation = seen.take(seen.task_id < 23), seen.take(seen.task_id >= 23)
    _, facts = choose_start(
        lambda: TransformerCostModel(POOR), "transformer", shipped, seen, train, validation,
        options=OPTIONS, seed=0, run_dir=tmp_path,
    )  # fmt: skip
    assert (facts["tasks"], facts["tasks_of_shipped"]) == (10, 7)
    assert "; 7 of 10 tasks are in its training data with other devices" in start_sentence(facts)


@pytest.mark.exhaustive
def test_a_choice_of_large_tasks_takes_minutes(
    shipped: Path, handful: Samples, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Was: a full training in every fold, 8 minutes of 6,500 A100 programs."""
    monkeypatch.setattr(start, "SAMPLES_TO_CHOOSE_ON", 30)
    assert len(handful) > 30
    found, facts = chosen(shipped, handful, tmp_path)
    assert found is not None
    assert facts is not None
    assert len(found.held_out) <= 30
    assert facts["held_out_tasks"] == 10


class Perfect(ConstantCostModel):
    """Knows everything without learning."""

    def predict(self, samples: Samples) -> np.ndarray:
        return samples.latency_s


@pytest.mark.exhaustive
def test_from_nothing_wins_where_it_is_clearly_better(
    shipped: Path, handful: Samples, tmp_path: Path
) -> None:
    own, rest = handful.take(handful.task_id < 8), handful.take(handful.task_id >= 8)
    found, facts = choose_start(
        Perfect, "transformer", shipped, handful, own, rest,
        options=OPTIONS, seed=0, run_dir=tmp_path,
    )  # fmt: skip
    assert found is None
    assert facts is not None
    assert (facts["kept"], facts["held_out_error"]["nothing"]) == ("nothing", 0.0)
    assert start_sentence(facts).startswith("nothing (")


@pytest.mark.exhaustive
def test_there_is_a_choice_for_a_handful_of_tasks_of_a_neural_model_only(
    shipped: Path, samples: Samples, tmp_path: Path
) -> None:
    few = samples.take(samples.task_id < 4)
    many = samples.take(samples.task_id <= HANDFUL)
    nothing = samples.take(np.zeros(0, np.int64))
    for kind, train in (("constant", few), ("transformer", many)):
        found = choose_start(
            ConstantCostModel, kind, shipped, samples, train, nothing, seed=0, run_dir=tmp_path
        )
        assert found == (None, None)


def test_a_model_that_has_seen_the_tasks_is_not_compared(
    shipped: Path, samples: Samples, handful: Samples
) -> None:
    """Its error would be that of a training part."""
    card = load_model(shipped)[1]
    assert may_start_from(card, handful)
    seen = (samples.device == 0) & (samples.task_id == 30)
    assert not may_start_from(card, samples.take(seen))
    assert may_start_from(card, samples.take((samples.device == 1) & (samples.task_id == 30)))
    assert not may_start_from(card, make_samples(4, 4, leaf_schema=2))


def test_a_run_of_a_handful_says_what_it_started_from_and_can_be_loaded(
    shipped: Path, handful: Samples, tmp_path: Path
) -> None:
    options = TrainOptions(transformer=POOR, baselines=("constant",), fractions=(0.6, 0.2, 0.2))
    choose = start_from(shipped, options, tuning=OPTIONS)
    result = train_run(options, handful, tmp_path / "run", choose_start=choose)
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["start"]["kept"] == result.metrics["start"]["kept"] != "nothing"
    model, card = load_model(tmp_path / "run")
    assert {spec.name for spec in card.devices} >= {"new-box"}
    assert np.allclose(model.predict(result.test), result.predicted_s["transformer"])
    plain = train_run(options, handful, tmp_path / "plain")
    assert "start" not in plain.metrics
