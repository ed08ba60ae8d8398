"""Rows that agree in most columns, such as leaves of the programs of one task."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class AlikeRows:
    """Rows of F columns that differ in only C of them.

    Attributes:
        unlike: float32 [..., C], values of the columns that differ.
        columns: int64 [C], indices of the columns that differ.
        alike: float32 [F], the common values of the other columns; 0 in `columns`.
    """

    unlike: Tensor
    columns: Tensor
    alike: Tensor


def through(layer: nn.Linear, rows: Tensor | AlikeRows) -> Tensor:
    """Applies a layer to rows [..., F]; columns with common values are multiplied once."""
    if isinstance(rows, AlikeRows):
        weight = layer.weight.index_select(1, rows.columns)
        return functional.linear(rows.unlike, weight, layer(rows.alike))
    result: Tensor = layer(rows)
    return result
