"""Weights of torch models on disk, as safetensors without pickles."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from cdmpp.errors import DataError
from cdmpp.files.checked_tensors import read_tensors, write_tensors

FILE_NAME = "model.safetensors"


def save_weights(network: nn.Module, directory: Path) -> None:
    """Writes the weights of a network into `directory`."""
    _save({key: value.contiguous() for key, value in network.state_dict().items()}, directory)


def load_weights(network: nn.Module, directory: Path, *, train_command: str) -> None:
    """Loads weights written by `save_weights` into `network`.

    Args:
        train_command: command for retraining, for the error text.

    Raises:
        DataError: the weights are missing, damaged or do not fit the network.
    """
    _load({"": network}, directory, train_command)


def save_networks(networks: Mapping[str, nn.Module], directory: Path) -> None:
    """Writes the weights of several networks, float32, with names `network.weight`."""
    weights = {
        f"{name}.{key}": value.detach().to(torch.float32).contiguous()
        for name, network in networks.items()
        for key, value in network.state_dict().items()
    }
    _save(weights, directory)


def load_networks(networks: Mapping[str, nn.Module], directory: Path) -> None:
    """Loads weights written by `save_networks` into networks and puts them into evaluation mode.

    Raises:
        DataError: the weights are missing, damaged or do not fit.
    """
    starts = {f"{name}.": network for name, network in networks.items()}
    _load(starts, directory, "cdmpp networks train")
    for network in networks.values():
        network.eval()


def _save(weights: dict[str, torch.Tensor], directory: Path) -> None:
    from safetensors.torch import save

    write_tensors(directory / FILE_NAME, save(weights))


def _load(networks: Mapping[str, nn.Module], directory: Path, train_command: str) -> None:
    """Loads the weights of networks, each by the prefix of its names."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    path = directory / FILE_NAME
    try:
        weights = load(read_tensors(path)[0])
        odd = [name for name, value in weights.items() if not value.isfinite().all()]
        if odd:
            raise RuntimeError(f"{odd[0]} has values that are not finite")
        for start, network in networks.items():
            own = {
                key.removeprefix(start): v for key, v in weights.items() if key.startswith(start)
            }
            network.load_state_dict(own)
    except (OSError, SafetensorError, RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise DataError(
            f"cannot read the weights {path} ({reason}); retrain with `{train_command}`"
        ) from error
