"""File of a search's cost model: a tar of safetensors, .npz and JSON."""

from __future__ import annotations

import json
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import BadZipFile

import torch

from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DataError
from cdmpp.files.atomic import write_atomic
from cdmpp.files.json_text import parse_json
from cdmpp.files.open_text import unpack_errors
from cdmpp.models.base import CostModel
from cdmpp.predict.estimates import TrainedModel, load_trained
from cdmpp.predict.saved_model import ModelCard, save_model
from tvm_helper.cost_model.measured_programs import MeasuredPrograms
from tvm_helper.cost_model.safety_net import SafetyNet

if TYPE_CHECKING:  # imports TVM, which reading and writing this file does not need
    from tvm_helper.cost_model.xgb_peer import XgbPeer

FORMAT = 1
_STATE = "search.json"
_DAMAGED: tuple[type[Exception], ...] = (
    OSError, BadZipFile, tarfile.TarError, KeyError, TypeError, ValueError, *unpack_errors(),
)  # fmt: skip


@dataclass(frozen=True)
class SearchState:
    """State of a search's cost model.

    Attributes:
        trained: the model at the start of the search.
        current: the model in use; the model of `trained` unless a tuned one replaced it.
        device: the device that measures.
        measured: the measured programs, with fine-tuning or `neighbours`; otherwise empty.
        tuned_to: number of measured programs at the last tuning.
        reference_s: task -> (reference of the scores, shortest predicted), in seconds.
        net: the safety net.
        peer: the XGB model; None without one.
    """

    trained: TrainedModel
    current: CostModel
    device: DeviceSpec
    measured: MeasuredPrograms
    tuned_to: int
    reference_s: dict[str, tuple[float, float]]
    net: SafetyNet
    peer: XgbPeer | None


def write_state(path: Path, state: SearchState) -> None:
    """Writes the file atomically.

    Raises:
        DataError: it cannot be written.
    """
    with _scratch(path) as folder:
        is_tuned = state.current is not state.trained.model
        models = [("base", state.trained.model)]
        if is_tuned:
            models.append(("current", state.current))
        for name, model in models:
            (folder / name).mkdir()
            save_model(model, folder / name, _card(state, model))
        if state.trained.tasks is not None:
            state.trained.tasks.save(folder / "base")
        if state.trained.distilled is not None:
            state.trained.distilled.save(folder / "base")
        state.measured.save(folder / "measured.npz")
        if state.peer is not None:
            state.peer.save(folder / "xgb")
        values = {
            "format": FORMAT,
            "device": asdict(state.device),
            "tuned_to": state.tuned_to,
            "is_tuned": is_tuned,
            "reference_s": state.reference_s,
            "net": state.net.to_json(),
        }
        (folder / _STATE).write_text(json.dumps(values, allow_nan=False), encoding="utf-8")
        write_atomic(path, lambda temporary: _pack(folder, temporary))


def read_state(path: Path, *, peer: XgbPeer | None) -> SearchState:
    """Reads a file written by `write_state`.

    Args:
        peer: loads the XGB model of the file, if it has one; None = ignore it.

    Raises:
        DataError: not a file of this kind.
    """
    with _scratch(path) as folder:
        try:
            with tarfile.open(path) as archive:
                archive.extractall(folder, filter="data")
            values = parse_json((folder / _STATE).read_text(encoding="utf-8"))
            if values["format"] != FORMAT:
                raise DataError(
                    f"{path} has format {values['format']}, expected {FORMAT}; search again"
                )
            device = DeviceSpec(**values["device"])
            trained = load_for_search(folder / "base")
            current = trained.model
            if values["is_tuned"]:
                current = load_for_search(folder / "current").model
            measured = MeasuredPrograms.load(folder / "measured.npz", device)
            if peer is not None and (folder / "xgb").is_dir():
                peer.load(folder / "xgb")
            reference_s = {
                task: (float(first), float(second))
                for task, (first, second) in values["reference_s"].items()
            }
            net = SafetyNet.from_json(values["net"])
        except _DAMAGED as error:
            raise DataError(
                f"{path} is not a saved cost model of a search ({type(error).__name__}: "
                f"{error}); expected a file written by `save` of the cost model"
            ) from None
    return SearchState(
        trained, current, device, measured, int(values["tuned_to"]), reference_s, net, peer
    )


def load_for_search(directory: Path, *, with_code: bool = False) -> TrainedModel:
    """Returns the model of a run folder; torch's global random state does not change.

    Args:
        with_code: whether the folder's machine-code model is read too.

    Raises:
        DataError: there is no complete model, or it was written by another version of this format.
    """
    # A network is initialised with random weights before its weights are loaded.
    with torch.random.fork_rng(devices=[]):
        return load_trained(directory, with_code=with_code)


def _card(state: SearchState, model: CostModel) -> ModelCard:
    """Returns the card with the model's kind: the tuned part of an ensemble is a transformer."""
    return replace(state.trained.card, kind=model.kind)


def _pack(folder: Path, path: Path) -> None:
    with tarfile.open(path, "w") as archive:
        for entry in sorted(folder.iterdir()):
            archive.add(entry, arcname=entry.name)


@contextmanager
def _scratch(path: Path) -> Iterator[Path]:
    """Yields an empty folder.

    Raises:
        DataError: the folder cannot be created or used.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="cdmpp-cost-model-") as name:
            yield Path(name)
    except OSError as error:
        raise DataError(f"{path}: cannot use a temporary folder ({error.strerror})") from None
