"""Weights of torch networks of a model in one safetensors file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from cdmpp.errors import DataError
from cdmpp.files.atomic import write_atomic

FILE_NAME = "model.safetensors"


def save_networks(networks: Mapping[str, nn.Module], directory: Path) -> None:
    """Writes the weights of all networks, float32, each name behind the network's own."""
    from safetensors.torch import save_file

    weights = {
        f"{name}.{key}": value.detach().to(torch.float32).contiguous()
        for name, network in networks.items()
        for key, value in network.state_dict().items()
    }
    write_atomic(directory / FILE_NAME, lambda path: save_file(weights, path))


def load_networks(networks: Mapping[str, nn.Module], directory: Path) -> None:
    """Reads what `save_networks` wrote into networks of the same shape.

    Raises:
        DataError: the weights are missing or do not fit.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = directory / FILE_NAME
    try:
        weights = load_file(path)
        for name, network in networks.items():
            start = f"{name}."
            own = {
                key[len(start) :]: value for key, value in weights.items() if key.startswith(start)
            }
            network.load_state_dict(own)
            network.eval()
    except (OSError, SafetensorError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise DataError(
            f"cannot read the weights {path} ({reason}); train again with `cdmpp networks train`"
        ) from error
