"""The search for the peers' settings on small data."""

from __future__ import annotations

import csv

import pytest

from cdmpp.config import load_config
from cdmpp.errors import UsageError
from cdmpp.models.options import SegmentMlpOptions
from cdmpp.models.registry import MODEL_CLASSES
from cdmpp.nn.options import LoopOptions
from cdmpp.training.options import TrainOptions
from cdmpp.training.tune_peers import SPACES, tune, write_preset, write_trials
from tests.models.synthetic import make_samples

BASE = TrainOptions(segment_mlp=SegmentMlpOptions(loop=LoopOptions(epochs=1)))


@pytest.mark.parametrize("kind", sorted(SPACES))
def test_every_space_is_of_settings_that_exist(kind, tmp_path):
    assert kind in MODEL_CLASSES
    space = SPACES[kind]
    path = tmp_path / "preset.yaml"
    for place in (0, 1):
        settings = {name: choices[min(place, len(choices) - 1)] for name, choices in space.items()}
        write_preset(path, kind, settings)
        assert load_config(TrainOptions, path).model == kind


def test_first_trial_is_the_default_and_the_best_is_kept(tmp_path):
    data = {"a": make_samples(12, 4), "b": make_samples(12, 4, seed=1)}
    trials, best = tune("segment-mlp", data, cpu_seconds=1.0, trial_seconds=5.0, seed=0, base=BASE)
    assert [trial.dataset for trial in trials[:2]] == ["a", "b"]
    defaults = {name: choices[0] for name, choices in SPACES["segment-mlp"].items()}
    assert trials[0].settings == trials[1].settings == defaults
    product = {}
    for trial in trials:
        product.setdefault(trial.trial, []).append(trial)
    scores = {
        number: done[0].metrics["mape"] * done[1].metrics["mape"]
        for number, done in product.items()
    }
    assert product[min(scores, key=scores.get)][0].settings == best
    write_trials(tmp_path / "trials.csv", trials, {"segment-mlp": best})
    rows = list(csv.DictReader((tmp_path / "trials.csv").read_text().splitlines()))
    assert len(rows) == len(trials)
    assert {row["chosen"] for row in rows} <= {"0", "1"}
    assert any(row["chosen"] == "1" for row in rows)


def test_a_preset_keeps_what_it_does_not_change(tmp_path):
    path = tmp_path / "segment-mlp.yaml"
    path.write_text("segment_mlp: {loop: {epochs: 7}, hidden: 9}\n")
    write_preset(path, "segment-mlp", {"hidden": 64, "loop.learning_rate": 0.01})
    options = load_config(TrainOptions, path).segment_mlp
    assert (options.hidden, options.loop.epochs, options.loop.learning_rate) == (64, 7, 0.01)


def test_unknown_kind_is_refused():
    with pytest.raises(UsageError, match="no settings to tune for 'roofline'"):
        tune("roofline", {}, cpu_seconds=1.0, trial_seconds=1.0, seed=0)
