"""Training runs of whole-network models.

A run folder has `config.yaml`, `model.json` and `model.safetensors` (trees: the library's own
JSON), `metrics.json`, `predictions.parquet` and `log.jsonl`. There are no pickles.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.arrays import FloatArray
from cdmpp.config import dump_text, to_dict
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DataError
from cdmpp.files.atomic import make_folder, read_json, write_columns, write_json, write_text
from cdmpp.files.run_folder import MODEL_FILE, claim_run_folder, damage_named, write_model
from cdmpp.files.stored import from_json, to_json
from cdmpp.models.loop.progress import OnTrain
from cdmpp.models.registry import network_model_class
from cdmpp.networks.dataset.encode import ENCODING_VERSION
from cdmpp.networks.dataset.samples import TARGETS, NetworkSamples, assemble
from cdmpp.networks.dataset.split import NetworkSplit, SplitKind, split_networks
from cdmpp.networks.dataset.store import NetworkData
from cdmpp.networks.domain import Domain
from cdmpp.networks.evaluate import NOISE_FLOOR, judge, noise_floor
from cdmpp.networks.intervals import NetworkIntervals, calibrate_networks
from cdmpp.networks.models.base import DEFAULT_MODEL, NetworkModel, new_model
from cdmpp.networks.models.options import NetworkOptions

MODEL_FORMAT = "networks-1"
_HINT = "train one with `cdmpp networks train --dataset DIR --out RUN`"
#: Folder of the checkpoints of an unfinished run.
_CHECKPOINTS = "checkpoints"


@dataclass(frozen=True)
class NetworkRun(NetworkOptions):
    """Configuration of a training run, with the options of all models.

    Attributes:
        model: key of `cdmpp.models.registry.NETWORK_CLASSES`.
        seed: seed of the split and of the model.
        split: kind of the split.
        device: the only device whose samples are used; None = all devices.
    """

    model: str = DEFAULT_MODEL
    seed: int = 0
    split: SplitKind = "architecture"
    device: str | None = None

    @property
    def options(self) -> NetworkOptions:
        """Options of the models."""
        return NetworkOptions(**{f.name: getattr(self, f.name) for f in fields(NetworkOptions)})


@dataclass(frozen=True)
class TrainedNetworks:
    """A fitted model with its intervals, training domain and provenance.

    Attributes:
        model: the model.
        devices: devices of the training data.
        intervals: intervals of its predictions.
        domain: domain of the training part.
        facts: data hash, split, seed and versions, as JSON values.
    """

    model: NetworkModel
    devices: tuple[DeviceSpec, ...]
    intervals: NetworkIntervals
    domain: Domain
    facts: dict[str, Any]

    def predict(self, samples: NetworkSamples) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Returns predictions, lower and upper ends of their intervals, each float64 [N, 6]; NaN
        ends on a device outside the training data.
        """
        predicted = self.model.predict(samples)
        low, high = self.intervals.bounds(predicted)
        known = [spec.name in self.domain.devices for spec in samples.devices]
        is_new = ~np.array(known)[samples.device]
        low[is_new], high[is_new] = np.nan, np.nan
        return predicted, low, high


def train_run(
    data: NetworkData,
    out: Path,
    run: NetworkRun,
    *,
    versions: Mapping[str, str],
    on_progress: OnTrain | None = None,
) -> dict[str, Any]:
    """Fits a model, evaluates it on the test part and writes the run folder.

    An interrupted run is resumed from its checkpoints, for models that have them.

    Args:
        data: the data set.
        out: run folder; created if it does not exist.
        run: configuration of the run.
        versions: library versions, which are stored with the run.
        on_progress: called after every step of models with steps.

    Returns:
        The content of `metrics.json`.

    Raises:
        UsageError: an unknown model or split, or the folder has another run.
        DataError: there are too few measurements, or the folder cannot be written.
    """
    model = new_model(run.model, run.options)
    samples = assemble(data, device=run.device)
    parts = split_networks(
        samples.architecture, samples.sample_names, kind=run.split, seed=run.seed
    )
    train, validation, test = (
        samples.take(rows) for rows in (parts.train, parts.validation, parts.test)
    )
    out = make_folder(out, what="run")
    claim_run_folder(out, dump_text(run))
    checkpoints = out / _CHECKPOINTS
    model.fit(train, validation, seed=run.seed, run_dir=checkpoints, on_progress=on_progress)
    trained = TrainedNetworks(
        model=model,
        devices=samples.devices,
        intervals=calibrate_networks(validation, model.predict(validation)),
        domain=Domain.of(train),
        facts={
            "data_hash": data_hash(data),
            "split": parts.to_json(),
            "seed": run.seed,
            "versions": dict(versions),
        },
    )
    predicted, low, high = trained.predict(test)
    metrics = {
        "model": run.model,
        **trained.facts,
        "devices": [spec.name for spec in samples.devices],
        "architectures": len(set(samples.architecture)),
        "test": judge(test, predicted, (low, high)),
        NOISE_FLOOR: noise_floor(test),
    }
    save_trained(trained, out)
    _write_predictions(out / "predictions.parquet", trained, samples, parts)
    lines = "".join(json.dumps(entry, allow_nan=False) + "\n" for entry in model.history)
    write_text(out / "log.jsonl", lines)
    write_json(out / "metrics.json", metrics)
    shutil.rmtree(checkpoints, ignore_errors=True)
    return metrics


def save_trained(trained: TrainedNetworks, directory: Path) -> None:
    """Writes the weights, then `model.json`, which marks the model as complete."""
    facts = {
        "format": MODEL_FORMAT,
        "kind": trained.model.kind,
        "encoding": ENCODING_VERSION,
        "options": to_dict(trained.model.options),
        "devices": [asdict(spec) for spec in trained.devices],
        "intervals": to_json(trained.intervals),
        "domain": to_json(trained.domain),
        "facts": trained.facts,
    }
    write_model(directory, facts, trained.model.save)


def is_networks_run(directory: Path) -> bool:
    """Returns whether a folder has a model of whole networks, as opposed to tensor programs."""
    path = Path(directory) / MODEL_FILE
    return (
        path.is_file() and read_json(path, what="model", hint=_HINT).get("format") == MODEL_FORMAT
    )


def load_run(directory: Path) -> TrainedNetworks:
    """Returns the model of a run folder or of a packaged model.

    Raises:
        DataError: the folder has no complete model of whole networks, or one of another version.
    """
    path = Path(directory) / MODEL_FILE
    value = read_json(path, what="model of whole networks", hint=_HINT, format=MODEL_FORMAT)
    if value.get("encoding") != ENCODING_VERSION:
        raise DataError(
            f"{path} expects columns of version {value.get('encoding')!s:.80}, this version makes "
            f"{ENCODING_VERSION}; {_HINT}"
        )
    with damage_named(directory, _HINT):
        state = {**value["state"], "options": value["options"]}
        return TrainedNetworks(
            model=network_model_class(value["kind"]).load(Path(directory), state),
            devices=tuple(DeviceSpec(**spec) for spec in value["devices"]),
            intervals=from_json(NetworkIntervals, value["intervals"]),
            domain=from_json(Domain, value["domain"]),
            facts=value["facts"],
        )


def evaluate_run(
    trained: TrainedNetworks, data: NetworkData, *, part: str = "auto", device: str | None = None
) -> dict[str, Any]:
    """Returns the errors of a trained model on a data set.

    Args:
        part: `test` = the test part of the run's split; `all` = every sample; `auto` = `test` for
            the training data set, else `all`.
        device: the only device to evaluate; None = all devices.

    Raises:
        DataError: there are no measurements, or `test` is requested for another data set.
    """
    samples = assemble(data, device=device, described=trained.devices)
    is_own = data_hash(data) == trained.facts["data_hash"]
    if part == "test" and not is_own:
        raise DataError("not the training data set, so it has no test part; use --part all")
    if part == "test" or (part == "auto" and is_own):
        only = trained.devices[0].name if len(trained.devices) == 1 else None
        whole = assemble(data, device=only)
        split = trained.facts["split"]
        parts = split_networks(
            whole.architecture, whole.sample_names, kind=split["kind"], seed=split["seed"]
        )
        names = set(whole.take(parts.test).sample_names)
        keep = [row for row, name in enumerate(samples.sample_names) if name in names]
        samples, judged = samples.take(np.array(keep, np.int64)), "test"
    else:
        judged = "all"
    predicted, low, high = trained.predict(samples)
    return {
        "model": trained.model.kind,
        "part": judged,
        "n": len(samples),
        "architectures": len(set(samples.architecture)),
        "devices": [spec.name for spec in samples.devices],
        "split": trained.facts["split"],
        "overlap_with_training": judged == "all" and is_own,
        "targets": judge(samples, predicted, (low, high)),
        NOISE_FLOOR: noise_floor(samples),
    }


def data_hash(data: NetworkData) -> str:
    """Returns the id of a data set, made of the digests of its files."""
    return "-".join(data.manifest["sha256"][name][:16] for name in sorted(data.manifest["sha256"]))


def _write_predictions(
    path: Path, trained: TrainedNetworks, samples: NetworkSamples, parts: NetworkSplit
) -> None:
    """Writes one row per sample and target."""
    predicted, low, high = trained.predict(samples)
    part = np.full(len(samples), "train", object)
    part[parts.validation], part[parts.test] = "validation", "test"
    labels = np.array([spec.name for spec in samples.devices], object)[samples.device]
    width = len(TARGETS)
    write_columns(
        path,
        {
            "graph_id": np.repeat(samples.sample_names, width),
            "architecture": np.repeat(samples.architecture, width),
            "device": np.repeat(labels, width),
            "part": np.repeat(part, width),
            "target": list(TARGETS) * len(samples),
            "measured": samples.targets.ravel(),
            "predicted": predicted.ravel(),
            "low": low.ravel(),
            "high": high.ravel(),
        },
    )
