"""Batches split over several processes: each runs its part, and all get the whole result.

All processes use the same batches and compute the same loss of a whole batch, which includes pairs
of samples from different processes. The gradient of a process's own part is scaled by the number of
processes, so the mean of all processes' gradients equals the gradient of a single process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed

from cdmpp.arrays import IntArray


def process_count() -> int:
    """Returns the number of processes in the group; 1 outside a process group."""
    is_grouped = distributed.is_available() and distributed.is_initialized()
    return int(distributed.get_world_size()) if is_grouped else 1


def process_index() -> int:
    """Returns the index of this process in its group, from 0."""
    return int(distributed.get_rank()) if process_count() > 1 else 0


def shares(items: IntArray) -> list[IntArray]:
    """Returns one contiguous part of the items per process, of nearly equal lengths."""
    return [np.asarray(part, np.int64) for part in np.array_split(items, process_count())]


def gather_samples(own: Tensor, counts: Sequence[int]) -> Tensor:
    """Concatenates the columns of all processes; gradients flow to this process's columns.

    Args:
        own: float [row, counts[i]] of process i; further columns are ignored.
        counts: number of columns of every process.
    """
    if process_count() == 1:
        return own
    gathered: Tensor = _Gather.apply(own, tuple(counts))  # type: ignore[no-untyped-call]
    return gathered


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, counts: tuple[int, ...]) -> Tensor:
        index = process_index()
        start = sum(counts[:index])
        ctx.columns = slice(start, start + counts[index])
        ctx.shape = own.shape
        whole = own.new_zeros((own.shape[0], sum(counts)))
        whole[:, ctx.columns] = own[:, : counts[index]]
        distributed.all_reduce(whole)
        return whole

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        own = gradients[0].new_zeros(ctx.shape)
        part = gradients[0][:, ctx.columns]
        own[:, : part.shape[1]] = part * process_count()
        return own, None
