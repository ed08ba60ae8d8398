"""What a time on another device says, on synthetic samples whose programs err alike on devices."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import numpy as np
import pytest

from cdmpp.calibration.intervals import calibrate
from cdmpp.calibration.transfer import Transfer, fit_pairs, fit_transfer, relation
from cdmpp.datasets.samples import Samples
from cdmpp.devices.registry import get_device
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DataError, UsageError
from cdmpp.files.stored import from_json
from cdmpp.models.base import CostModel
from cdmpp.predict.corrections import SourceDeviceCorrection
from cdmpp.predict.estimates import TrainedModel
from cdmpp.predict.saved_model import ModelCard
from cdmpp.testing.synthetic import make_samples
from cdmpp.training.transferred import transfer_dataset

SHARE = 0.7
NEW = DeviceSpec("new", "cpu", peak_fp32_flop_per_s=1e11, simd_bits=256, threads=4)


class Known(CostModel):
    """Says a second of everything."""

    kind = "known"

    def fit(self, train, validation, *, seed, run_dir=None, on_progress=None):
        raise NotImplementedError

    def predict(self, samples: Samples):
        return np.ones(len(samples))

    def save(self, directory):
        raise NotImplementedError

    @classmethod
    def load(cls, directory, state):
        raise NotImplementedError


def alike(tasks: int, *, seed: int = 0) -> Samples:
    """Samples of two devices that the model misses by the same, up to the share and some noise."""
    rng = np.random.default_rng(seed)
    samples = make_samples(tasks, 8)
    missed = rng.normal(0.0, 0.5, len(samples.programs.program_id))
    log_s = missed[samples.program] * np.where(samples.device == 0, 1.0, SHARE)
    log_s = log_s + rng.normal(0.0, 0.02, len(samples)) * (samples.device == 1)
    return replace(samples, latency_s=np.exp(log_s))


def model_of(samples: Samples, transfer: Transfer | None) -> TrainedModel:
    card = ModelCard(
        kind="known", feature_schema={}, data_hash="", split={}, devices=samples.devices,
        training_tasks=frozenset(), versions={}, transfer=transfer,
        calibration=calibrate(samples, np.ones(len(samples))),
    )  # fmt: skip
    return TrainedModel(Known(), card, None)


def test_devices_are_one_chip_or_two_or_not_comparable() -> None:
    labels = ("xeon-avx2-1c", "xeon-avx512-2c", "epyc-avx2-1c", "v100", "a100")
    xeon, other_xeon, epyc, v100, a100 = (get_device(label) for label in labels)
    assert relation(xeon, other_xeon) == "same_cpu"
    assert relation(xeon, epyc) == "other_cpu"
    assert relation(v100, a100) == "other_gpu"
    assert relation(xeon, v100) is None
    assert relation(NEW, NEW) == "other_cpu"  # nobody says what it is


def test_what_both_devices_miss_is_found_and_counted_in() -> None:
    samples = alike(40)
    transfer = fit_transfer(samples, np.ones(len(samples)))
    assert transfer is not None
    # Over both directions: SHARE one way, its inverse the other, clipped to a share.
    share = transfer.shares["other_cpu"]
    assert SHARE < share <= 1.0
    trained = model_of(samples, transfer)
    new = alike(30, seed=1)
    first, second = new.devices
    found = transfer_dataset(trained, new, first, second)
    assert np.all(np.isfinite(found.samples.latency_s))
    values = found.judged(trained)
    assert (values["n"], values["tasks"]) == (240, 30)
    assert values["transferred"]["mape"] < 0.6 * values["model"]["mape"]
    assert values["transferred"]["mape"] < values["one_factor"]["mape"]
    expected = np.exp(share * np.log(found.source_s))
    assert found.found.latency_s == pytest.approx(expected)
    width = np.log(found.found.high_s / found.found.low_s)
    assert np.all(width < np.log(found.alone.high_s / found.alone.low_s))
    assert values["transferred"]["interval_coverage"] >= 0.85


def test_what_was_not_measured_elsewhere_stays_as_it_is() -> None:
    samples = alike(40)
    trained = model_of(samples, fit_transfer(samples, np.ones(len(samples))))
    asked = samples.take(samples.device == 1)
    plain = trained.estimate(asked)
    step = SourceDeviceCorrection(np.full(len(asked), np.nan), samples.devices[0])
    nothing = trained.estimate(asked, [step])
    for name in ("latency_s", "low_s", "high_s", "mean_s"):
        assert getattr(nothing, name) == pytest.approx(getattr(plain, name))


def test_a_strange_device_keeps_the_width_of_its_interval() -> None:
    samples = alike(40)
    trained = model_of(samples, fit_transfer(samples, np.ones(len(samples))))
    asked = replace(samples.take(samples.device == 0), devices=(NEW,))
    plain = trained.estimate(asked)
    step = SourceDeviceCorrection(np.full(len(asked), 3.0), samples.devices[0])
    found = trained.estimate(asked, [step])
    assert np.all(found.latency_s > 1.5)
    assert found.high_s / found.low_s == pytest.approx(plain.high_s / plain.low_s)


def test_what_cannot_be_told_is_refused() -> None:
    samples = alike(40)
    first, second = samples.devices
    asked = samples.take(samples.device == 1)
    own_s = np.ones(len(asked))
    for transfer, device, words in (
        (None, first, "not evaluated on programs measured on two"),
        (fit_transfer(samples, np.ones(len(samples))), NEW, "was not trained on new"),
    ):
        trained = model_of(samples, transfer)
        with pytest.raises(UsageError, match=words):
            trained.estimate(asked, [SourceDeviceCorrection(own_s, device)])
    gpu = replace(second, kind="gpu", name="gpu")
    trained = model_of(samples, fit_transfer(samples, np.ones(len(samples))))
    strange = replace(asked, devices=(first, gpu))
    with pytest.raises(UsageError, match="do not run the same"):
        trained.estimate(strange, [SourceDeviceCorrection(own_s, first)])


def test_few_tasks_say_nothing_and_some_give_no_interval() -> None:
    assert fit_transfer(alike(4), np.ones(64)) is None
    some = fit_transfer(alike(6), np.ones(96))
    assert some is not None
    assert set(some.shares) == {"other_cpu"}
    assert some.intervals == {}
    many = fit_transfer(alike(40), np.ones(640))
    assert many is not None
    assert from_json(Transfer, json.loads(json.dumps(asdict(many)))) == many


def test_nothing_measured_on_both_cannot_be_judged() -> None:
    samples = alike(40)
    trained = model_of(samples, fit_transfer(samples, np.ones(len(samples))))
    first, second = samples.devices
    found = transfer_dataset(trained, samples.take(samples.device == 0), first, second)
    assert np.isnan(found.samples.latency_s).all()
    with pytest.raises(DataError, match="has no reference"):
        found.judged(trained)


def test_a_budget_says_how_the_times_on_another_device_are_to_be_read() -> None:
    samples = alike(12, seed=3)
    first, second = samples.devices
    own = samples.take(samples.device == 1)
    measured = np.full(len(samples.programs.program_id), np.nan)
    measured[samples.program[samples.device == 0]] = samples.latency_s[samples.device == 0]
    source_s, ones = measured[own.program], np.ones(len(own))
    slower = replace(own, latency_s=3.0 * own.latency_s)
    (pair,) = fit_pairs(slower, ones, first.name, source_s, ones)
    assert (pair.source, pair.target) == (first.name, second.name)
    assert pair.share == pytest.approx(SHARE, abs=0.1)
    assert np.exp(pair.offset) == pytest.approx(3.0, rel=0.1)
    transfer = Transfer({"other_cpu": 0.0}, {}, (pair,))
    assert from_json(Transfer, json.loads(json.dumps(asdict(transfer)))) == transfer
    trained = model_of(samples, transfer)
    found = trained.estimate(own, [SourceDeviceCorrection(source_s, first)])
    error = np.abs(found.latency_s / slower.latency_s - 1.0)
    assert error.mean() < 0.1
    few = slower.take(slower.task_id < 4)
    assert fit_pairs(few, ones[: len(few)], first.name, source_s[: len(few)], ones) == ()
