"""Sinusoidal encodings of a leaf's position in the serialised tree."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from cdmpp.models.nets.options import PositionKind

_TABLES = 16


def encode_position(position: Tensor, width: int, *, kind: PositionKind) -> Tensor:
    """Returns the encoding of each position.

    Args:
        position: integer tensor of any shape, index of the leaf's number in the serialised tree.
        width: number of channels n, even.
        kind: `sinusoidal`: channels 2j and 2j+1 are sin and cos of p / 10000^(2j/n). `original`:
            channel i is the sin (even i) or cos (odd i) of p / 10000^(2i/n), as in the original
            CDMPP: the exponent is doubled and the two channels of a pair differ in frequency.
            `none`: zeros.

    Returns:
        float32 [*position.shape, width], values in [-1, 1].
    """
    if position.numel() == 0 or torch.is_grad_enabled() or position.device.type != "cpu":
        return _encode(position, width, kind)
    return _table(1 << int(position.max()).bit_length(), width, kind)[position.long()]


@lru_cache(maxsize=_TABLES)
def _table(count: int, width: int, kind: PositionKind) -> Tensor:
    """Returns float32 [count, width], the encodings of 0, 1, 2, ..."""
    return _encode(torch.arange(count), width, kind)


def _encode(position: Tensor, width: int, kind: PositionKind) -> Tensor:
    if kind == "none":
        return torch.zeros((*position.shape, width), dtype=torch.float32, device=position.device)
    channel = torch.arange(width, dtype=torch.float64, device=position.device)
    exponent = 2.0 * channel if kind == "original" else 2.0 * torch.floor(channel / 2.0)
    angle = position.to(torch.float64).unsqueeze(-1) * torch.pow(10000.0, -exponent / width)
    return torch.where(channel % 2 == 0, torch.sin(angle), torch.cos(angle)).to(torch.float32)
