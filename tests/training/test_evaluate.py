"""Judging a trained model on any samples."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdmpp.errors import DataError
from cdmpp.models.constant import ConstantCostModel
from cdmpp.predict.estimates import TrainedModel
from cdmpp.predict.saved_model import ModelCard, task_digests
from cdmpp.testing.synthetic import make_samples, split_by_task
from cdmpp.training.evaluate import evaluate


def test_what_was_trained_on_is_counted_and_known_devices_are_the_models_own():
    samples = make_samples(6, 4)
    train, validation, _ = split_by_task(samples)
    model = ConstantCostModel()
    model.fit(train, validation, seed=0)
    digests = frozenset(task_digests(train))
    card = ModelCard("constant", {}, "", {}, samples.devices, digests, {})
    stranger = replace(samples, devices=(replace(samples.devices[0], threads=99),
                                         samples.devices[1]))  # fmt: skip
    found = evaluate(TrainedModel(model, card, None), stranger)
    assert found == evaluate(TrainedModel(model, card, None), samples)
    assert found["overlap_with_training"] == len(digests)
    assert set(found["by_device"]) == {"fast", "slow"}
    assert found["by_device"]["slow"]["overlap_with_training"] == len(digests)
    assert found["tasks"] == 6 - len(digests)
    assert found["left_out_samples"] == len(train)
    assert found["n"] == len(samples) - len(train)
    everything = evaluate(TrainedModel(model, card, None), samples, all_tasks=True)
    assert everything["n"] == len(samples)
    with pytest.raises(DataError, match=f"{len(digests)} tasks were in the model's training"):
        evaluate(TrainedModel(model, card, None), train)
    assert found["mape"] == pytest.approx(
        (found["by_device"]["fast"]["mape"] + found["by_device"]["slow"]["mape"]) / 2
    )
