"""Base class of the torch baselines: labels, training, prediction, saving and loading."""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from dataclasses import asdict, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from cdmpp.arrays import FloatArray, IntArray
from cdmpp.config import from_dict, to_dict
from cdmpp.datasets.judge import judged
from cdmpp.datasets.samples import Samples
from cdmpp.files.stored import from_json, to_json
from cdmpp.files.torch_weights import load_weights, save_weights
from cdmpp.metrics import spearman_by_task
from cdmpp.models.base import CostModel
from cdmpp.models.loop.loop import train_loop
from cdmpp.models.loop.progress import OnTrain
from cdmpp.models.nets.lambda_rank import lambda_rank_loss
from cdmpp.models.nets.options import TorchPeerOptions
from cdmpp.models.options import RankablePeerOptions
from cdmpp.models.parts.checks import check_schema, check_trainable, state_value
from cdmpp.models.parts.labels import BoxCoxLabels, LogLabels, ScoreLabels, labels_from_json
from cdmpp.models.parts.leaf_batches import samples_digest
from cdmpp.models.parts.program_groups import ProgramGroups
from cdmpp.models.parts.ranking import best_over_latency, log_rates, task_device_groups

_PREDICT_PROGRAMS = 256

Options = TypeVar("Options", bound=TorchPeerOptions)


class PeerInputs(Protocol):
    """Samples in the input format of a baseline's network."""

    groups: ProgramGroups

    def batch(self, programs: IntArray) -> Any:
        """Returns the network's input for some programs and their samples.

        Samples are in the order of `groups.samples_of`.

        Args:
            programs: indices into `groups.program_rows`.
        """


class InputCoder(Protocol):
    """Transforms samples to inputs with statistics of the training part."""

    def inputs(self, samples: Samples) -> PeerInputs:
        """Returns the inputs of samples.

        Raises:
            NotApplicableError: the samples lack an input of the model.
        """


class TorchPeer(CostModel, Generic[Options]):
    """A network that maps a program and a device to one number, trained with `options.loss`.

    `mse` fits standardised log seconds; `lambda_rank` fits the order of the programs of one task on
    one device, and the scores are calibrated to seconds afterwards (see `ScoreLabels`).

    Attributes:
        history: one entry per validation of the latest `fit`, as in log.jsonl; empty after `load`.
    """

    options_class: ClassVar[type[TorchPeerOptions]]
    coder_class: ClassVar[Any]

    def __init__(self, options: Options | None = None) -> None:
        self._options: Any = options if options is not None else self.default_options()
        self._schema: dict[str, int] | None = None
        self._coder: Any = None
        self._labels: LogLabels | BoxCoxLabels | ScoreLabels | None = None
        self._network: nn.Module | None = None
        self.history: list[dict[str, Any]] = []

    @classmethod
    def default_options(cls) -> TorchPeerOptions:
        """Returns the default options."""
        return cls.options_class()

    def _fit_coder(self, train: Samples) -> InputCoder:
        """Returns the coder with the statistics of the training part."""
        coder: InputCoder = self.coder_class.fit(train, self._options.extra_blocks)
        return coder

    def _load_coder(self, state: dict[str, Any]) -> InputCoder:
        """Rebuilds the coder from its `to_json` state."""
        coder: InputCoder = from_json(self.coder_class, state)
        return coder

    @abstractmethod
    def _new_network(self) -> nn.Module:
        """Returns an untrained network from batches of `self._coder` to float32 [sample]."""

    def fit(
        self,
        train: Samples,
        validation: Samples,
        *,
        seed: int,
        run_dir: Path | None = None,
        on_progress: OnTrain | None = None,
    ) -> None:
        """Trains; without validation samples, early stopping uses the training part.

        Raises:
            NotApplicableError: the samples lack an input of the model.
        """
        check_trainable(train)
        self._schema = dict(train.programs.feature_schema)
        judge = validation if len(validation) else train
        self._coder = self._fit_coder(train)
        self._labels = self._fit_labels(train)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = self._new_network()
        result = train_loop(
            network,
            _PeerTrainee(self, train, judge, seed),
            self._options.loop,
            seed=seed,
            fingerprint=self._fingerprint(train, validation, seed),
            run_dir=run_dir,
            on_progress=on_progress,
        )
        network.load_state_dict(result.weights)
        self._network = network.eval()
        self.history = result.history
        output = self._outputs(self._network, self._coder.inputs(judge))
        self._labels = self._calibrated(output, judge)

    def predict(self, samples: Samples) -> FloatArray:
        """Returns float64 [N], seconds."""
        samples = check_schema(self._schema, samples)
        assert self._network is not None
        if len(samples) == 0:
            return np.zeros(0)
        return self._seconds(self._outputs(self._network, self._asked(samples)), samples)

    def save(self, directory: Path) -> dict[str, Any]:
        """Writes the weights as safetensors and returns the state."""
        assert self._network is not None
        assert self._labels is not None
        save_weights(self._network, directory)
        return {
            "feature_schema": self._schema,
            "options": to_dict(self._options),
            "coder": to_json(self._coder),
            "labels": asdict(self._labels),
            "parameters": sum(value.numel() for value in self._network.parameters()),
        }

    @classmethod
    def load(cls, directory: Path, state: dict[str, Any]) -> TorchPeer[Options]:
        """Rebuilds the model.

        Raises:
            DataError: the weights are missing or do not fit the state.
        """
        model = cls(from_dict(cls.options_class, state_value(state, "options")))  # type: ignore[arg-type]
        model._schema = state_value(state, "feature_schema")
        model._coder = model._load_coder(state_value(state, "coder"))
        model._labels = labels_from_json(state_value(state, "labels"))
        network = model._new_network()
        load_weights(network, directory, train_command=f"cdmpp train --model {cls.kind}")
        model._network = network.eval()
        return model

    def _asked(self, samples: Samples) -> PeerInputs:
        """Returns the inputs of samples to predict."""
        inputs: PeerInputs = self._coder.inputs(samples)
        return inputs

    def _ranks(self) -> bool:
        options = self._options
        return isinstance(options, RankablePeerOptions) and options.loss == "lambda_rank"

    def _fit_labels(self, train: Samples) -> LogLabels | BoxCoxLabels:
        return LogLabels.fit(train.latency_s)

    def _calibrated(
        self, output: FloatArray, judge: Samples
    ) -> LogLabels | BoxCoxLabels | ScoreLabels:
        """Returns the labels calibrated on the network's output for the evaluation samples."""
        assert self._labels is not None
        if self._ranks():
            return ScoreLabels.fit(output, judge.latency_s, log_rates(judge))
        if isinstance(self._labels, LogLabels) and self._options.least_mape_factor:
            predicted_s = self._labels.decode(output)
            return self._labels.with_least_mape(predicted_s, judge.latency_s)
        return self._labels

    def _training_batches(self, groups: ProgramGroups, *, seed: int, epoch: int) -> list[IntArray]:
        loop = self._options.loop
        return groups.shuffled(
            loop.programs_per_batch, loop.programs_per_task, seed=seed, epoch=epoch
        )

    def _loss(self, output: Tensor, label: Tensor, relevance: Tensor, group: Tensor) -> Tensor:
        """Returns the training loss.

        Args:
            output: float32 [sample], output of the network.
            label: float32 [sample], encoded latencies.
            relevance: float32 [sample], best latency of the group over the latency.
            group: int64 [sample], equal for samples of one task on one device.
        """
        if self._ranks():
            return lambda_rank_loss(-output, relevance, group)
        return nn.functional.mse_loss(output, label)

    def _validation_loss(self, output: FloatArray, samples: Samples) -> float:
        """Returns the validation loss, which the selected weights minimise.

        It is the mean squared error of the labels or, for a ranking loss, one minus the mean rank
        correlation within tasks (0.5 if no task can be ranked).
        """
        if self._ranks():
            correlation = spearman_by_task(judged(samples, np.exp(output)))
            return 1.0 - (0.5 if correlation is None else correlation)
        assert isinstance(self._labels, LogLabels | BoxCoxLabels)
        return float(np.mean((output - self._labels.encode(samples.latency_s)) ** 2))

    def _seconds(self, output: FloatArray, samples: Samples) -> FloatArray:
        assert self._labels is not None
        return _decoded(self._labels, output, samples)

    def _outputs(self, network: nn.Module, inputs: PeerInputs) -> FloatArray:
        """Returns float64 [N], the output of the network in evaluation mode for every sample."""
        batches = inputs.groups.in_order(_PREDICT_PROGRAMS)
        total = sum(len(inputs.groups.samples_of(programs)[0]) for programs in batches)
        output = np.zeros(total)
        device = next(network.parameters()).device
        with torch.inference_mode():
            for programs in batches:
                rows, _ = inputs.groups.samples_of(programs)
                output[rows] = network(_on(inputs.batch(programs), device)).cpu().numpy()
        return output

    def _fingerprint(self, train: Samples, validation: Samples, seed: int) -> str:
        facts = [
            self.kind,
            to_dict(self._options),
            seed,
            self._schema,
            samples_digest(train),
            samples_digest(validation),
        ]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


class _PeerTrainee:
    """The `Trainee` of one training.

    Attributes:
        follows_network: whether batches are moved to the network's device.
    """

    follows_network: ClassVar[bool] = True

    def __init__(
        self, model: TorchPeer[Any], train: Samples, validation: Samples, seed: int
    ) -> None:
        self._model = model
        self._seed = seed
        self._validation_samples = validation
        self._train = model._coder.inputs(train)
        self._validation = model._coder.inputs(validation)
        labels = model._labels
        assert isinstance(labels, LogLabels | BoxCoxLabels)
        group = task_device_groups(train)
        self._targets = (
            torch.from_numpy(labels.encode(train.latency_s).astype(np.float32)),
            torch.from_numpy(best_over_latency(train.latency_s, group)),
            torch.from_numpy(group),
        )

    def batches(self, epoch: int) -> list[IntArray]:
        return self._model._training_batches(self._train.groups, seed=self._seed, epoch=epoch)

    def loss(self, network: nn.Module, batch: IntArray) -> tuple[Tensor, int]:
        rows = torch.from_numpy(self._train.groups.samples_of(batch)[0])
        device = next(network.parameters()).device
        output = network(_on(self._train.batch(batch), device)).float()
        targets = (values[rows].to(device) for values in self._targets)
        return self._model._loss(output, *targets), len(rows)

    def validate(self, network: nn.Module) -> float:
        output = self._model._outputs(network, self._validation)
        return self._model._validation_loss(output, self._validation_samples)

    def predict_validation(self, network: nn.Module) -> FloatArray:
        """Returns float64 [validation sample], log seconds predicted by the current network."""
        output = self._model._outputs(network, self._validation)
        labels = self._model._calibrated(output, self._validation_samples)
        return np.asarray(np.log(_decoded(labels, output, self._validation_samples)))


def _decoded(
    labels: LogLabels | BoxCoxLabels | ScoreLabels, output: FloatArray, samples: Samples
) -> FloatArray:
    if isinstance(labels, ScoreLabels):
        return labels.decode(output, log_rates(samples))
    return labels.decode(output)


def _on(value: Any, device: torch.device) -> Any:
    """Returns a batch with all its tensors on a device; on the CPU, the batch itself."""
    if device.type == "cpu":
        return value
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, tuple):
        return tuple(_on(part, device) for part in value)
    if is_dataclass(value) and not isinstance(value, type):
        moved = {part.name: _on(getattr(value, part.name), device) for part in fields(value)}
        return replace(value, **moved)
    return value
