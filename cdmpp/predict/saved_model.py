"""Saved models: weights and a model card."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.calibration.intervals import LatencyCalibration
from cdmpp.calibration.transfer import Transfer
from cdmpp.datasets.samples import Samples
from cdmpp.devices.spec import DeviceSpec
from cdmpp.devices.vector import DEVICE_VECTOR_SCHEMA_VERSION, as_nearest_known
from cdmpp.errors import DataError
from cdmpp.files.atomic import read_json, write_json
from cdmpp.files.run_folder import MODEL_FILE, damage_named, write_model
from cdmpp.files.stored import from_json
from cdmpp.machine import versions
from cdmpp.models.base import CostModel
from cdmpp.models.registry import saved_model_class
from cdmpp.programs.compact_ast import (
    LEAF_EXTRA_COUNTS,
    LEAF_EXTRA_SCHEMA_VERSION,
    LEAF_SCHEMA_VERSION,
)

MODEL_FORMAT = 1
RUN_HINT = "give a finished run folder, or train one with `cdmpp train`"


@dataclass(frozen=True)
class ModelCard:
    """Metadata of a saved model.

    Attributes:
        kind: its registered name.
        feature_schema: versions of the leaf columns in training.
        data_hash: digest of the training dataset.
        split: kind, seed, fractions and description of the split, and whether it leaks.
        devices: the devices it was trained on.
        training_tasks: short digests of the tasks in its training part (see `task_digest`).
        versions: cdmpp, python and library versions at training time.
        calibration: its intervals; None if too few tasks were held out to measure them.
        described: unmeasured devices that it was trained for.
        of_new_devices: its intervals on unseen devices of trained kinds; None if not measured.
        transfer: correction by times on another device; None if too few tasks were measured on two
            devices.
        adapted: labels of the `devices` that the trained model was adapted to.
    """

    kind: str
    feature_schema: dict[str, int]
    data_hash: str
    split: dict[str, Any]
    devices: tuple[DeviceSpec, ...]
    training_tasks: frozenset[str]
    versions: dict[str, str]
    calibration: LatencyCalibration | None = None
    described: tuple[DeviceSpec, ...] = ()
    of_new_devices: LatencyCalibration | None = None
    transfer: Transfer | None = None
    adapted: frozenset[str] = frozenset()

    @property
    def leaf_extra_version(self) -> int:
        """Version of the added leaf columns of programs to predict."""
        return self.feature_schema.get("leaf_extra") or LEAF_EXTRA_SCHEMA_VERSION

    @classmethod
    def of(cls, kind: str, train: Samples, split: dict[str, Any]) -> ModelCard:
        """Returns the card of a model trained on these samples."""
        return cls(
            kind=kind,
            feature_schema=dict(train.programs.feature_schema),
            data_hash=train.programs.data_hash,
            split=split,
            devices=tuple(train.devices[index] for index in np.unique(train.device)),
            training_tasks=task_digests(train),
            versions=versions(),
        )

    def told(self, device: DeviceSpec) -> DeviceSpec:
        """Returns the description of a device that is the input of the model.

        A trained device is described as in training. Another one lacks the values that are unknown
        for the nearest trained device (`as_nearest_known`).
        """
        trained = [spec for spec in self.devices if spec.name not in self.adapted]
        known = {spec.name: spec for spec in (*self.described, *trained)}
        return known.get(device.name) or as_nearest_known(device, trained)

    def as_told(self, samples: Samples) -> Samples:
        """Returns samples with their devices replaced by `told`."""
        return replace(samples, devices=tuple(map(self.told, samples.devices)))


def extended_card(card: ModelCard, kind: str, train: Samples, split: dict[str, Any]) -> ModelCard:
    """Returns the card of a model further trained on these samples, without calibration.

    Args:
        card: card of the original model.
        kind: kind of the new model.
    """
    used = [train.devices[index] for index in np.unique(train.device)]
    known = {spec.name for spec in card.devices}
    new = tuple(spec for spec in used if spec.name not in known)
    return replace(
        card,
        kind=kind,
        data_hash=train.programs.data_hash,
        split=split,
        devices=(*card.devices, *new),
        adapted=card.adapted | {spec.name for spec in new},
        training_tasks=card.training_tasks | task_digests(train),
        versions=versions(),
        calibration=None,
        described=tuple(spec for spec in card.described if spec not in used),
        of_new_devices=None,
    )


def task_digest(task: str) -> str:
    """Returns 16 hex digits that identify a task (`"<workload key>|<target kind>"`)."""
    return hashlib.sha256(task.encode("utf-8")).hexdigest()[:16]


def task_digests(samples: Samples) -> frozenset[str]:
    """Returns the digests of the tasks in `samples`."""
    return frozenset(
        task_digest(str(samples.programs.tasks[task])) for task in np.unique(samples.task_id)
    )


def save_model(model: CostModel, directory: Path, card: ModelCard) -> None:
    """Writes the weights, then model.json, which marks the model as complete."""
    write_model(directory, _facts(card), model.save)


def describe_new_devices(
    directory: Path, devices: Sequence[DeviceSpec], intervals: LatencyCalibration | None
) -> None:
    """Adds unmeasured devices that a saved model was trained for to its card.

    Args:
        devices: descriptions.
        intervals: intervals on unseen devices; None if not measured.

    Raises:
        DataError: as `load_model`.
    """
    card, state = _read_card(directory)
    card = replace(card, described=tuple(devices), of_new_devices=intervals)
    _write_card(directory, card, state)


def write_strange_factor(directory: Path, factor: float | None) -> None:
    """Adds `LatencyCalibration.strange_factor` to the card of a calibrated model.

    Raises:
        DataError: there is no complete model, or a file cannot be written.
    """
    card, state = _read_card(directory)
    if card.calibration is not None:
        calibration = replace(card.calibration, strange_factor=factor)
        _write_card(directory, replace(card, calibration=calibration), state)


def write_transfer(directory: Path, transfer: Transfer | None) -> None:
    """Adds the transfer between devices to the card of a run folder.

    Raises:
        DataError: there is no complete model, or a file cannot be written.
    """
    card, state = _read_card(directory)
    _write_card(directory, replace(card, transfer=transfer), state)


def _write_card(directory: Path, card: ModelCard, state: Any) -> None:
    write_json(directory / MODEL_FILE, {**_facts(card), "state": state})


def _facts(card: ModelCard) -> dict[str, Any]:
    """Returns the entries of a card in model.json."""
    return {
        "format": MODEL_FORMAT,
        "kind": card.kind,
        "feature_schema": card.feature_schema,
        "device_vector_schema": DEVICE_VECTOR_SCHEMA_VERSION,
        "data_hash": card.data_hash,
        "split": card.split,
        "devices": [asdict(spec) for spec in card.devices],
        "versions": card.versions,
        "training_tasks": sorted(card.training_tasks),
        "calibration": None if card.calibration is None else asdict(card.calibration),
        "described": [asdict(spec) for spec in card.described],
        "of_new_devices": None if card.of_new_devices is None else asdict(card.of_new_devices),
        "transfer": None if card.transfer is None else asdict(card.transfer),
        "adapted": sorted(card.adapted),
    }


def load_model(directory: Path) -> tuple[CostModel, ModelCard]:
    """Loads the model of a run folder and its card.

    Raises:
        DataError: there is no complete model, or it has another format version.
    """
    card, state = _read_card(directory)
    with damage_named(directory, RUN_HINT):
        return saved_model_class(card.kind).load(Path(directory), state), card


def read_card(directory: Path) -> ModelCard:
    """Reads the card of a run folder's model without loading the model.

    Raises:
        DataError: as `load_model`.
    """
    return _read_card(directory)[0]


def _read_card(directory: Path) -> tuple[ModelCard, Any]:
    path = Path(directory) / MODEL_FILE
    value = read_json(path, what="trained model", hint=RUN_HINT, format=MODEL_FORMAT)
    got = value.get("device_vector_schema")
    if got != DEVICE_VECTOR_SCHEMA_VERSION:
        raise DataError(
            f"{path} expects device vectors of version {got!s:.80}, this version makes "
            f"{DEVICE_VECTOR_SCHEMA_VERSION}; retrain with `cdmpp train`"
        )
    schema = value.get("feature_schema")
    known = {"leaf": [LEAF_SCHEMA_VERSION], "leaf_extra": [0, *LEAF_EXTRA_COUNTS]}
    if not isinstance(schema, dict) or any(schema.get(n) not in known[n] for n in known):
        raise DataError(
            f"{path} expects leaf columns of versions {schema!s:.80}, this version makes "
            f"{', '.join(f'{name} {versions}' for name, versions in known.items())}; retrain "
            "with `cdmpp train`"
        )
    with damage_named(directory, RUN_HINT):
        calibration, of_new = value.get("calibration"), value.get("of_new_devices")
        transfer = value.get("transfer")
        card = ModelCard(
            kind=value["kind"],
            feature_schema=value["feature_schema"],
            data_hash=value["data_hash"],
            split=value["split"],
            devices=tuple(DeviceSpec(**spec) for spec in value["devices"]),
            training_tasks=frozenset(value["training_tasks"]),
            versions=value["versions"],
            calibration=LatencyCalibration(**calibration) if calibration else None,
            described=tuple(DeviceSpec(**spec) for spec in value.get("described", ())),
            of_new_devices=LatencyCalibration(**of_new) if of_new else None,
            transfer=from_json(Transfer, transfer) if transfer else None,
            adapted=frozenset(value.get("adapted", ())),
        )
        return card, value["state"]
