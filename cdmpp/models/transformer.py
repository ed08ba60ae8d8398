"""The transformer over leaves as a cost model."""

from __future__ import annotations

import copy
import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch
from numpy.typing import NDArray

from cdmpp.config import from_dict, to_dict
from cdmpp.datasets.samples import Samples
from cdmpp.devices.vector import device_vector
from cdmpp.errors import UsageError
from cdmpp.files.stored import from_json, to_json
from cdmpp.files.torch_weights import load_weights, save_weights
from cdmpp.models.base import CostModel
from cdmpp.models.loop.loop import train_loop
from cdmpp.models.loop.progress import OnTrain
from cdmpp.models.nets.latency_net import LatencyEnsemble, LatencyNet
from cdmpp.models.nets.options import LoopOptions, identity
from cdmpp.models.options import TransformerOptions
from cdmpp.models.parts.checks import check_schema, check_trainable, state_value
from cdmpp.models.parts.latency_trainee import PREDICT_PROGRAMS, LatencyTrainee
from cdmpp.models.parts.leaf_batches import SampleBatches, Statistics, samples_digest
from cdmpp.models.parts.normalise import Normalisation
from cdmpp.models.parts.prior import Prior, fit_prior


class TransformerCostModel(CostModel):
    """Encodes the leaves of a program with attention and sums their latencies on the device.

    Attributes:
        history: one entry per epoch of the latest `fit`, as in log.jsonl; empty after `load`.
    """

    kind: ClassVar[str] = "transformer"

    def __init__(self, options: TransformerOptions | None = None) -> None:
        self._options = options or TransformerOptions()
        self._schema: dict[str, int] | None = None
        self._statistics: Statistics | None = None
        self._network: LatencyEnsemble | None = None
        #: float32 [device, feature], device vectors of the training part.
        self._known_devices: NDArray[np.float32] | None = None
        self.history: list[dict[str, Any]] = []

    def fit(
        self,
        train: Samples,
        validation: Samples,
        *,
        seed: int,
        run_dir: Path | None = None,
        on_progress: OnTrain | None = None,
    ) -> None:
        """Trains; without validation samples, early stopping uses the training part."""
        check_trainable(train)
        self._schema = dict(train.programs.feature_schema)
        prior = fit_prior(train, self._options.prior, self._options.prior_model)
        self._statistics = Statistics.fit(train, self._options.extra_blocks, prior)
        self._known_devices = np.stack(
            [device_vector(train.devices[index]) for index in np.unique(train.device)]
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = self._new_network()
        trainee = LatencyTrainee(
            train,
            validation if len(validation) else train,
            self._statistics,
            self._options,
            seed,
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
        samples = check_schema(self._schema, samples)
        assert self._statistics is not None
        assert self._network is not None
        log_latency = np.zeros(len(samples))
        batches = self._batches(samples) if len(samples) else None
        with torch.inference_mode():
            for programs in batches.in_order(PREDICT_PROGRAMS) if batches else []:
                assert batches is not None
                members = self._network(batches.batch(programs, alike=True))
                log_latency[batches.sample_rows(programs)] = members.mean(dim=0).numpy()
        return np.exp(log_latency)

    def leaf_shares(self, samples: Samples) -> list[NDArray[np.float64]]:
        """Returns float64 [leaves] per sample, each leaf's share of the latency, sum 1."""
        samples = check_schema(self._schema, samples)
        assert self._network is not None
        found: list[NDArray[np.float64]] = [np.zeros(0)] * len(samples)
        batches = self._batches(samples) if len(samples) else None
        with torch.no_grad():
            for programs in batches.in_order(PREDICT_PROGRAMS) if batches else []:
                assert batches is not None
                rows, owner = batches.samples_of(programs)
                shares = self._network.leaf_shares(batches.batch(programs)).double().numpy()
                counts = batches.leaf_count[programs][owner]
                for row, own, count in zip(rows, shares, counts, strict=True):
                    found[row] = own[:count]
        return found

    def save(self, directory: Path) -> dict[str, Any]:
        """Writes the weights as safetensors and returns the state."""
        assert self._network is not None
        assert self._statistics is not None
        save_weights(self._network, directory)
        return {
            "feature_schema": self._schema,
            "options": to_dict(self._options),
            "normalisation": {
                "leaf": to_json(self._statistics.leaf),
                "device": to_json(self._statistics.device),
            },
            "prior": self.prior_facts(),
            "known_devices": None if self._known_devices is None else self._known_devices.tolist(),
            "parameters": sum(value.numel() for value in self._network.state_dict().values()),
        }

    @classmethod
    def load(cls, directory: Path, state: dict[str, Any]) -> TransformerCostModel:
        """Rebuilds the model.

        Raises:
            DataError: the weights are missing or do not fit the state.
        """
        model = cls(from_dict(TransformerOptions, state_value(state, "options")))
        model._schema = state_value(state, "feature_schema")
        normalisation = state_value(state, "normalisation")
        prior = state.get("prior")
        model._statistics = Statistics(
            Normalisation.from_json(normalisation["leaf"]),
            Normalisation.from_json(normalisation["device"]),
            None if prior is None else from_json(Prior, prior),
        )
        known = state.get("known_devices")
        model._known_devices = None if known is None else np.asarray(known, np.float32)
        network = model._new_network()
        load_weights(network, directory, train_command="cdmpp train")
        model._network = network.eval()
        return model

    def prior_facts(self) -> dict[str, Any] | None:
        """Returns the calibrated analytic prior as JSON; None without one."""
        assert self._statistics is not None
        prior = self._statistics.prior
        return None if prior is None else to_json(prior)

    def tuning_copy(self) -> TransformerCostModel:
        """Returns a copy of the model that shares no weights with it.

        Raises:
            UsageError: the model was not trained.
        """
        if self._network is None:
            raise UsageError("this model has not been trained; call fit() or load() first")
        model = TransformerCostModel(self._options)
        model._schema = self._schema
        model._statistics = self._statistics
        model._known_devices = self._known_devices
        model._network = copy.deepcopy(self._network)
        return model

    def tuning_starts(self, budget: Samples) -> list[TransformerCostModel]:
        """Returns copies of the model as starts of a tuning.

        The first is unchanged. Each further one maps the budget's device to the embedding of a
        training device (see `LatencyNet.take_device_for`). A budget of several devices gets only
        the first.
        """
        starts = [self.tuning_copy()]
        devices = np.unique(budget.device)
        if self._known_devices is None or self._statistics is None or len(devices) != 1:
            return starts
        own = device_vector(budget.devices[devices[0]])[None]
        own_input = torch.from_numpy(self._statistics.device.apply(own))[0]
        for vector in self._statistics.device.apply(self._known_devices):
            start = self.tuning_copy()
            for member in start.tuning_network().members:
                cast(LatencyNet, member).take_device_for(own_input, torch.from_numpy(vector))
            starts.append(start)
        return starts

    def tuning_network(self) -> LatencyEnsemble:
        """Returns the network, not a copy: changes to it affect `predict`."""
        assert self._network is not None
        return self._network

    def tuning_trainee(
        self, train: Samples, validation: Samples, loop: LoopOptions, *, seed: int
    ) -> LatencyTrainee:
        """Returns the trainee of a fine-tuning, with the statistics of the first training.

        Raises:
            DataError: the samples have features of another schema version.
        """
        train, validation = (check_schema(self._schema, one) for one in (train, validation))
        assert self._statistics is not None
        options = replace(self._options, loop=loop)
        return LatencyTrainee(train, validation, self._statistics, options, seed)

    def _batches(self, samples: Samples) -> SampleBatches:
        assert self._statistics is not None
        return SampleBatches(samples, self._statistics, self._options.extra_blocks)

    def _new_network(self) -> LatencyEnsemble:
        assert self._statistics is not None
        return LatencyEnsemble(
            self._options.network,
            feature_count=len(self._statistics.leaf.mean),
            device_feature_count=len(self._statistics.device.mean),
            prior=self._options.prior,
        )

    def _fingerprint(self, train: Samples, validation: Samples, seed: int) -> str:
        text = json.dumps(
            [
                identity(self._options),
                seed,
                self._schema,
                samples_digest(train),
                samples_digest(validation),
                None,  # keeps the fingerprints of earlier versions valid
            ],
            sort_keys=True,
        )
        return hashlib.sha256(text.encode()).hexdigest()
