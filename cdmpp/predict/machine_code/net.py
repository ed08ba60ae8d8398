"""An ensemble of perceptrons over the columns of compiled programs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save
from torch import Tensor, nn

from cdmpp.arrays import FloatArray, IntArray
from cdmpp.errors import DataError
from cdmpp.files.checked_tensors import read_tensors, write_tensors

_WIDTH, _LAYERS, _DROPOUT = 384, 3, 0.1
_EPOCHS, _BATCH = 60, 64
#: Number of perceptrons; they differ in initial weights and shuffling.
_MEMBERS = 2
_LEARNING_RATE, _WEIGHT_DECAY = 2e-3, 0.05
#: `beta` of the smooth L1 loss, in standard deviations of the label.
_BETA = 0.3
#: Columns with a smaller deviation are dropped; standardised values are clipped to the second.
_LEAST_DEVIATION, _MOST_DEVIATIONS = 1e-4, 5.0


@dataclass(frozen=True)
class CodeNet:
    """Mean of several perceptrons: columns -> log seconds.

    Attributes:
        kept: int64 [K], indices of the input columns.
        mean, deviation: float32 [K], statistics of these columns.
        label: mean and standard deviation of the log seconds.
        members: standardised columns -> standardised label; weights rounded to float16.
    """

    kept: IntArray
    mean: NDArray[np.float32]
    deviation: NDArray[np.float32]
    label: tuple[float, float]
    members: tuple[nn.Sequential, ...]

    @classmethod
    def fit(cls, columns: NDArray[np.float32], log_s: FloatArray, *, seed: int) -> CodeNet:
        """Fits the perceptrons; torch's global random state does not change.

        Args:
            columns: float32 [N, columns], N at least 1.
            log_s: float64 [N], log of the measured seconds.
        """
        spread = columns.std(axis=0, dtype=np.float64)
        kept = np.flatnonzero(spread > _LEAST_DEVIATION)
        centre, deviation = float(log_s.mean()), float(log_s.std()) or 1.0
        found = cls(
            kept=kept,
            mean=columns[:, kept].mean(axis=0, dtype=np.float64).astype(np.float32),
            deviation=spread[kept].astype(np.float32),
            label=(centre, deviation),
            members=(),
        )
        wanted = torch.from_numpy(((log_s - centre) / deviation).astype(np.float32))
        standardised = found._standardised(columns)
        members = []
        with torch.random.fork_rng(devices=[]):
            for place in range(_MEMBERS):
                torch.manual_seed(seed + place)
                network = _network(len(kept))
                _train(network, standardised, wanted)
                for weight in network.parameters():
                    weight.data = weight.data.half().float()
                members.append(network)
        return replace(found, members=tuple(members))

    def log_s(self, columns: NDArray[np.float32]) -> FloatArray:
        """Returns float64 [N], log of the predicted seconds."""
        centre, deviation = self.label
        standardised = self._standardised(columns)
        with torch.no_grad():
            found = torch.stack([network(standardised) for network in self.members]).mean(dim=0)
        return np.asarray(found.squeeze(1).numpy(), np.float64) * deviation + centre

    def _standardised(self, columns: NDArray[np.float32]) -> Tensor:
        values = (columns[:, self.kept] - self.mean) / self.deviation
        return torch.from_numpy(np.clip(values, -_MOST_DEVIATIONS, _MOST_DEVIATIONS))

    def save(self, path: Path) -> None:
        """Writes the perceptrons; tensors of the members are stacked along the first axis.

        Raises:
            DataError: the file cannot be written.
        """
        tensors = {
            "kept": self.kept, "mean": self.mean, "deviation": self.deviation,
            "label": np.array(self.label),
        }  # fmt: skip
        states = [network.state_dict() for network in self.members]
        for name in states[0]:
            weights = np.stack([state[name].numpy() for state in states])
            tensors[f"network.{name}"] = weights.astype(np.float16)
        write_tensors(path, save(tensors))

    @classmethod
    def load(cls, path: Path, *, hint: str) -> CodeNet:
        """Loads what `save` wrote.

        Raises:
            DataError: the file is missing or damaged.
        """
        try:
            tensors = load(read_tensors(path)[0])
            kept = tensors["kept"]
            weights = {
                name.removeprefix("network."): torch.from_numpy(value.astype(np.float32))
                for name, value in tensors.items()
                if name.startswith("network.")
            }
            if weights["0.bias"].ndim == 1:  # one perceptron, of an earlier form
                weights = {name: value.unsqueeze(0) for name, value in weights.items()}
            members = tuple(_network(len(kept)).eval() for _ in weights["0.weight"])
            for place, network in enumerate(members):
                network.load_state_dict({name: value[place] for name, value in weights.items()})
            centre, deviation = (float(value) for value in tensors["label"])
            return cls(kept, tensors["mean"], tensors["deviation"], (centre, deviation), members)
        except (OSError, SafetensorError, KeyError, ValueError, RuntimeError) as error:
            reason = (str(error).strip().splitlines() or ["empty"])[0]
            raise DataError(f"cannot read the perceptron {path} ({reason}); {hint}") from None


def _network(columns: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    width = columns
    for layer in range(_LAYERS):
        layers += [nn.Linear(width, _WIDTH), nn.GELU()]
        if layer < _LAYERS - 1:
            layers.append(nn.Dropout(_DROPOUT))
        width = _WIDTH
    return nn.Sequential(*layers, nn.Linear(width, 1))


def _train(network: nn.Sequential, columns: Tensor, wanted: Tensor) -> None:
    optimiser = torch.optim.AdamW(network.parameters(), weight_decay=_WEIGHT_DECAY)
    batches = -(-len(columns) // _BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, _LEARNING_RATE, total_steps=_EPOCHS * batches
    )
    network.train()
    for _ in range(_EPOCHS):
        for rows in torch.split(torch.randperm(len(columns)), _BATCH):
            predicted = network(columns[rows]).squeeze(1)
            loss = nn.functional.smooth_l1_loss(predicted, wanted[rows], beta=_BETA)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            schedule.step()
    network.eval()
