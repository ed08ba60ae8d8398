"""Rows that are alike in most columns: leaves of the programs of one task."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class AlikeRows:
    """Rows whose other columns are the same in all of them.

    Attributes:
        unlike: float32 [..., C], the columns that differ.
        columns: int64 [C], which those are.
        alike: float32 [F], what all rows have in the other columns; 0 in these.
    """

    unlike: Tensor
    columns: Tensor
    alike: Tensor


def through(layer: nn.Linear, rows: Tensor | AlikeRows) -> Tensor:
    """Returns what a layer makes of rows [..., F]; the columns in which they are alike are
    multiplied once.
    """
    if isinstance(rows, AlikeRows):
        weight = layer.weight.index_select(1, rows.columns)
        return functional.linear(rows.unlike, weight, layer(rows.alike))
    result: Tensor = layer(rows)
    return result
