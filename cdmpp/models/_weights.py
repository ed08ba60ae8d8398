"""Weights of torch models on disk: safetensors, nothing pickled."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from cdmpp.errors import DataError
from cdmpp.files.atomic import write_atomic

_FILE_NAME = "model.safetensors"


def save_weights(network: nn.Module, directory: Path) -> None:
    """Writes the weights into `directory`."""
    from safetensors.torch import save_file

    weights = {key: value.contiguous() for key, value in network.state_dict().items()}
    write_atomic(directory / _FILE_NAME, lambda path: save_file(weights, path))


def load_weights(network: nn.Module, directory: Path, *, train_command: str) -> None:
    """Reads into `network` what `save_weights` wrote.

    Args:
        train_command: what makes such weights; the error names it.

    Raises:
        DataError: the weights are missing or do not fit the network.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = directory / _FILE_NAME
    try:
        network.load_state_dict(load_file(path))
    except (OSError, SafetensorError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise DataError(
            f"cannot read the weights {path} ({reason}); train again with `{train_command}`"
        ) from error
