"""A device that nobody measured: what its model learns from, and what is said of its errors."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cdmpp.calibration.intervals import calibrate
from cdmpp.datasets.fetched import Fetched, fetched_folder, write_fetched
from cdmpp.datasets.samples import Samples
from cdmpp.datasets.selection import cap_programs, capped_rows
from cdmpp.devices.registry import get_device
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DataError, DeviceError, UsageError
from cdmpp.predict.estimates import STRANGE_FACTOR, load_trained
from cdmpp.predict.requested_device import asked_device, asked_devices
from cdmpp.predict.saved_model import load_model
from cdmpp.testing.synthetic import DEVICES, make_samples
from cdmpp.training import unmeasured
from cdmpp.training.options import TrainOptions
from cdmpp.training.run import split_samples
from cdmpp.training.unmeasured import (
    Unmeasured,
    architectures,
    find_unmeasured,
    left_out_parts,
    train_unmeasured,
)

OPTIONS = TrainOptions(
    devices=("fast", "slow"), model="roofline", baselines=("constant",), fractions=(0.5, 0.2, 0.3)
)
FOUND = Unmeasured((get_device("graviton2"),), "cpu", ("fast", "slow"))


def two_machines(tasks: int = 60) -> Samples:
    """Samples of two CPUs of different architecture."""
    samples = make_samples(tasks, 6)
    devices = tuple(replace(spec, architecture=f"of-{spec.name}") for spec in DEVICES)
    return replace(samples, devices=devices)


def trained(run: Path, said: list[str] | None = None, **options: Any) -> dict[str, Any]:
    """Metrics of a run, while what it reports goes into a list."""
    report = said if said is not None else []
    samples = two_machines()
    result = train_unmeasured(
        OPTIONS, FOUND, samples, run, on_progress=lambda what, _: report.append(what), **options
    )
    assert json.loads((run / "metrics.json").read_text()) == result.metrics
    return result.metrics


def test_measured_devices_are_trained_on_as_they_are(tmp_path: Path) -> None:
    assert find_unmeasured([], tmp_path) is None
    assert find_unmeasured(["v100", "k80"], tmp_path) is None


def test_a_gpu_learns_from_the_gpus_and_a_cpu_from_the_cpus(tmp_path: Path) -> None:
    gpu = find_unmeasured(["t4"], tmp_path)
    assert gpu is not None
    assert {"k80", "mi50", "v100"} <= set(gpu.sources)
    assert "epyc-avx2-1c" not in gpu.sources
    assert gpu.sentence.startswith("no measurements of t4 found: ")
    cpu = find_unmeasured(["platinum-8124m"], tmp_path)
    assert cpu is not None
    assert len(cpu.sources) == 8
    assert cpu.kind == "cpu"
    both = find_unmeasured(["h100", "t4"], tmp_path)
    assert both is not None
    assert both.sentence.startswith("no measurements of h100 and t4 found: ")


def test_what_was_fetched_is_measured(tmp_path: Path) -> None:
    note = Fetched("logs", "autotvm", ("t4",), "", "", "", None, (), (), "")
    folder = fetched_folder(tmp_path, "logs")
    folder.mkdir(parents=True)
    write_fetched(folder, note)
    assert find_unmeasured(["t4"], tmp_path) is None
    found = find_unmeasured(["h100"], tmp_path)
    assert found is not None
    assert "t4" in found.sources


def test_what_cannot_be_trained_as_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"unknown device 't44', did you mean 't4'\?"):
        find_unmeasured(["t44"], tmp_path)
    with pytest.raises(UsageError, match="of t4 found, but some of v100"):
        find_unmeasured(["t4", "v100"], tmp_path)
    with pytest.raises(UsageError, match="t4 is of kind gpu, graviton2 is of kind cpu"):
        find_unmeasured(["t4", "graviton2"], tmp_path)
    with pytest.raises(DataError, match="none of another device of kind accelerator"):
        find_unmeasured(["hl-100"], tmp_path)


def test_labels_of_one_architecture_are_left_out_together() -> None:
    names = ("epyc-avx2-1c", "v100", "epyc-avx512-2c", "k80", "xeon-avx2-1c")
    assert architectures([get_device(name) for name in names]) == [
        ("epyc-avx2-1c", "epyc-avx512-2c"), ("k80",), ("v100",), ("xeon-avx2-1c",),
    ]  # fmt: skip
    strangers = [DeviceSpec(name, "cpu") for name in ("b", "a")]
    assert architectures(strangers) == [("a",), ("b",)]


def test_neither_the_device_nor_its_tasks_are_in_the_training() -> None:
    samples = two_machines()
    parts = left_out_parts(OPTIONS, samples, ["slow"], most=100)
    known = np.concatenate([parts.train, parts.validation])
    slow = [spec.name for spec in samples.devices].index("slow")
    assert not np.any(samples.device[known] == slow)
    assert len(known) <= 100
    assert np.all(samples.device[parts.test] == slow)
    assert not set(samples.task_id[parts.test]) & set(samples.task_id[known])
    usual = split_samples(OPTIONS, samples)
    assert set(parts.train) <= set(usual.train)
    own = usual.test[samples.device[usual.test] == slow]
    assert np.array_equal(parts.test, own)


def test_tasks_that_only_the_left_out_device_has_are_judged() -> None:
    samples = two_machines()
    slow = samples.device == [spec.name for spec in samples.devices].index("slow")
    usual = split_samples(OPTIONS, samples)
    task = samples.task_id[usual.train[0]]
    without = samples.take(slow | (samples.task_id != task))
    parts = left_out_parts(OPTIONS, without, ["slow"], most=0)
    assert task in without.task_id[parts.test]


def test_a_cap_as_rows_is_the_cap() -> None:
    samples = two_machines()
    kept = capped_rows(samples, 50, seed=3)
    assert np.array_equal(samples.take(kept).program, cap_programs(samples, 50, seed=3).program)
    assert capped_rows(samples, 0, seed=3).all()


def test_the_error_is_that_of_devices_left_out(tmp_path: Path) -> None:
    metrics = trained(tmp_path / "run")
    found = metrics["unmeasured"]
    assert found["devices"] == ["graviton2"]
    assert found["sources"] == ["fast", "slow"]
    assert set(found["left_out"]) == {"fast", "slow"}
    for label, one in found["left_out"].items():
        assert one["without"] == [label]
        assert list(one["test"]) == ["roofline", "constant", "oracle"]
        own = json.loads((tmp_path / "run" / "left-out" / label / "metrics.json").read_text())
        assert one["test"]["roofline"]["mape"] == own["test"]["roofline"]["mape"]
        assert one["test"]["roofline"]["n"] == own["parts"]["test"]["samples"]
        assert one["train"] == own["parts"]["train"]
    both = [one["test"]["roofline"]["mape"] for one in found["left_out"].values()]
    assert found["mean"]["roofline"]["mape"] == pytest.approx(np.mean(both))


def test_the_card_describes_what_was_asked_for(tmp_path: Path) -> None:
    trained(tmp_path / "run")
    _, card = load_model(tmp_path / "run")
    assert [spec.name for spec in card.devices] == ["fast", "slow"]
    assert card.described == FOUND.devices
    assert asked_devices([], [], card) == list(FOUND.devices)
    mine = replace(FOUND.devices[0], core_count=3)
    assert asked_device("graviton2", replace(card, described=(mine,))) == mine


def test_new_devices_have_the_intervals_of_devices_left_out(tmp_path: Path) -> None:
    trained(tmp_path / "run")
    model = load_trained(tmp_path / "run")
    of_new = model.card.of_new_devices
    assert of_new is not None
    assert not of_new.by_device
    samples = two_machines()
    asked = replace(samples, devices=(FOUND.devices[0], DeviceSpec("other", "gpu")))
    found = model.estimate(asked)
    assert found.is_new_device.all()
    assert found.is_far is not None
    half = np.log(found.high_s / found.latency_s)
    near = ~found.is_far
    assert model.card.calibration is not None
    assert half[near & (asked.device == 0)] == pytest.approx(of_new.by_operator["dense"])
    widened = STRANGE_FACTOR * model.card.calibration.widest
    assert half[near & (asked.device == 1)] == pytest.approx(widened), "it has seen no GPU"


def test_the_worst_device_decides_the_width() -> None:
    samples = two_machines()
    factor = np.array([1.1, 2.0])[samples.device]
    found = calibrate(samples, samples.latency_s * factor)
    assert found is not None
    worst = found.of_the_worst_device()
    assert worst.by_operator["dense"] == found.by_device_and_operator["slow"]["dense"]
    assert worst.pooled == found.by_device["slow"] > found.by_device["fast"]


def test_a_damaged_finished_training_is_named(tmp_path: Path) -> None:
    damaged = tmp_path / "left-out" / "fast" / "left_out.parquet"
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"left_out\.parquet is damaged"):
        trained(tmp_path)


@pytest.mark.exhaustive
def test_finished_trainings_are_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, said = tmp_path / "run", list[str]()
    first = trained(run, said)
    assert said[0].startswith("training 1 of 3 (without fast): ")
    assert any(text.startswith("training 3 of 3 (with all, about ") for text in said)
    (run / "left-out" / "slow" / "left_out.parquet").unlink()
    (run / "metrics.json").unlink()
    folders: list[Path] = []
    train_run = unmeasured.train_run

    def watched(options: TrainOptions, samples: Samples, folder: Path, **named: Any) -> Any:
        folders.append(folder)
        return train_run(options, samples, folder, **named)

    monkeypatch.setattr(unmeasured, "train_run", watched)
    again = trained(run)
    assert folders == [run / "left-out" / "slow", run]
    assert again["unmeasured"] == first["unmeasured"]


def test_one_architecture_says_nothing_of_another(tmp_path: Path) -> None:
    samples = two_machines()
    same = tuple(replace(spec, architecture="one") for spec in samples.devices)
    with pytest.raises(DataError, match="of one architecture"):
        train_unmeasured(
            OPTIONS, FOUND, replace(samples, devices=same), tmp_path / "run",
            on_progress=lambda what, progress: None,
        )  # fmt: skip
    assert not (tmp_path / "run").exists()
