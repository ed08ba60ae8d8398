"""Which hardware labels and files name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cdmpp.errors import DeviceError, UsageError
from cdmpp.predict.requested_device import asked_devices
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
    with pytest.raises(UsageError, match="named twice"):
        asked_devices([], [path, path], card)
    with pytest.raises(DeviceError, match="unknown device 'nothing'"):
        asked_devices(["nothing"], [], card)
