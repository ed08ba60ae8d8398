"""Times `torch.nn.functional.embedding_bag` on this machine's CPU, forward and backward."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from cdmpp.analytic.embedding.access import draw_rows
from cdmpp.analytic.embedding.shapes import EmbeddingShape, Pass
from cdmpp.errors import UsageError

if TYPE_CHECKING:
    import torch


#: Calls use several sets of indices in turn, so that a call does not find the rows of the previous
#: call in the cache. Before a set repeats, the calls have read this many bytes of rows (or every
#: call has its own set).
_FRESH_BYTES = 64_000_000
_LEAST_SETS = 6
#: Bytes of rows read before the timed calls, so that the cache holds the rows that are popular.
_WARM_BYTES = 48_000_000
_WARM_CALLS = 3
_LEAST_CALLS = 8
_MOST_CALLS = 30
_SPREAD_GOAL = 0.04


@dataclass(frozen=True)
class LookupTiming:
    """The time of one call.

    Attributes:
        latency_s: first quartile over the calls, seconds: other load only adds time.
        spread: (median - first decile) / first quartile.
        calls: number of timed calls.
        clock: `thread-cpu`, the processor time of the calling thread, or `wall`.
    """

    latency_s: float
    spread: float
    calls: int
    clock: Literal["thread-cpu", "wall"]


def time_calls(call: Callable[[int], object], budget_s: float) -> LookupTiming:
    """Times a function until the spread is small, 30 calls are done, or the budget is used up.

    A single thread is timed by its processor time, which excludes the time in which other processes
    have the core; on an idle machine it equals the wall time. Several threads are timed by the wall
    clock.

    Args:
        call: takes the number of the call.
        budget_s: seconds of timed calls, after the first 8.
    """
    import torch

    is_single = torch.get_num_threads() == 1
    clock = time.thread_time if is_single else time.perf_counter
    for number in range(_WARM_CALLS):
        call(number)
    taken: list[float] = []
    while True:
        start = clock()
        call(_WARM_CALLS + len(taken))
        taken.append(clock() - start)
        if len(taken) < _LEAST_CALLS:
            continue
        low, quartile, median = np.quantile(taken, (0.1, 0.25, 0.5))
        spread = float((median - low) / quartile)
        if spread <= _SPREAD_GOAL or len(taken) >= _MOST_CALLS or sum(taken) > budget_s:
            return LookupTiming(
                float(quartile), spread, len(taken), "thread-cpu" if is_single else "wall"
            )


class EmbeddingBench:
    """Tables of one size, which several measurements share.

    Args:
        rows, tables, width: as in `EmbeddingShape`.
    """

    def __init__(self, rows: int, tables: int, width: int) -> None:
        import torch

        self._size = (rows, tables, width)
        # fill_ writes every page: unwritten pages would all map to one page of zeros.
        self._tables = [torch.empty(rows, width).fill_(0.5) for _ in range(tables)]

    def measure(
        self,
        shape: EmbeddingShape,
        which: Pass,
        *,
        zipf_exponent: float,
        seed: int,
        budget_s: float,
    ) -> LookupTiming:
        """Times one pass over all tables, table after table.

        `backward-sgd` computes the sparse gradient of each table and adds it to the table;
        `backward-dense` computes the dense gradient and does not apply it.

        Raises:
            UsageError: a shape of other tables, or a pass that torch does not have on a CPU.
        """
        import torch

        if (shape.rows, shape.tables, shape.width) != self._size:
            raise UsageError(f"embedding bench: built for {self._size}, got {shape}")
        rng = np.random.default_rng(seed)
        self._warm(rng, shape, zipf_exponent)
        bags = _indices(rng, shape, zipf_exponent)
        offsets = torch.arange(0, shape.batch * shape.lookups, shape.lookups)
        if which == "forward":
            with torch.no_grad():
                return time_calls(self._forward(bags, offsets), budget_s)
        if which == "backward-adagrad":
            raise UsageError(
                "embedding bench: torch has no row-wise Adagrad; measure forward, backward-sgd or "
                "backward-dense"
            )
        return time_calls(self._backward(bags, offsets, shape, which), budget_s)

    def _warm(self, rng: np.random.Generator, shape: EmbeddingShape, exponent: float) -> None:
        """Reads rows of every table, drawn as in the timed calls."""
        import torch

        count = max(1, _WARM_BYTES // (shape.row_bytes * shape.tables))
        for table in self._tables:
            indices = torch.from_numpy(draw_rows(rng, count, shape.rows, exponent))
            torch.nn.functional.embedding_bag(
                indices, table, torch.zeros(1, dtype=torch.int64), mode="sum"
            )

    def _forward(
        self, bags: list[list[torch.Tensor]], offsets: torch.Tensor
    ) -> Callable[[int], object]:
        from torch.nn.functional import embedding_bag

        def call(number: int) -> None:
            for table, indices in zip(self._tables, bags[number % len(bags)], strict=True):
                embedding_bag(indices, table, offsets, mode="sum")

        return call

    def _backward(
        self,
        bags: list[list[torch.Tensor]],
        offsets: torch.Tensor,
        shape: EmbeddingShape,
        which: Pass,
    ) -> Callable[[int], object]:
        import torch
        from torch.nn.functional import embedding_bag

        is_sparse = which == "backward-sgd"
        weights = [table.detach().requires_grad_() for table in self._tables]
        gradient = torch.full((shape.batch, shape.width), 1e-3)
        # The graph of every set of indices is built once, outside the timed calls.
        outputs = [
            [
                embedding_bag(indices, weight, offsets, mode="sum", sparse=is_sparse)
                for weight, indices in zip(weights, row, strict=True)
            ]
            for row in bags
        ]

        def call(number: int) -> None:
            row = outputs[number % len(outputs)]
            for table, weight, output in zip(self._tables, weights, row, strict=True):
                (found,) = torch.autograd.grad(output, weight, gradient, retain_graph=True)
                if is_sparse:
                    table.add_(found, alpha=-1e-6)

        return call


def _indices(
    rng: np.random.Generator, shape: EmbeddingShape, exponent: float
) -> list[list[torch.Tensor]]:
    """Returns index vectors [sets][tables], each for one call."""
    import torch

    count = shape.batch * shape.lookups
    moved_bytes = count * shape.tables * shape.row_bytes
    sets = min(_WARM_CALLS + _MOST_CALLS, max(_LEAST_SETS, -(-_FRESH_BYTES // moved_bytes)))
    drawn = [
        torch.split(torch.from_numpy(draw_rows(rng, sets * count, shape.rows, exponent)), count)
        for _ in range(shape.tables)
    ]
    return [list(row) for row in zip(*drawn, strict=True)]
