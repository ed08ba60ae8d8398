"""Splits, errors, intervals and the run folder of whole-network models."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pyarrow.parquet as parquet
import pytest

from cdmpp.conformal import half_widths, least_owners
from cdmpp.errors import DataError
from cdmpp.files.stored import from_json, to_json
from cdmpp.models.loop.progress import TrainProgress
from cdmpp.networks.dataset.samples import TARGETS, assemble, repeat_error
from cdmpp.networks.dataset.split import split_networks
from cdmpp.networks.dataset.store import NetworkData
from cdmpp.networks.domain import Domain
from cdmpp.networks.evaluate import error_metrics, judge, noise_floor
from cdmpp.networks.intervals import NetworkIntervals, calibrate_networks
from cdmpp.networks.packaged import CARD, model_folder, package_run
from cdmpp.networks.run import NetworkRun, data_hash, evaluate_run, load_run, train_run
from tests.networks.synthetic import DEVICE, QUICK, data, samples

pytestmark = pytest.mark.training

LINEAR = NetworkRun(model="operator-linear")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    metrics = train_run(data(), folder, LINEAR, versions={"cdmpp": "0"})
    return folder, metrics


def test_no_architecture_is_in_two_parts():
    whole = samples()
    found = split_networks(whole.architecture, whole.sample_names, kind="architecture", seed=3)
    sets = [
        {whole.architecture[row] for row in rows}
        for rows in (found.train, found.validation, found.test)
    ]
    assert not sets[0] & sets[1]
    assert not sets[2] & (sets[0] | sets[1])
    assert [len(names) for names in sets] == [12, 6, 6]
    assert not found.leaks


def test_a_random_split_says_that_it_leaks():
    whole = samples()
    found = split_networks(whole.architecture, whole.sample_names, kind="random", seed=0)
    assert found.leaks
    assert found.to_json()["shared_architectures"] > 0


def test_the_order_of_the_rows_does_not_matter():
    names = [f"n{number}" for number in range(40)]
    first = split_networks(names, names, kind="architecture", seed=1)
    second = split_networks(names[::-1], names[::-1], kind="architecture", seed=1)
    assert {names[row] for row in first.test} == {names[::-1][row] for row in second.test}


def test_too_few_architectures_are_refused():
    with pytest.raises(DataError, match="at least 4"):
        split_networks(["a", "b"], ["x", "y"], kind="architecture", seed=0)


def test_errors_by_hand():
    found = error_metrics(np.array([1.0, 2.0, 4.0]), np.array([1.04, 1.8, 5.0]))
    assert found["mape"] == pytest.approx((0.04 + 0.1 + 0.25) / 3)
    assert found["median_ape"] == pytest.approx(0.1)
    assert found["rmspe"] == pytest.approx(np.sqrt((0.04**2 + 0.1**2 + 0.25**2) / 3))
    assert found["within_5pct"] == pytest.approx(1 / 3)
    assert found["spearman"] == pytest.approx(1.0)
    assert found["mean_log_error"] == pytest.approx(np.log([1.04, 2 / 1.8, 1.25]).mean())
    assert found["median_ratio"] == pytest.approx(1.04)


def test_repeat_error_is_half_of_what_halves_differ():
    assert repeat_error([1.0, 1.1, 1.0, 1.1]) == pytest.approx(0.1 / 2.1)
    assert np.isnan(repeat_error([1.0, 1.1]))


def test_the_noise_floor_is_of_times_only():
    found = noise_floor(samples())
    assert found["infer_time_s"]["n"] == len(samples())
    assert 0 < found["infer_time_s"]["mape"] < 0.01
    assert found["infer_memory_bytes"]["mape"] is None


@pytest.mark.exhaustive
def test_intervals_cover_architectures_that_were_held_back():
    whole = samples(60, 1)
    rng = np.random.default_rng(0)
    names = sorted(set(whole.architecture))
    owner = np.array([names.index(name) for name in whole.architecture])
    inside = []
    for _ in range(8):
        predicted = whole.targets * np.exp(rng.normal(0, 0.1, len(names)))[owner][:, None]
        order = rng.permutation(len(names))
        held = np.flatnonzero(order[owner] < 40)
        test = np.flatnonzero(order[owner] >= 40)
        found = calibrate_networks(whole.take(held), predicted[held], coverage=0.8)
        metrics = judge(whole.take(test), predicted[test], found.bounds(predicted[test]))
        inside.append(metrics["infer_time_s"]["interval_coverage"])
    assert np.mean(inside) == pytest.approx(0.8, abs=0.1)
    again = from_json(NetworkIntervals, json.loads(json.dumps(to_json(found))))
    np.testing.assert_array_equal(again.bounds(predicted)[0], found.bounds(predicted)[0])


def test_few_architectures_give_no_interval():
    few = samples().take(np.arange(4))
    found = calibrate_networks(few, few.targets)
    assert not found.by_target
    assert np.isnan(found.bounds(few.targets)[0]).all()


def test_every_owner_counts_the_same():
    error = np.concatenate([np.full(1000, 1.0), np.arange(2.0, 12.0)])
    owner = np.concatenate([np.zeros(1000, np.int64), np.arange(1, 11)])
    zeros = np.zeros(len(error), np.int64)
    found = half_widths(
        error, owner, zeros, np.zeros(11, np.int64), columns=1, kinds=1, coverage=0.5
    )
    assert found.pooled > 5.0
    assert least_owners(0.9) == 9


def test_a_run_folder_has_all_of_it(run):
    folder, metrics = run
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "config.yaml", "model.json", "metrics.json", "predictions.parquet", "log.jsonl",
    }  # fmt: skip
    assert json.loads((folder / "metrics.json").read_text()) == metrics
    rows = parquet.read_table(folder / "predictions.parquet").to_pylist()
    assert len(rows) == len(samples()) * len(TARGETS)
    assert {row["part"] for row in rows} == {"train", "validation", "test"}


@pytest.mark.exhaustive
@pytest.mark.parametrize("model", ["mlp", "residual"])
def test_a_stopped_run_is_continued_to_the_same_model(model, tmp_path):
    wanted = NetworkRun(model=model, **vars(QUICK))
    steps = 0

    def stop(progress: TrainProgress) -> None:
        nonlocal steps
        steps += 1
        if stops_at and steps == stops_at:
            raise KeyboardInterrupt

    stops_at = 0
    metrics = train_run(data(), tmp_path / "whole", wanted, versions={}, on_progress=stop)
    whole, stops_at, steps = steps, steps // 2, 0
    with pytest.raises(KeyboardInterrupt):
        train_run(data(), tmp_path / "stopped", wanted, versions={}, on_progress=stop)
    stops_at, steps = 0, 0
    again = train_run(data(), tmp_path / "stopped", wanted, versions={}, on_progress=stop)
    assert 0 < steps < whole
    assert again == metrics
    names = {path.name for path in (tmp_path / "stopped").iterdir()}
    assert names == {path.name for path in (tmp_path / "whole").iterdir()}
    log = (tmp_path / "whole" / "log.jsonl").read_text().splitlines()
    assert {"network", "epoch", "training_loss", "learning_rate"} <= set(json.loads(log[0]))


def test_a_loaded_run_repeats_its_metrics(run):
    folder, metrics = run
    found = evaluate_run(load_run(folder), data())
    assert found["part"] == "test"
    assert found["targets"] == metrics["test"]
    assert not found["overlap_with_training"]


def test_a_run_of_one_device_is_evaluated_on_its_own_split(tmp_path):
    whole = data()
    others = [replace(label, device="t4") for label in whole.labels]
    own = [one for one in whole.labels if one.graph_id < "8"]  # some networks only on the other
    both = NetworkData(whole.graphs, [*own, *others], whole.manifest)
    metrics = train_run(both, tmp_path, replace(LINEAR, device=DEVICE), versions={})
    trained = load_run(tmp_path)
    assert evaluate_run(trained, both, device=DEVICE)["targets"] == metrics["test"]
    assert evaluate_run(trained, both, device="t4")["n"] > 0


def test_all_of_the_own_data_set_overlaps_with_training(run):
    found = evaluate_run(load_run(run[0]), data(), part="all")
    assert found["overlap_with_training"]
    assert found["n"] == len(samples())


def test_other_data_have_no_test_part(run):
    other = data(12, 5)
    assert data_hash(other) != data_hash(data())
    assert evaluate_run(load_run(run[0]), other)["part"] == "all"
    with pytest.raises(DataError, match="--part all"):
        evaluate_run(load_run(run[0]), other, part="test")


def test_a_device_without_measurements_is_refused(run):
    with pytest.raises(DataError, match=DEVICE):
        evaluate_run(load_run(run[0]), data(), device="t4")


def test_a_model_is_judged_on_devices_as_it_was_trained_on_them(run):
    trained = load_run(run[0])
    (spec,) = trained.devices
    told = replace(spec, peak_fp32_flop_per_s=3 * (spec.peak_fp32_flop_per_s or 1e12))
    assert assemble(data(), described=[told]).devices == (told,)
    errors = [
        evaluate_run(one, data(), part="all")["targets"]["infer_time_s"]["mape"]
        for one in (trained, replace(trained, devices=(told,)))
    ]
    assert errors[0] != errors[1]


def test_what_did_not_end_well_is_not_measured():
    whole = data()
    labels = [
        replace(label, time_s=None, outcome="out-of-memory") if place < 2 else label
        for place, label in enumerate(whole.labels)
    ]
    found = assemble(NetworkData(whole.graphs, labels, whole.manifest))
    assert len(found) == len(samples()) - 1


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(DataError, match="networks train"):
        load_run(tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [("{", "damaged"), ('{"format": 1}', "has format 1"), ("[]", "has format list")],
)
def test_other_files_are_refused(tmp_path, text, words):
    (tmp_path / "model.json").write_text(text)
    with pytest.raises(DataError, match=words):
        load_run(tmp_path)


def test_columns_of_another_version_are_refused(run, tmp_path):
    value = json.loads((run[0] / "model.json").read_text())
    (tmp_path / "model.json").write_text(json.dumps({**value, "encoding": 0}))
    with pytest.raises(DataError, match="version 0"):
        load_run(tmp_path)


def test_a_packaged_run_predicts_the_same(run, tmp_path):
    package_run(run[0], command="make it", licence="Apache-2.0", out=tmp_path / "networks")
    card = json.loads((tmp_path / "networks" / "model" / CARD).read_text())
    assert card["devices"] == [DEVICE]
    assert card["command"] == "make it"
    first = load_run(run[0])
    second = load_run(model_folder("pretrained", parent=tmp_path / "networks"))
    np.testing.assert_array_equal(first.model.predict(samples()), second.model.predict(samples()))


def test_without_a_package_pretrained_is_refused(tmp_path):
    with pytest.raises(DataError, match="--model RUN"):
        model_folder("pretrained", parent=tmp_path)


def test_the_domain_names_what_is_new():
    whole = samples()
    domain = Domain.of(whole)
    graph = whole.graphs[0]
    assert domain.reasons(graph, DEVICE) == ()
    assert "no training data on" in domain.reasons(graph, "t4")[0]
    small = replace(domain, ranges={"log_flops": (0.0, 1.0)}, families=("Relu",))
    reasons = small.reasons(graph, DEVICE)
    assert "more operations" in reasons[0]
    assert "unseen operators: " in reasons[-1]
    assert from_json(Domain, json.loads(json.dumps(to_json(domain)))) == domain
