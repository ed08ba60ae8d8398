"""Studies of small trainings: order, limits, ends of trials, continuation, page, command."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import optuna
import pytest
import yaml
from optuna.distributions import (
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import TrialState

from cdmpp.autotune import objective
from cdmpp.autotune.objective import study_parts
from cdmpp.autotune.options import (
    AutotuneOptions,
    ObjectiveOptions,
    PrunerOptions,
    check_options,
    preset_values,
)
from cdmpp.autotune.report import write_study_report
from cdmpp.autotune.settings import recorded_values
from cdmpp.autotune.slots import FAULT, PUT_BACK, REASON, SLOT
from cdmpp.autotune.storage import new_pruner
from cdmpp.autotune.study import Source, best_trial, run_study, winner_options, write_preset
from cdmpp.autotune.trial_rows import front, importances, trial_rows
from cdmpp.autotune.worker import work
from cdmpp.cli.autotune import print_trial
from cdmpp.cli.main import main
from cdmpp.config import load_config
from cdmpp.errors import DataError, NotApplicableError, NotFiniteError, UsageError
from cdmpp.models.base import CostModel
from cdmpp.models.nets.options import LoopOptions
from cdmpp.models.options import SegmentMlpOptions
from cdmpp.testing.synthetic import make_samples
from cdmpp.training.options import TrainOptions

TRAIN = TrainOptions(
    model="segment-mlp",
    fractions=(0.5, 0.3, 0.2),
    segment_mlp=SegmentMlpOptions(
        hidden=64, loop=LoopOptions(epochs=4, programs_per_batch=16, learning_rate=1e-3)
    ),
)
OPTIONS = AutotuneOptions(
    name="small",
    train=TRAIN,
    groups=("model", "optimiser", "batch"),
    trials=8,
    startup_trials=3,
    pruner=PrunerOptions(kind="percentile", first_epoch=1, startup_trials=2),
)


def load(folder: Path, devices: list[str] | None):
    return make_samples(20, 6)


SOURCE = Source(load, Path("unused"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished study and the path of its journal."""
    place = tmp_path_factory.mktemp("study") / "journal.log"
    return run_study(OPTIONS, SOURCE, place), place


def states(study) -> list[TrialState]:
    return [trial.state for trial in study.get_trials()]


def reasons(study) -> list[str]:
    return [trial.user_attrs.get(REASON, "") for trial in study.get_trials()]


@pytest.mark.slow
def test_a_study_begins_with_its_settings_and_does_all_trials(finished):
    study, _ = finished
    trials = study.get_trials()
    assert [trial.user_attrs[SLOT] for trial in trials] == list(range(8))
    space = OPTIONS.space("segment-mlp")
    assert trials[0].params == recorded_values(space, TRAIN)
    assert set(states(study)) <= {TrialState.COMPLETE, TrialState.PRUNED}
    done = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    for trial in done:
        assert trial.value == pytest.approx(trial.user_attrs["mape"])
        assert trial.user_attrs["predict_s"] > 0
    assert best_trial(study).value == min(trial.value for trial in done)


def test_no_trial_ends_before_the_first_epoch():
    options = replace(OPTIONS, pruner=PrunerOptions(first_epoch=2, startup_trials=1))
    study = optuna.create_study(pruner=new_pruner(options))
    good, bad = study.ask(), study.ask()
    for epoch in (1, 2):
        good.report(0.0, epoch)
    study.tell(good, 0.0)
    bad.report(1.0, 1)
    assert not bad.should_prune()
    bad.report(1.0, 2)
    assert bad.should_prune()


def test_bad_trials_end_early_with_the_reason(finished):
    study, _ = finished
    pruned = [t for t in study.get_trials() if t.state == TrialState.PRUNED]
    assert pruned, "the pruner ended nothing"
    for trial in pruned:
        assert trial.user_attrs[REASON].startswith("percentile: ")
        assert trial.user_attrs["epochs"] == len(trial.intermediate_values) < 4


def test_a_finished_study_is_not_done_again_and_can_be_made_longer(finished):
    study, place = finished
    before = study.get_trials()
    run_study(OPTIONS, SOURCE, place)
    assert len(study.get_trials()) == len(before)
    run_study(replace(OPTIONS, trials=9), SOURCE, place)
    after = study.get_trials()
    assert [trial.number for trial in after] == list(range(9))
    assert [t.params for t in after[:8]] == [t.params for t in before]


def test_a_study_of_other_options_is_refused(finished):
    _, place = finished
    with pytest.raises(UsageError, match=r"other options \(objective\)"):
        run_study(replace(OPTIONS, objective=ObjectiveOptions("error-and-order")), SOURCE, place)


def test_an_interrupted_study_draws_the_same(finished, tmp_path):
    whole, _ = finished
    place = tmp_path / "journal.log"
    run_study(replace(OPTIONS, trials=3), SOURCE, place)
    study = run_study(OPTIONS, SOURCE, place)
    for one, other in zip(whole.get_trials()[:8], study.get_trials(), strict=True):
        assert one.params == other.params
        assert one.values == other.values


def test_the_winner_is_a_preset_that_trains_the_same_model(finished, tmp_path):
    study, _ = finished
    best = best_trial(study)
    write_preset(tmp_path / "best.yaml", OPTIONS, best)
    options = load_config(TrainOptions, tmp_path / "best.yaml")
    winner = winner_options(OPTIONS, best)
    assert options.model == "segment-mlp"
    assert options.segment_mlp == winner.segment_mlp
    assert yaml.safe_load((tmp_path / "best.yaml").read_text()) == preset_values(winner)


def test_no_trial_sees_the_test_part():
    samples = make_samples(20, 6)
    parts = study_parts(TRAIN, samples)
    seen = set(parts.train.task_id.tolist()) | set(parts.validation.task_id.tolist())
    assert not set(parts.train.task_id.tolist()) & set(parts.validation.task_id.tolist())
    assert 0 < len(seen) < len(set(samples.task_id.tolist()))


def recorded_study(count: int) -> optuna.Study:
    """Returns a study of trials that were not trained."""
    study = optuna.create_study(study_name="recorded")
    rng = np.random.default_rng(0)
    for number in range(count):
        rate, layers = float(rng.uniform(1e-4, 1e-2)), int(rng.integers(1, 5))
        study.add_trial(
            optuna.create_trial(
                params={"rate": rate, "layers": layers, "wide": bool(number % 2)},
                distributions={
                    "rate": FloatDistribution(1e-4, 1e-2, log=True),
                    "layers": IntDistribution(1, 4),
                    "wide": CategoricalDistribution([True, False]),
                },
                value=rate * layers,
                user_attrs={"mape": rate * layers, "predict_s": 1e-6 * layers, "cpu_s": 2.0},
            )
        )
    return study


def test_the_page_is_one_file(tmp_path):
    study = recorded_study(16)
    page = write_study_report(study, tmp_path / "report.html", command="cdmpp autotune <x>")
    text = page.read_text("utf-8")
    assert text.count("<svg") == 4
    assert "cdmpp autotune &lt;x&gt;" in text
    # Names of XML vocabularies are no requests.
    text = text.replace('<link rel="icon" href="data:,"/>', "")
    assert not re.search(r"<script.+src|<link|src=\"http|url\(http|@import", text)
    for row in trial_rows(study):
        assert f"<td>{row.number}</td>" in text
    shares = importances(study)
    assert set(shares) == {"rate", "layers", "wide"}
    assert max(shares, key=lambda name: shares[name]) != "wide"


def test_a_page_of_an_unfinished_study(tmp_path):
    study = recorded_study(0)
    with pytest.raises(DataError, match="no trial yet"):
        write_study_report(study, tmp_path / "report.html", command="")
    study.ask()
    text = write_study_report(study, tmp_path / "report.html", command="").read_text("utf-8")
    assert "1 trial still running" in text


def test_front_is_what_no_other_beats(finished):
    study, _ = finished
    rows = trial_rows(study)
    best = front(rows)
    done = [row for row in rows if row.is_done]
    assert best
    for row in done:
        beaten = any(b.values[0] <= row.values[0] and b.predict_s <= row.predict_s for b in best)
        assert beaten or row in best
    for one in best:
        assert not any(o.values[0] < one.values[0] and o.predict_s < one.predict_s for o in done)


class _Failing(CostModel):
    kind = "failing"

    def __init__(self, error: Exception | None) -> None:
        self._error = error

    def fit(self, train, validation, *, seed, run_dir=None, on_progress=None):
        if self._error:
            raise self._error

    def predict(self, samples):
        return np.full(len(samples), np.nan)

    def save(self, directory):
        return {}

    @classmethod
    def load(cls, directory, state):
        return cls(None)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (NotFiniteError("the training loss became nan"), "not finite: the training loss"),
        (None, "not finite: a prediction"),
        (MemoryError("no"), "out of memory: no"),
        (RuntimeError("CUDA out of memory. Tried"), "out of memory: CUDA"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you"), "out of memory: Def"),
        (UsageError("heads must divide hidden"), "refused: heads"),
    ],
)
def test_trials_that_cannot_be_trained_are_pruned(error, reason, tmp_path, monkeypatch):
    monkeypatch.setattr(objective, "new_model", lambda kind, options: _Failing(error))
    study = run_study(replace(OPTIONS, trials=2), SOURCE, tmp_path / "journal.log")
    assert states(study) == [TrialState.PRUNED] * 2
    assert all(text.startswith(reason) for text in reasons(study))
    with pytest.raises(DataError, match="no trial of the study"):
        best_trial(study)


@pytest.mark.parametrize("error", [NotApplicableError("no steps"), RuntimeError("a bug")])
def test_what_no_other_trial_would_do_better_ends_the_worker(error, tmp_path, monkeypatch):
    monkeypatch.setattr(objective, "new_model", lambda kind, options: _Failing(error))
    with pytest.raises(type(error)):
        run_study(OPTIONS, SOURCE, tmp_path / "journal.log")


def test_too_many_parameters_are_not_trained(tmp_path):
    options = replace(OPTIONS, trials=2, most_parameters=10)
    study = run_study(options, SOURCE, tmp_path / "journal.log")
    assert states(study) == [TrialState.PRUNED] * 2
    for trial in study.get_trials():
        assert "parameters, more than 10" in trial.user_attrs[REASON]
        assert trial.user_attrs["steps"] == 1
        assert trial.constraints["parameters"] > 0


def test_too_slow_trials_are_ended(tmp_path):
    options = replace(OPTIONS, trials=1, most_trial_cpu_s=1e-6)
    study = run_study(options, SOURCE, tmp_path / "journal.log")
    assert "CPU seconds, more than" in reasons(study)[0]


def test_a_trial_that_the_time_cuts_off_is_put_back_and_done_later(tmp_path, monkeypatch):
    place = tmp_path / "journal.log"
    options = replace(OPTIONS, trials=1)
    now = time.monotonic()
    study = run_study(replace(options, minutes=1e-9), SOURCE, place)
    assert states(study) == [TrialState.WAITING]
    seen = []

    def late() -> float:
        seen.append(now + 100.0)
        return seen[-1]

    clock = {"perf_counter": time.perf_counter, "process_time": time.process_time}
    monkeypatch.setattr("cdmpp.autotune.objective.time", SimpleNamespace(monotonic=late, **clock))
    then = SimpleNamespace(monotonic=lambda: seen[-1] if seen else now)
    monkeypatch.setattr("cdmpp.autotune.worker.time", then)
    work(options, place, study_parts(TRAIN, load(Path(), None)), deadline=now + 50.0)
    monkeypatch.undo()
    first = study.get_trials()[0]
    assert (first.state, first.user_attrs[FAULT]) == (TrialState.FAIL, PUT_BACK)
    run_study(options, SOURCE, place)
    assert states(study) == [TrialState.FAIL, TrialState.COMPLETE]
    assert study.get_trials()[1].params == first.params


def test_two_objectives_give_a_front(tmp_path):
    options = replace(
        OPTIONS,
        trials=3,
        objective=ObjectiveOptions("error-and-time"),
        pruner=PrunerOptions(kind="none"),
    )
    study = run_study(options, SOURCE, tmp_path / "journal.log")
    for trial in study.get_trials():
        expected = [trial.user_attrs["mape"], trial.user_attrs["predict_s"]]
        assert trial.values == pytest.approx(expected)
    assert {row.number for row in front(trial_rows(study))} == {
        trial.number for trial in study.best_trials
    }


@pytest.mark.exhaustive
def test_hyperband_and_the_mix_with_order(tmp_path):
    options = replace(
        OPTIONS,
        objective=ObjectiveOptions("error-and-order", 0.5),
        pruner=PrunerOptions(kind="hyperband", first_epoch=1),
    )
    study = run_study(options, SOURCE, tmp_path / "journal.log")
    assert TrialState.COMPLETE in states(study)
    assert any(reason.startswith("hyperband: ") for reason in reasons(study))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective": ObjectiveOptions("error-and-time")}, "one objective only"),
        ({"trials": 0}, "trials is 0"),
        (
            {"exclude": ("segment_mlp.loop.learning_rat",)},
            "exclude has '.*learning_rat', .*, did you mean 'segment_mlp.loop.learning_rate'",
        ),
        ({"lease_s": 0.0}, "lease_s"),
        ({"kinds": ("gbdt",)}, "train.model"),
        ({"pruner": PrunerOptions(keep_percent=100.0)}, "keep_percent"),
        ({"pruner": PrunerOptions(startup_trials=-1)}, r"pruner.startup_trials is -1, expected at"),
        ({"pruner": PrunerOptions(first_epoch=0)}, r"pruner.first_epoch is 0, expected at least 1"),
        ({"train": TrainOptions(model="gbdt"), "most_parameters": 5}, "no parameter count"),
        ({"train": TrainOptions(model="roofline")}, "nothing of the model"),
        ({"trial_settings": ("segment_mlp.hiden=3",)}, "did you mean"),
        ({"presets": ("nowhere.yaml",)}, "nowhere.yaml"),
    ],
)
def test_options_that_do_not_go_together_are_refused(changes, message):
    with pytest.raises(UsageError, match=message):
        check_options(replace(OPTIONS, **changes))


def test_a_url_of_a_storage_that_fails_under_load_is_refused(tmp_path):
    with pytest.raises(UsageError, match="postgresql"):
        run_study(OPTIONS, SOURCE, f"sqlite:///{tmp_path}/study.db")


@pytest.mark.parametrize(
    ("kind", "values", "text"),
    [
        ("mape", [0.5682], "MAPE 56.8 %"),
        ("error-and-order", [0.5682], "error and order 0.568"),
        ("error-and-time", [0.5682, 2.5e-5], "MAPE 56.8 %, 25.0 µs a prediction"),
    ],
)
def test_values_of_a_trial_are_named(kind, values, text, capsys):
    print_trial(kind, optuna.trial.create_trial(values=values))
    assert f" complete, {text}, 0 epochs, 0.0 CPU s\n" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_tunes_trains_and_reports(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("cdmpp.cli.autotune.load_samples", load)
    monkeypatch.setattr(
        "cdmpp.datasets.sources.extracted_folder", lambda *args, **kwargs: Path("unused")
    )
    out = tmp_path / "out"
    words = [
        "autotune", "--model", "gbdt", "--trials", "3", "--pruner", "none", "--out", str(out),
        "--set", "train.fractions=[0.5, 0.3, 0.2]", "--set", "train.gbdt.trees=100",
        "--set", "groups=[model, optimiser]", "--set", "train.baselines=[constant]",
    ]  # fmt: skip
    assert main([*words, "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["trials"] == 3
    assert value["best"]["mape"] <= value["first"]["mape"]
    assert value["test"]["mape"] > 0
    assert Path(value["run"], "model.json").exists()
    assert load_config(TrainOptions, Path(value["preset"])).model == "gbdt"
    asked = ["--out", str(out), "--json"]
    for report in (["report", *asked], [*asked, "report"]):
        assert main(["autotune", *report]) == 0
        assert len(json.loads(capsys.readouterr().out)["trials"]) == 3
    assert main([*words, "--no-train"]) == 0
    best = f"MAPE {100 * value['best']['mape']:.1f} % on the validation part (trial 0: MAPE "
    assert best in capsys.readouterr().out
    assert main(["autotune", "report", "--out", str(tmp_path)]) == 3
    assert "no journal" in capsys.readouterr().err
