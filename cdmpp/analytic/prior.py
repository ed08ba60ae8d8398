"""Analytic times of samples, from which a learned model starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from cdmpp.analytic.kernels.times import KernelTimes
from cdmpp.analytic.roofline.programs import bound_s, leaf_work, leaves_of
from cdmpp.arrays import FloatArray, IntArray
from cdmpp.datasets.samples import ProgramArrays, Samples
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DeviceError

if TYPE_CHECKING:
    from cdmpp.analytic.recognise import Recognised

#: `roofline`: the larger of operations / peak and bytes / bandwidth, for the whole program.
#: `auto`: the convolution model for recognised convolutions on NVIDIA GPUs, the embedding model for
#: recognised embedding lookups on any GPU, and the roofline for everything else.
PriorModelName = Literal["roofline", "auto"]
PriorSource = Literal["roofline", "conv", "embedding"]
#: All sources, in the order of the indices in `PriorTimes.source`.
PRIOR_SOURCES: tuple[PriorSource, ...] = get_args(PriorSource)


#: Lower limit of a program's time; keeps the logarithm of an empty program finite.
_LEAST_S = 1e-9
_CHUNK_PROGRAMS = 20_000


@dataclass(frozen=True)
class PriorTimes:
    """Times of N samples by an analytic model.

    Attributes:
        log_s: float64 [N], log of seconds.
        source: int64 [N], index into `PRIOR_SOURCES`.
        fallbacks: reason -> number of samples that got the roofline for it; empty for `roofline`.
    """

    log_s: FloatArray
    source: IntArray
    fallbacks: dict[str, int]

    def counts(self) -> dict[str, int]:
        """Returns source -> number of samples, for all sources."""
        counts = np.bincount(self.source, minlength=len(PRIOR_SOURCES))
        return {name: int(count) for name, count in zip(PRIOR_SOURCES, counts, strict=True)}


def prior_times(samples: Samples, model: PriorModelName) -> PriorTimes:
    """Returns the analytic time of every sample; `latency_s` is never read."""
    rows, place = np.unique(samples.program, return_inverse=True)
    log_s = _roofline_log_s(samples, rows, place)
    source = np.zeros(len(samples), np.int64)
    if model == "roofline" or len(samples) == 0:
        return PriorTimes(log_s, source, {})
    is_gpu = np.array([spec.kind == "gpu" for spec in samples.devices], bool)[samples.device]
    fallbacks: dict[str, int] = {}
    if not is_gpu.all():
        fallbacks["not a GPU"] = int((~is_gpu).sum())
    if is_gpu.any():
        from cdmpp.analytic.recognise import recognise

        found = recognise(samples.programs, np.unique(samples.program[is_gpu]))
        for index, spec in enumerate(samples.devices):
            here = np.flatnonzero((samples.device == index) & is_gpu)
            if len(here):
                _replace_on(samples.program, here, spec, found, log_s, source, fallbacks)
    return PriorTimes(log_s, source, dict(sorted(fallbacks.items())))


def _roofline_log_s(samples: Samples, rows: IntArray, place: IntArray) -> FloatArray:
    """Returns float64 [N] of the samples whose programs are `rows[place]`."""
    flop, moved = np.zeros(len(rows)), np.zeros(len(rows))
    for start in range(0, len(rows), _CHUNK_PROGRAMS):
        part = slice(start, start + _CHUNK_PROGRAMS)
        flop[part], moved[part] = _program_work(samples.programs, rows[part])
    log_s = np.zeros(len(samples))
    for index, spec in enumerate(samples.devices):
        here = samples.device == index
        log_s[here] = np.log(np.maximum(bound_s(spec, flop, moved), _LEAST_S))[place[here]]
    return log_s


def _program_work(programs: ProgramArrays, rows: IntArray) -> tuple[FloatArray, FloatArray]:
    """Returns (operations, distinct bytes), float64 [len(rows)] each."""
    leaves, owner = leaves_of(programs, rows)
    work = leaf_work(programs.leaf_features[leaves])
    sums = [np.bincount(owner, value, len(rows)) for value in (work.flop, work.bytes)]
    return np.asarray(sums[0], np.float64), np.asarray(sums[1], np.float64)


def _replace_on(
    program: IntArray,
    here: IntArray,
    spec: DeviceSpec,
    found: Recognised,
    log_s: FloatArray,
    source: IntArray,
    fallbacks: dict[str, int],
) -> None:
    """Replaces the roofline's times by the models' for the samples `here`, all on one GPU, and
    counts the samples that keep the roofline.
    """
    rows, kernels = set(program[here].tolist()), KernelTimes(spec)
    conv_s, conv_reason = _conv_times(found, rows, kernels)
    lookup_s, lookup_reason = _lookup_times(found, rows, kernels)
    for at, row in zip(here.tolist(), program[here].tolist(), strict=True):
        for name, times in (("conv", conv_s), ("embedding", lookup_s)):
            if row in times:
                log_s[at] = np.log(max(times[row], _LEAST_S))
                source[at] = PRIOR_SOURCES.index(name)
                break
        else:
            reason = _REASONS.get(found.reason.get(row, ""), "")
            reason = reason or (conv_reason if row in found.conv else lookup_reason)
            fallbacks[reason] = fallbacks.get(reason, 0) + 1


#: Reason of `recognise` -> text of the report.
_REASONS: Mapping[str, str] = {
    "other": "neither a convolution nor a lookup",
    "no-fit": "a sum of products that no square convolution fits",
    "pointwise": "a 1x1 convolution or a matrix product",
    "no-columns": "programs without the added leaf columns",
}


def _conv_times(
    found: Recognised, rows: set[int], times: KernelTimes
) -> tuple[dict[int, float], str]:
    """Returns program -> seconds of the convolutions, and why they have no times ("" = they do)."""
    from cdmpp.analytic.conv.shapes import ConvShapes

    chosen = [row for row in found.conv if row in rows]
    if not chosen:
        return {}, ""
    if times.device.vendor != "NVIDIA":
        return {}, "a convolution on a GPU that is not NVIDIA's"
    try:
        seconds = times.convolutions_s(ConvShapes.concatenate([found.conv[row] for row in chosen]))
    except DeviceError:
        return {}, "a convolution on a GPU with too few values in the registry"
    return dict(zip(chosen, seconds.tolist(), strict=True)), ""


def _lookup_times(
    found: Recognised, rows: set[int], times: KernelTimes
) -> tuple[dict[int, float], str]:
    """Returns program -> seconds of the lookups, and why they have no times ("" = they do)."""
    chosen = [row for row in found.embedding if row in rows]
    try:
        return {row: times.embedding_s(found.embedding[row]) for row in chosen}, ""
    except DeviceError:
        return {}, "a lookup on a GPU with too few values in the registry"
