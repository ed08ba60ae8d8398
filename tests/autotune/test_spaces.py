"""What can be searched is what the option dataclasses have."""

from __future__ import annotations

import math

import optuna
import pytest

from cdmpp.autotune.options import AutotuneOptions, check_options
from cdmpp.autotune.settings import chosen_values, recorded_values, with_values
from cdmpp.autotune.spaces import space_of
from cdmpp.config import load_config
from cdmpp.errors import UsageError
from cdmpp.models.registry import MODEL_CLASSES
from cdmpp.training.options import TrainOptions
from tests.training.test_configs import CONFIGS

FIXED = {"constant", "roofline"}
TUNABLE = sorted(set(MODEL_CLASSES) - FIXED)


@pytest.mark.parametrize("kind", sorted(FIXED))
def test_kinds_without_options_have_no_space(kind):
    with pytest.raises(UsageError, match="nothing of the model"):
        space_of(kind)


@pytest.mark.parametrize("kind", TUNABLE)
def test_every_value_is_of_an_option(kind):
    space = space_of(kind)
    assert len({setting.path for setting in space}) == len(space)
    base = TrainOptions(model=kind)
    for setting in space:
        values = setting.choices or (
            (int(setting.low), int(setting.high)) if setting.is_whole
            else (setting.low, setting.high)
        )  # fmt: skip
        assert len(values) > 1
        if setting.part in ("value", "block"):
            for value in values:
                with_values(base, [setting], {setting.path: value})
        if setting.when is not None:
            earlier = [other.path for other in space[: space.index(setting)]]
            assert setting.when.path in earlier


@pytest.mark.parametrize("kind", TUNABLE)
def test_what_is_drawn_can_be_read_back(kind):
    space = space_of(kind)
    base = TrainOptions(model=kind)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=3))
    for _ in range(5):
        trial = study.ask()
        values = chosen_values(space, trial, base)
        drawn = with_values(base, space, values)
        assert recorded_values(space, drawn) == trial.params
        study.enqueue_trial(trial.params)
        again = study.ask()
        assert with_values(base, space, chosen_values(space, again, base)) == drawn


@pytest.mark.parametrize("kind", TUNABLE)
def test_studies_begin_with_the_defaults(kind):
    space = space_of(kind)
    base = TrainOptions(model=kind)
    study = optuna.create_study()
    study.enqueue_trial(recorded_values(space, base))
    assert with_values(base, space, chosen_values(space, study.ask(), base)) == base


def test_conditions_hold():
    space = space_of("transformer")
    base = TrainOptions()
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    seen = set()
    for _ in range(30):
        values = chosen_values(space, study.ask(), base)
        schedule = values["transformer.loop.schedule"]
        seen.add(schedule)
        assert ("transformer.loop.half_period" in values) == (schedule == "triangular")
        assert ("transformer.network.traffic" in values) == values["transformer.network.ratios"]
    assert seen == {"cosine", "triangular"}


def test_a_condition_on_what_is_not_searched_is_decided_by_the_options():
    space = space_of("transformer", exclude=["transformer.loop.schedule"])
    study = optuna.create_study()
    values = chosen_values(space, study.ask(), TrainOptions())
    assert "transformer.loop.warmup_fraction" in values
    assert "transformer.loop.half_period" not in values


def test_groups_and_exclusions():
    paths = {setting.path for setting in space_of("gbdt", groups=["leaf-blocks"])}
    assert paths
    assert all(".extra_blocks." in path for path in paths)
    with pytest.raises(UsageError, match="no setting"):
        space_of("tlp", groups=["leaf-blocks"])
    with pytest.raises(UsageError, match="did you mean 'gbdt'"):
        space_of("gbtd")


def test_a_value_outside_the_space_is_told(caplog):
    space = space_of("cdmpp-paper")
    published = load_config(TrainOptions, CONFIGS / "models" / "cdmpp-paper-published.yaml")
    changed = with_values(published, space, {"cdmpp_paper.loop.learning_rate": 1e-9})
    recorded = recorded_values(space, changed)
    assert recorded["cdmpp_paper.loop.learning_rate"] == 1e-6
    assert "outside the space" in caplog.text


@pytest.mark.parametrize("name", ["minutes", "cpu_minutes", "most_parameters", "most_trial_cpu_s"])
@pytest.mark.parametrize("value", [-1, math.nan, math.inf])
def test_a_limit_is_a_number(name, value):
    """--minutes nan was no limit, --minutes -1 ended without a trial."""
    with pytest.raises(UsageError, match=f"{name} is .*, expected a number from 0"):
        check_options(AutotuneOptions(**{name: value}))
