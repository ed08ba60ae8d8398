"""The transformer over leaves as a cost model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cdmpp.datasets.atomic import write_atomic
from cdmpp.datasets.samples import Samples
from cdmpp.errors import DataError
from cdmpp.models._guard import check_schema, check_trainable, state_value
from cdmpp.models._leaf_batches import SampleBatches, Statistics, samples_digest
from cdmpp.models._normalise import Normalisation
from cdmpp.models.base import CostModel
from cdmpp.models.options import LoopOptions, LossOptions, NetworkOptions, TransformerOptions
from cdmpp.nn.latency_net import LatencyEnsemble, latency_loss

_FILE_NAME = "model.safetensors"
_PREDICT_PROGRAMS = 256


class TransformerCostModel(CostModel):
    """Encodes the leaves of a program with attention and adds up their latencies on the asked
    device.

    Attributes:
        history: one entry an epoch of the latest `fit`, as in log.jsonl; empty after `load`.
    """

    kind: ClassVar[str] = "transformer"

    def __init__(self, options: TransformerOptions | None = None) -> None:
        self._options = options or TransformerOptions()
        self._schema: dict[str, int] | None = None
        self._statistics: Statistics | None = None
        self._network: LatencyEnsemble | None = None
        self.history: list[dict[str, Any]] = []

    def fit(
        self,
        train: Samples,
        validation: Samples,
        *,
        seed: int,
        run_dir: Path | None = None,
        on_progress: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        """Trains; without validation samples the training loss decides when to stop."""
        from cdmpp.training.loop import train_loop

        check_trainable(train)
        self._schema = dict(train.programs.feature_schema)
        self._statistics = Statistics.fit(train)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = self._new_network()
        trainee = _LatencyTrainee(
            train, validation if len(validation) else train, self._statistics, self._options, seed
        )
        trainee.centre(network)
        result = train_loop(
            network,
            trainee,
            self._options.loop,
            seed=seed,
            fingerprint=self._fingerprint(train, validation, seed),
            run_dir=run_dir,
            on_progress=on_progress,
        )
        network.load_state_dict(result.weights)
        self._network = network.eval()
        self.history = result.history

    def predict(self, samples: Samples) -> NDArray[np.float64]:
        """Returns float64 [N], seconds."""
        check_schema(self._schema, samples)
        assert self._statistics is not None
        assert self._network is not None
        log_latency = np.zeros(len(samples))
        batches = SampleBatches(samples, self._statistics) if len(samples) else None
        with torch.no_grad():
            for programs in batches.in_order(_PREDICT_PROGRAMS) if batches else []:
                assert batches is not None
                members = self._network(batches.batch(programs))
                log_latency[batches.sample_rows(programs)] = members.mean(dim=0).numpy()
        return np.exp(log_latency)

    def save(self, directory: Path) -> dict[str, Any]:
        """Writes the weights as safetensors and returns the state."""
        from safetensors.torch import save_file

        assert self._network is not None
        assert self._statistics is not None
        weights = {key: value.contiguous() for key, value in self._network.state_dict().items()}
        write_atomic(directory / _FILE_NAME, lambda path: save_file(weights, path))
        return {
            "feature_schema": self._schema,
            "options": asdict(self._options),
            "normalisation": {
                "leaf": self._statistics.leaf.to_json(),
                "device": self._statistics.device.to_json(),
            },
            "parameters": sum(value.numel() for value in weights.values()),
        }

    @classmethod
    def load(cls, directory: Path, state: dict[str, Any]) -> TransformerCostModel:
        """Rebuilds the model.

        Raises:
            DataError: the weights are missing or do not fit the state.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        options = state_value(state, "options")
        model = cls(
            TransformerOptions(
                network=NetworkOptions(**options["network"]),
                loss=LossOptions(**options["loss"]),
                loop=LoopOptions(**options["loop"]),
            )
        )
        model._schema = state_value(state, "feature_schema")
        normalisation = state_value(state, "normalisation")
        model._statistics = Statistics(
            Normalisation.from_json(normalisation["leaf"]),
            Normalisation.from_json(normalisation["device"]),
        )
        network = model._new_network()
        path = directory / _FILE_NAME
        try:
            network.load_state_dict(load_file(path))
        except (OSError, SafetensorError, RuntimeError) as error:
            reason = str(error).strip().splitlines()[0]
            raise DataError(
                f"cannot read the weights {path} ({reason}); train again with `cdmpp train`"
            ) from error
        model._network = network.eval()
        return model

    def _new_network(self) -> LatencyEnsemble:
        assert self._statistics is not None
        return LatencyEnsemble(
            self._options.network,
            feature_count=len(self._statistics.leaf.mean),
            device_feature_count=len(self._statistics.device.mean),
        )

    def _fingerprint(self, train: Samples, validation: Samples, seed: int) -> str:
        text = json.dumps(
            [
                asdict(self._options),
                seed,
                self._schema,
                samples_digest(train),
                samples_digest(validation),
            ],
            sort_keys=True,
        )
        return hashlib.sha256(text.encode()).hexdigest()


class _LatencyTrainee:
    """The samples of one training as the loop wants them."""

    def __init__(
        self,
        train: Samples,
        validation: Samples,
        statistics: Statistics,
        options: TransformerOptions,
        seed: int,
    ) -> None:
        self._options = options
        self._seed = seed
        self._train = SampleBatches(train, statistics)
        self._validation = SampleBatches(validation, statistics)
        self._train_target = _targets(train)
        self._validation_target = _targets(validation)

    def batches(self, epoch: int) -> list[NDArray[np.int64]]:
        loop = self._options.loop
        return self._train.shuffled(
            loop.programs_per_batch, loop.programs_per_task, seed=self._seed, epoch=epoch
        )

    def loss(self, network: nn.Module, batch: NDArray[np.int64]) -> tuple[Tensor, int]:
        predicted, log_latency, group = self._forward(
            network, self._train, self._train_target, batch
        )
        options = asdict(self._options.loss)
        losses = [latency_loss(member, log_latency, group, **options) for member in predicted]
        return torch.stack(losses).mean(), len(group)

    def validate(self, network: nn.Module) -> float:
        total = 0.0
        count = 0
        # The order term needs whole batches to mean anything, so validation judges the errors
        # alone.
        options = {**asdict(self._options.loss), "rank_weight": 0.0}
        for batch in self._validation.in_order(_PREDICT_PROGRAMS):
            predicted, log_latency, group = self._forward(
                network, self._validation, self._validation_target, batch
            )
            mean = predicted.mean(dim=0)
            total += float(latency_loss(mean, log_latency, group, **options)) * len(group)
            count += len(group)
        return total / count

    def centre(self, network: LatencyEnsemble) -> None:
        """Sets each member's bias so that its median error before training is zero."""
        errors = []
        with torch.no_grad():
            for batch in self._train.in_order(_PREDICT_PROGRAMS):
                predicted, log_latency, _ = self._forward(
                    network.eval(), self._train, self._train_target, batch
                )
                errors.append(log_latency - predicted)
            network.shift(torch.cat(errors, dim=1).median(dim=1).values)

    def _forward(
        self,
        network: nn.Module,
        batches: SampleBatches,
        target: tuple[Tensor, Tensor],
        programs: NDArray[np.int64],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns predicted log seconds [member, sample], measured ones and groups [sample]."""
        rows = torch.from_numpy(batches.sample_rows(programs))
        return network(batches.batch(programs)), target[0][rows], target[1][rows]


def _targets(samples: Samples) -> tuple[Tensor, Tensor]:
    """Returns log seconds (float32 [N]) and the (task, device) group of each sample (int64 [N])."""
    group = samples.task_id * len(samples.devices) + samples.device
    return (
        torch.from_numpy(np.log(samples.latency_s).astype(np.float32)),
        torch.from_numpy(group),
    )
