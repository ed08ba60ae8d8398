"""Step-time model: predicts the time of one step of a network on a GPU, with an interval."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from cdmpp.arrays import BoolArray, FloatArray, IntArray
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DataError
from cdmpp.files.atomic import read_json
from cdmpp.files.places import package_folder
from cdmpp.files.run_folder import MODEL_FILE, damage_named, write_model
from cdmpp.files.stored import from_json, to_json
from cdmpp.files.torch_weights import load_networks, save_networks
from cdmpp.networks.graph.execution import Execution
from cdmpp.networks.graph.graph import NetworkGraph
from cdmpp.networks.kernels.torch_kernels import COLUMNS, KERNELS, TorchKernels, torch_kernels
from cdmpp.networks.step_time.inputs import StepQuestion, StepTimeInputs
from cdmpp.networks.step_time.network import StepNetwork

MODEL_FORMAT = "cdmpp-step-time-1"
#: Value of `model` in the metrics of its runs.
STEP_TIME = "step-time"
_HINT = "retrain it with `cdmpp networks train --table`"
_ROWS = 512
_SIZE_COLUMNS = [COLUMNS.index(name) for name in ("m", "n", "k", "batch")]
#: Tolerated factor of a kernel's size outside the range of the training data.
_MARGIN = 2.0
_MOST_OUTSIDE = 0.2
#: Seconds of a slow host per operator of eager torch under autocast: an assumption, because the
#: steps in the training data were not host-bound.
_SLOW_CALL_S = 25e-6
_MEASURED_DTYPE, _MEASURED_VENDOR = "amp-fp16", "NVIDIA"


@dataclass(frozen=True)
class StepWidths:
    """Half widths of 90 % intervals of log seconds.

    Attributes:
        known: way (`way_of`) -> half width on devices of the training data, from left-out families
            of networks.
        unseen: way -> half width on other devices, from left-out families and devices.
        extrapolated: factor on the largest width for a way without measurements.
    """

    known: Mapping[str, float]
    unseen: Mapping[str, float]
    extrapolated: float = 1.5

    def of(self, way: str, *, is_known: bool) -> float:
        """Returns the half width of a way."""
        widths = self.known if is_known else self.unseen
        if way in widths:
            return widths[way]
        return self.extrapolated * max(widths.values())


@dataclass(frozen=True)
class MemoryFactor:
    """Ratio of the memory that a run needs to the peak bytes of its tensors.

    Attributes:
        factor: the ratio.
        half_width: half width of the 90 % interval of its log.
    """

    factor: float
    half_width: float


@dataclass(frozen=True)
class KernelRanges:
    """Ranges of kernel sizes in the training data.

    Attributes:
        by_kind: kind of kernel -> (smallest, largest) of m, n, k and batch.
    """

    by_kind: Mapping[str, tuple[tuple[float, float], ...]]

    @classmethod
    def of(cls, rows: FloatArray) -> KernelRanges:
        """Returns the ranges of kernels.

        Args:
            rows: float64 [kernels, columns], see `cdmpp.networks.kernels.torch_kernels.COLUMNS`.
        """
        kinds = rows[:, COLUMNS.index("kind")].astype(np.int64)
        found = {}
        for code in np.unique(kinds).tolist():
            own = rows[kinds == code][:, _SIZE_COLUMNS]
            ends = zip(own.min(axis=0).tolist(), own.max(axis=0).tolist(), strict=True)
            found[KERNELS[code]] = tuple(ends)
        return cls(found)

    def is_outside(self, rows: FloatArray) -> BoolArray:
        """Returns bool [kernels], whether a size is outside the ranges (with a margin) or the kind
        is unknown.
        """
        outside = np.ones(len(rows), bool)
        kinds = rows[:, COLUMNS.index("kind")].astype(np.int64)
        for name, ends in self.by_kind.items():
            low, high = np.array(ends).T
            sizes = rows[:, _SIZE_COLUMNS]
            is_far = ((sizes < low / _MARGIN) | (sizes > high * _MARGIN)).any(axis=1)
            outside = np.where(kinds == KERNELS.index(name), is_far, outside)
        return outside


@dataclass(frozen=True)
class StepEstimate:
    """Predicted time of a step.

    Attributes:
        seconds: the prediction.
        low_s, high_s: ends of its 90 % interval.
        parts: kind of kernel -> seconds, longest first.
        doubts: reasons why the prediction is out of distribution.
    """

    seconds: float
    low_s: float
    high_s: float
    parts: Mapping[str, float] = field(default_factory=dict)
    doubts: tuple[str, ...] = ()


def way_of(execution: Execution) -> str:
    """Returns the way of an execution: mode, memory format, and compiled or eager."""
    compiled = "compiled" if execution.compiled else "eager"
    return f"{execution.mode} {execution.layout} {compiled}"


def memory_key(execution: Execution) -> str:
    """Returns the key of an execution's memory factor: mode, and compiled or eager."""
    return f"{execution.mode} {'compiled' if execution.compiled else 'eager'}"


class StepTimeModel:
    """An ensemble of networks fitted with different seeds, with intervals.

    Attributes:
        networks: name -> network.
        devices: labels of the devices in the training data.
        widths: half widths of the intervals.
        memory: `memory_key` -> memory factor.
        ranges: ranges of kernel sizes.
        facts: description of the training data and its metrics.
    """

    def __init__(
        self,
        networks: Mapping[str, StepNetwork],
        devices: Sequence[str],
        widths: StepWidths,
        memory: Mapping[str, MemoryFactor],
        ranges: KernelRanges,
        facts: Mapping[str, Any],
    ) -> None:
        self.networks, self.devices = dict(networks), tuple(devices)
        self.widths, self.memory, self.ranges = widths, dict(memory), ranges
        self.facts = dict(facts)

    def log_seconds(self, inputs: StepTimeInputs) -> FloatArray:
        """Returns float64 [N], log seconds, the mean over the networks."""
        return mean_log_seconds(list(self.networks.values()), inputs, np.arange(len(inputs)))

    def estimate(
        self, graph: NetworkGraph, device: DeviceSpec, execution: Execution
    ) -> StepEstimate:
        """Returns the predicted time of a step of a network.

        Raises:
            DeviceError: the device lacks a value that the model needs.
        """
        table = torch_kernels(graph, execution)
        inputs = StepTimeInputs([table], [device], [StepQuestion(0, 0, execution)])
        seconds = float(np.exp(self.log_seconds(inputs))[0])
        width = self.half_width(device.name, execution)
        doubts = []
        if device.name not in self.devices:
            doubts.append(f"no training data on {device.name}")
        if device.vendor != _MEASURED_VENDOR:
            width *= self.widths.extrapolated
            doubts.append(f"extrapolated: the model was trained on {_MEASURED_VENDOR}'s GPUs")
        if not self._is_measured(execution):
            doubts.append(f"extrapolated: no networks in {execution.text} in the training data")
        each_s = _kernel_seconds(list(self.networks.values()), inputs)
        outside = each_s[self.ranges.is_outside(table.rows)].sum() / max(each_s.sum(), 1e-12)
        if outside > _MOST_OUTSIDE:
            width *= self.widths.extrapolated
            doubts.append(
                f"{100 * outside:.0f} % of its time is in kernels of sizes outside the training "
                "data"
            )
        shortest_s = float(self.facts["shortest_s"])
        if seconds < shortest_s:
            width *= self.widths.extrapolated
            doubts.append(
                f"shorter than the steps of the training ({1e3 * shortest_s:.2g} ms and more): the "
                "host may take longer than the GPU"
            )
        parts = _parts(each_s, table, seconds)
        high_s = max(seconds * math.exp(width), table.calls * _SLOW_CALL_S)
        return StepEstimate(seconds, seconds * math.exp(-width), high_s, parts, tuple(doubts))

    def half_width(self, device: str, execution: Execution) -> float:
        """Returns the half width of the interval of log seconds.

        Args:
            device: device label.
        """
        is_known = device in self.devices
        width = self.widths.of(way_of(execution), is_known=is_known)
        is_new_type = execution.dtype != _MEASURED_DTYPE and way_of(execution) in self.widths.known
        return width * (self.widths.extrapolated if is_new_type else 1.0)

    def memory_bytes(self, tensors: float, execution: Execution) -> tuple[float, float, float]:
        """Returns the bytes that a run needs and the ends of their interval.

        Args:
            tensors: peak bytes of the tensors (`gpu_peak_bytes`).
        """
        known = self.memory[memory_key(execution)]
        needed = known.factor * tensors
        spread = math.exp(known.half_width)
        return needed, needed / spread, needed * spread

    def _is_measured(self, execution: Execution) -> bool:
        return execution.dtype == _MEASURED_DTYPE and way_of(execution) in self.widths.known

    def save(self, directory: Path) -> None:
        """Writes the weights, then `model.json`, which marks the model as complete."""
        facts = {
            "format": MODEL_FORMAT, "kernels": list(KERNELS), "networks": sorted(self.networks),
            "width": next(iter(self.networks.values())).body[0].in_features,
            "flags": next(iter(self.networks.values())).host.in_features,
            "devices": list(self.devices), "widths": to_json(self.widths),
            "memory": to_json(self.memory), "ranges": to_json(self.ranges),
            "facts": self.facts,
        }  # fmt: skip
        write_model(directory, facts, lambda folder: _saved(self.networks, folder))

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Returns the model that `save` wrote.

        Raises:
            DataError: the folder has no complete model, or one of another version.
        """
        path = Path(directory) / MODEL_FILE
        value = read_json(path, what="step-time model", hint=_HINT, format=MODEL_FORMAT)
        if value.get("kernels") != list(KERNELS):
            raise DataError(f"{path}: its kernels are of another version; {_HINT}")
        with damage_named(directory, _HINT):
            width, flags = int(value["width"]), int(value["flags"])
            networks = {name: StepNetwork(width, flags) for name in value["networks"]}
            load_networks(networks, Path(directory))
            memory = {mode: from_json(MemoryFactor, one) for mode, one in value["memory"].items()}
            widths = from_json(StepWidths, value["widths"])
            ranges = from_json(KernelRanges, value["ranges"])
            return cls(networks, value["devices"], widths, memory, ranges, value["facts"])


@lru_cache(maxsize=1)
def packaged_model() -> StepTimeModel:
    """Returns the shipped model, cached.

    Raises:
        DataError: no model is shipped.
    """
    return StepTimeModel.load(packaged_step_time())


def packaged_step_time() -> Path:
    """Returns the folder of the shipped model."""
    return package_folder("cdmpp.pretrained") / "networks" / "step_time"


@torch.no_grad()
def mean_log_seconds(
    networks: Sequence[StepNetwork], inputs: StepTimeInputs, steps: IntArray
) -> FloatArray:
    """Returns float64 [S], log seconds, the mean over networks.

    Args:
        steps: int64 [S], indices of steps.
    """
    logs = np.zeros(len(steps))
    for start in range(0, len(steps), _ROWS):
        part = slice(start, start + _ROWS)
        logs[part] = np.mean([one(inputs, steps[part]).numpy() for one in networks], axis=0)
    return logs


def _saved(networks: Mapping[str, StepNetwork], folder: Path) -> dict[str, Any]:
    save_networks(networks, folder)
    return {}


@torch.no_grad()
def _kernel_seconds(networks: Sequence[StepNetwork], inputs: StepTimeInputs) -> FloatArray:
    """Returns float64 [kernels], seconds of all runs of each kernel in the first step."""
    kernels = inputs.kernels(np.arange(1))
    each = [one.kernel_seconds(kernels).numpy() for one in networks]
    return np.asarray(np.mean(each, axis=0), np.float64)


def _parts(each_s: FloatArray, table: TorchKernels, seconds: float) -> dict[str, float]:
    """Returns kind of kernel -> seconds; the rest of `seconds` is `host`."""
    kinds = table.column("kind").astype(np.int64)
    sums = np.bincount(kinds, each_s, minlength=len(KERNELS))
    scale = min(1.0, seconds / max(float(sums.sum()), 1e-12))
    parts = {name: float(one * scale) for name, one in zip(KERNELS, sums, strict=True) if one > 0}
    rest = seconds - sum(parts.values())
    if rest > 0:
        parts["host"] = rest
    return dict(sorted(parts.items(), key=lambda item: -item[1]))
