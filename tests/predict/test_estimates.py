"""Estimates of a trained model have a floor: physics wins over any model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdmpp.analytic.roofline.floor import sample_floor_s
from cdmpp.calibration.intervals import LatencyCalibration, calibrate
from cdmpp.calibration.ood import Familiarity, NearTask, TrainingTasks
from cdmpp.datasets.samples import Samples
from cdmpp.devices.registry import get_device
from cdmpp.devices.spec import DeviceSpec
from cdmpp.models.base import CostModel
from cdmpp.predict.estimates import NEW_DEVICE_FACTOR, STRANGE_FACTOR, TrainedModel
from cdmpp.predict.saved_model import ModelCard
from cdmpp.testing.synthetic import make_samples


class Fixed(CostModel):
    """Says the same of everything."""

    kind = "fixed"

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def fit(self, train, validation, *, seed, run_dir=None, on_progress=None):
        raise NotImplementedError

    def predict(self, samples: Samples):
        return np.full(len(samples), self.seconds)

    def save(self, directory):
        raise NotImplementedError

    @classmethod
    def load(cls, directory, state):
        raise NotImplementedError


def trained(seconds: float, devices: tuple[DeviceSpec, ...]) -> TrainedModel:
    samples = make_samples(20, 3)
    card = ModelCard(
        kind="fixed", feature_schema={}, data_hash="", split={}, devices=devices,
        training_tasks=frozenset(), versions={},
        calibration=calibrate(samples, samples.latency_s * 1.3),
    )  # fmt: skip
    return TrainedModel(Fixed(seconds), card, None)


def on(device: DeviceSpec) -> Samples:
    samples = make_samples(2, 2)
    return replace(samples, devices=(device,), device=np.zeros_like(samples.device))


def test_no_gpu_kernel_is_predicted_below_the_smallest_one() -> None:
    """A reshape on a V100 was said to take 8.65 ns."""
    v100 = get_device("v100")
    found = trained(8.65e-9, (v100,)).estimate(on(v100))
    assert set(found.latency_s) == {v100.launch_s}
    assert np.all(found.low_s == v100.launch_s)
    assert np.all(found.high_s > found.latency_s)
    assert found.is_floor.all()
    assert np.all((found.low_s <= found.mean_s) & (found.mean_s <= found.high_s))


def test_a_model_that_was_trained_before_there_was_a_floor_has_one() -> None:
    v100 = get_device("v100")
    before = replace(v100, launch_s=None)
    assert set(trained(1e-12, (before,)).estimate(on(before)).latency_s) == {v100.launch_s}


def test_what_lies_above_the_floor_stays_as_it_is() -> None:
    v100 = get_device("v100")
    found = trained(1e-3, (v100,)).estimate(on(v100))
    assert set(found.latency_s) == {1e-3}
    assert not found.is_floor.any()
    calibration = trained(1e-3, (v100,)).card.calibration
    assert calibration is not None
    half_width = np.log(found.high_s / found.latency_s)
    assert found.low_s == pytest.approx(found.latency_s * np.exp(-half_width))


@settings(max_examples=60, deadline=None)
@given(
    st.floats(1e-300, 1e6),
    st.builds(
        DeviceSpec, name=st.just("any"), kind=st.sampled_from(["gpu", "cpu", "accelerator"]),
        peak_fp32_flop_per_s=st.none() | st.floats(1e3, 1e18),
        mem_bandwidth_bytes_per_s=st.none() | st.floats(1e3, 1e18),
        l2_bytes=st.none() | st.integers(1, 1 << 40), launch_s=st.none() | st.floats(1e-9, 1e-2),
    ),
)  # fmt: skip
def test_any_device_has_possible_latencies(seconds: float, device: DeviceSpec) -> None:
    samples = on(device)
    found = trained(seconds, ()).estimate(samples)
    floor_s = sample_floor_s(samples)
    for values in (found.latency_s, found.mean_s, found.low_s, found.high_s):
        assert np.all(np.isfinite(values))
        assert np.all(values >= floor_s)
        assert np.all(values > 0)
    assert np.all(found.low_s <= found.latency_s)
    assert np.all(found.latency_s <= found.high_s)


_INTEL = DeviceSpec("one", "cpu", vendor="Intel")
_CALIBRATION = LatencyCalibration(
    0.9, 40, 400, 0.9, 0.4,
    by_device={"one": 0.3, "two": 0.5, "arm": 0.2, "gpu": 0.9},
    by_operator={"dense": 0.4, "conv2d": 0.6},
    by_device_and_operator={
        "one": {"dense": 0.2, "conv2d": 0.6}, "two": {"dense": 0.4, "conv2d": 0.5},
        "arm": {"dense": 0.1, "conv2d": 0.7}, "gpu": {"dense": 1.0, "conv2d": 1.2},
    },
)  # fmt: skip


def calibrated(tasks: TrainingTasks | None = None) -> TrainedModel:
    """Knows CPUs of Intel and AMD, one of Arm and a GPU."""
    devices = (_INTEL, replace(_INTEL, name="two", vendor="AMD"),
               replace(_INTEL, name="arm", vendor="Arm"),
               DeviceSpec("gpu", "gpu", vendor="NVIDIA"))  # fmt: skip
    known = trained(1e-3, devices)
    return replace(known, card=replace(known.card, calibration=_CALIBRATION), tasks=tasks)


def half_width(model: TrainedModel, device: DeviceSpec) -> float:
    found = model.estimate(on(device))
    (width,) = set(np.log(found.high_s / found.latency_s).round(9))
    return float(width)


def test_a_new_device_of_a_known_family_is_as_wide_as_the_worst_of_it_needs() -> None:
    new = replace(_INTEL, name="new")
    assert half_width(calibrated(), new) == pytest.approx(NEW_DEVICE_FACTOR * 0.4)
    assert half_width(calibrated(), _INTEL) == pytest.approx(0.2)


@pytest.mark.parametrize(
    "new",
    [
        replace(_INTEL, name="new", vendor="Ampere"),
        replace(_INTEL, name="new", vendor=None),
        DeviceSpec("new", "gpu", vendor="Intel"),
    ],
)
def test_a_new_device_of_no_known_family_has_twice_the_widest_of_all(new: DeviceSpec) -> None:
    assert half_width(calibrated(), new) == pytest.approx(STRANGE_FACTOR * 1.2)


class Far(TrainingTasks):
    """Knows no program."""

    def __init__(self) -> None:
        pass

    def familiarity(self, samples: Samples) -> Familiarity:
        nothing: list[list[NearTask]] = [[] for _ in range(len(samples))]
        return Familiarity(np.full(len(samples), 9.0), np.ones(len(samples), bool), nothing)


@pytest.mark.parametrize("name", ["one", "new"])
def test_a_strange_program_has_twice_the_widest_of_its_family(name: str) -> None:
    found = half_width(calibrated(Far()), replace(_INTEL, name=name))
    assert found == pytest.approx(STRANGE_FACTOR * 0.6)
    other = replace(_INTEL, name="other", vendor="Ampere")
    assert half_width(calibrated(Far()), other) == pytest.approx(STRANGE_FACTOR * 1.2)


def test_a_strange_program_has_what_kinds_left_out_ask_for() -> None:
    model = calibrated(Far())
    measured = replace(model.card, calibration=replace(_CALIBRATION, strange_factor=1.5))
    model = replace(model, card=measured)
    assert half_width(model, _INTEL) == pytest.approx(1.5 * 0.2)
    new = replace(_INTEL, name="new", vendor="Ampere")
    assert half_width(model, new) == pytest.approx(STRANGE_FACTOR * 1.2)


def test_without_calibration_there_is_no_interval() -> None:
    known = calibrated()
    bare = replace(known, card=replace(known.card, calibration=None))
    assert np.isnan(bare.estimate(on(replace(_INTEL, name="new"))).high_s).all()
