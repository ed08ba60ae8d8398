"""Which hardware labels and files name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from cdmpp.devices.registry import get_device
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DeviceError, UsageError
from cdmpp.predict.estimates import TrainedModel, load_trained
from cdmpp.predict.networks import NetworkPrediction, NetworkQuestion, Way, predict_network
from cdmpp.predict.requested_device import asked_device, asked_devices
from cdmpp.predict.saved_model import load_model
from cdmpp.pretrained import model_folder


def test_labels_files_and_the_only_device(tmp_path: Path) -> None:
    _, card = load_model(model_folder("pretrained"))
    first, second = card.devices[:2]
    path = tmp_path / "mine.yaml"
    path.write_text("devices:\n  my-board: {kind: cpu}\n")
    found = asked_devices([second.name, first.name, second.name], [path], card)
    assert [spec.name for spec in found] == [second.name, first.name, "my-board"]
    assert asked_devices([], [], replace(card, devices=(first,))) == [first]
    with pytest.raises(UsageError, match="choose devices"):
        asked_devices([], [], card)
    with pytest.raises(UsageError, match="given twice"):
        asked_devices([], [path, path], card)
    with pytest.raises(DeviceError, match="unknown device 'nothing'"):
        asked_devices(["nothing"], [], card)


def test_the_labels_of_this_machine_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    _, card = load_model(model_folder("pretrained"))
    here = replace(get_device("zen3-avx2-1c"), name="this-cpu")
    monkeypatch.setattr("cdmpp.predict.requested_device.get_device", lambda _: here)
    with pytest.raises(UsageError, match=r"FILE \(this machine's CPU: zen3-avx2-1c\); the model"):
        asked_devices([], [], card)
    other = replace(here, architecture="nothing-known")
    monkeypatch.setattr("cdmpp.predict.requested_device.get_device", lambda _: other)
    with pytest.raises(UsageError, match=r"\(this machine's CPU: this-cpu\)"):
        asked_devices([], [], card)
    gpus = tuple(one for one in card.devices if one.kind == "gpu")
    with pytest.raises(UsageError, match="--device-spec FILE; the model was trained on"):
        asked_devices([], [], replace(card, devices=gpus))


def test_spelling_does_not_change_the_device() -> None:
    """EPYC-AVX2-2C was a device that the model was not trained on, with another latency."""
    _, card = load_model(model_folder("pretrained"))
    assert asked_device("EPYC-AVX2-2C", card) == asked_device("epyc-avx2-2c", card)
    assert asked_device("Tesla T4", card) == get_device("t4")
    assert [spec.name for spec in asked_devices(["v100", "V100"], [], card)] == ["v100"]


def test_a_model_answers_for_no_kind_of_device_that_it_has_not_learned() -> None:
    """A run trained on v100 alone answered for a CPU: 270 us, exit 0."""
    _, card = load_model(model_folder("pretrained"))
    by_kind = {
        kind: replace(card, devices=tuple(one for one in card.devices if one.kind == kind))
        for kind in ("cpu", "gpu")
    }
    for kind, label in (("gpu", "epyc-avx2-1c"), ("cpu", "v100")):
        with pytest.raises(DeviceError, match="the model was trained on no"):
            asked_devices([label], [], by_kind[kind])
        with pytest.raises(DeviceError, match="the model was trained on no"):
            asked_devices([get_device(label)], [], by_kind[kind])
        with pytest.raises(DeviceError, match="the model was trained on no"):
            asked_device(label, by_kind[kind])
    assert asked_device("t4", by_kind["gpu"]).name == "t4"
    with pytest.raises(DeviceError, match=r"gaudi2 is an accelerator, .* Choose a cpu or gpu$"):
        asked_device("gaudi2", card)


def test_an_unknown_device_has_three_suggestions() -> None:
    _, card = load_model(model_folder("pretrained"))
    with pytest.raises(DeviceError) as caught:
        asked_device("gtx-v100", card)
    near = str(caught.value).partition("the nearest are ")[2].partition(" (all")[0].split(", ")
    assert len(near) == 3
    assert "v100" in near


def test_a_device_of_an_unlearned_kind_has_a_row_with_the_reason_beside_the_others() -> None:
    trained = load_trained(model_folder("pretrained"), with_code=False)
    cpus = tuple(one for one in trained.card.devices if one.kind == "cpu")
    trained = replace(trained, card=replace(trained.card, devices=cpus, described=()))

    def compiled(
        way: Way, _: TrainedModel, devices: Sequence[DeviceSpec], on_step: Callable[[str], None]
    ) -> list[NetworkPrediction]:
        del on_step
        return [
            NetworkPrediction("net", one.name, 2.0, 1.0, 3.0, way=way, batch=1) for one in devices
        ]

    def asked(*labels: str) -> list[NetworkPrediction]:
        question = NetworkQuestion(
            lambda: None, "net", ways=("tvm-untuned",), labels=labels, loaded=lambda: trained
        )
        return predict_network(question, compiled)

    known, unknown = asked(cpus[0].name, "v100")
    assert (known.device, known.latency_s, known.reasons) == (cpus[0].name, 2.0, ())
    assert (unknown.device, unknown.latency_s) == ("v100", None)
    assert unknown.reasons[0].startswith("v100 is a gpu, and the model was trained on no gpu")
    with pytest.raises(DeviceError, match="the model was trained on no gpu"):
        asked("v100", "t4")
