"""GPU memory of networks, fitted to the largest batch sizes that ran."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cdmpp.conformal import owner_quantile
from cdmpp.devices.registry import get_device
from cdmpp.networks.graph.execution import MODES, Execution
from cdmpp.networks.kernels.gpu_memory import gpu_peak_bytes, largest_indexed_batch
from cdmpp.networks.step_time.graphs import ArchitectureGraphs
from cdmpp.networks.step_time.inputs import release
from cdmpp.networks.step_time.model import MemoryFactor, memory_key
from cdmpp.networks.step_time.runs import MeasuredRun

#: Batch sizes that timm's benchmark tries in this order until one runs.
BATCH_SERIES = (
    1024, 768, 512, 384, 256, 192, 128, 96, 64, 48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1,
)  # fmt: skip
_COVERAGE = 0.9
#: First version of torch whose compiled networks have a `largest_indexed_batch`.
_LIMITED_SINCE = "2.9"
#: Logs of the candidate factors.
_LOG_FACTORS = np.linspace(np.log(0.5), np.log(8.0), 200)


@dataclass(frozen=True)
class LargestBatch:
    """A run with the largest batch size of the series that ran.

    Attributes:
        run: the run.
        fitted: bytes of its tensors divided by the device's memory.
        failed: the same ratio for the next larger batch size.
        most_batch: largest batch size regardless of memory, see `largest_indexed_batch`.
    """

    run: MeasuredRun
    fitted: float
    failed: float
    most_batch: float = math.inf

    @property
    def larger_batch(self) -> int:
        """Next larger batch size of the series, which did not run."""
        return BATCH_SERIES[BATCH_SERIES.index(self.run.batch) - 1]

    @property
    def is_of_memory(self) -> bool:
        """Whether the larger batch failed for lack of memory."""
        return self.larger_batch <= self.most_batch


def largest_batches(runs: Sequence[MeasuredRun], graphs: ArchitectureGraphs) -> list[LargestBatch]:
    """Returns the runs with a smaller batch size than the largest of their benchmark: their next
    larger batch size did not run. The largest of the series, and sizes outside it, are left out.
    """
    first: dict[tuple[object, ...], int] = {}
    for run in runs:
        first[_benchmark(run)] = max(first.get(_benchmark(run), 0), run.batch)
    found = []
    for run in runs:
        limit = get_device(run.device).mem_bytes
        if run.batch >= first[_benchmark(run)] or run.batch not in BATCH_SERIES[1:] or not limit:
            continue
        pair = [
            graphs.graph(run.arch, run.size, batch)
            for batch in (run.batch, BATCH_SERIES[BATCH_SERIES.index(run.batch) - 1])
        ]
        is_old = run.torch.startswith("1.")
        fitted, failed = (
            gpu_peak_bytes(graph, run.execution, fused_attention=not is_old) / limit
            for graph in pair
        )
        is_limited = release(run.torch) >= release(_LIMITED_SINCE)
        most = largest_indexed_batch(pair[0], run.execution) if is_limited else math.inf
        found.append(LargestBatch(run, fitted, failed, most))
    return found


def memory_factors(
    runs: Sequence[MeasuredRun], graphs: ArchitectureGraphs
) -> dict[str, MemoryFactor]:
    """Returns `memory_key` -> factor from the tensors' bytes to the needed memory, with which most
    of the largest batches fit and the next larger ones do not.
    """
    labels = largest_batches(runs, graphs)
    found: dict[str, MemoryFactor] = {}
    for mode in MODES:
        for compiled in (False, True):
            key = memory_key(Execution(compiled=compiled, mode=mode))
            of_mode = [one for one in labels if one.run.execution.mode == mode]
            own = [one for one in of_mode if one.run.execution.compiled == compiled] or of_mode
            own = [one for one in own if one.is_of_memory]
            found[key] = _factor(own) if own else MemoryFactor(1.0, float(np.log(2.0)))
    return found


def _factor(labels: Sequence[LargestBatch]) -> MemoryFactor:
    fitted, failed = (
        np.log([getattr(one, name) for one in labels]) for name in ("fitted", "failed")
    )
    right = [((fitted <= -log) & (failed > -log)).mean() for log in _LOG_FACTORS]
    log = float(np.median(_LOG_FACTORS[np.array(right) == max(right)]))
    names = np.unique([one.run.arch for one in labels], return_inverse=True)[1]
    error = np.abs(0.5 * (fitted + failed) + log)
    width = owner_quantile(error, names.astype(np.int64), _COVERAGE)
    return MemoryFactor(float(np.exp(log)), width)


def _benchmark(run: MeasuredRun) -> tuple[object, ...]:
    return run.device, run.torch, run.execution
