"""Measured networks as arrays: one row per network, batch size and device; six targets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from cdmpp.arrays import FloatArray, IntArray
from cdmpp.devices.registry import resolve_devices
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DataError
from cdmpp.networks.dataset.encode import EncodedGraph, encode
from cdmpp.networks.dataset.rows import LabelRow
from cdmpp.networks.dataset.store import NetworkData
from cdmpp.networks.graph.execution import MODES
from cdmpp.networks.graph.graph import NetworkGraph
from cdmpp.networks.graph.live_memory import operator_seconds

#: Predicted quantities: seconds of one iteration (one batch), bytes above the empty process, share
#: of the threads' time.
TARGETS = (
    "infer_time_s", "train_time_s", "infer_memory_bytes", "train_memory_bytes",
    "infer_utilisation", "train_utilisation",
)  # fmt: skip
#: Default arithmetic peak of a device without a known one, and default memory bandwidth in bytes
#: per operation of the peak. The models fit ratios to the resulting rooflines.
NOMINAL_FLOP_PER_S, NOMINAL_BYTES_PER_FLOP = 1.0e11, 0.1
#: Device values among the models' inputs.
DEVICE_COLUMNS = ("peak_fp32_flop_per_s", "mem_bandwidth_bytes_per_s", "threads")
TIMES, MEMORIES, UTILISATIONS = (0, 1), (2, 3), (4, 5)
_VALUES = ("time_s", "memory_bytes", "utilisation")


@dataclass(frozen=True, eq=False)
class NetworkSamples:
    """N samples.

    Attributes:
        graphs: every network at every batch size.
        names: [graphs] graph ids.
        graph: int64 [N], index into `graphs`.
        device: int64 [N], index into `devices`.
        devices: the devices.
        architecture: [N] id of the network without its batch size.
        seconds: [N] float64 [nodes, 2], rooflines of the operators in inference and in training.
        operators: [N] float64 [nodes, 2], measured seconds of the operators; NaN = not measured.
        targets: float64 [N, 6], columns `TARGETS`; NaN = not measured.
        spread: float64 [N, 2], relative error of the median time estimated from its repeats
            (`repeat_error`), in inference and in training; NaN = unknown.
    """

    graphs: tuple[EncodedGraph, ...]
    names: tuple[str, ...]
    graph: IntArray
    device: IntArray
    devices: tuple[DeviceSpec, ...]
    architecture: tuple[str, ...]
    seconds: tuple[FloatArray, ...]
    operators: tuple[FloatArray, ...]
    targets: FloatArray
    spread: FloatArray

    def __len__(self) -> int:
        return len(self.graph)

    def take(self, rows: IntArray) -> NetworkSamples:
        """Returns the chosen rows."""
        chosen = rows.tolist()
        return replace(
            self,
            graph=self.graph[rows],
            device=self.device[rows],
            architecture=tuple(self.architecture[row] for row in chosen),
            seconds=tuple(self.seconds[row] for row in chosen),
            operators=tuple(self.operators[row] for row in chosen),
            targets=self.targets[rows],
            spread=self.spread[rows],
        )

    @property
    def encoded(self) -> list[EncodedGraph]:
        """The graph of each row."""
        return [self.graphs[number] for number in self.graph.tolist()]

    @property
    def sample_names(self) -> list[str]:
        """Graph id of each row."""
        return [self.names[number] for number in self.graph.tolist()]

    @property
    def keys(self) -> list[tuple[str, str]]:
        """(graph id, device label) of each row."""
        labels = [self.devices[number].name for number in self.device.tolist()]
        return list(zip(self.sample_names, labels, strict=True))

    def rates(self) -> FloatArray:
        """Returns float64 [devices, 2], peak in flop/s and bandwidth in bytes/s, or defaults."""
        known = [_with_stand_ins(spec) for spec in self.devices]
        return np.array(
            [(spec.peak_fp32_flop_per_s, spec.mem_bandwidth_bytes_per_s) for spec in known],
            np.float64,
        )

    def device_columns(self) -> FloatArray:
        """Returns float64 [N, 3], logs of the device's `DEVICE_COLUMNS`; 0 = unknown."""
        rows = [[getattr(spec, name) for name in DEVICE_COLUMNS] for spec in self.devices]
        logs = np.array([[np.log(value) if value else 0.0 for value in row] for row in rows])
        return logs.astype(np.float64)[self.device]

    def roofline_s(self) -> FloatArray:
        """Returns float64 [N, 2], sums of the operators' rooflines, in seconds."""
        return np.array([rows.sum(axis=0) for rows in self.seconds]).reshape(-1, len(MODES))

    def analytic_bytes(self) -> FloatArray:
        """Returns float64 [N, 2], analytic peak memory in inference and in training."""
        return np.array([graph.memory_bytes for graph in self.encoded]).reshape(-1, len(MODES))


def assemble(
    data: NetworkData, *, device: str | None = None, described: Sequence[DeviceSpec] = ()
) -> NetworkSamples:
    """Returns the measured samples of a data set in the order of its graphs.

    Failed measurements (out of memory, timeout, crash) are left out.

    Args:
        device: the only device to use; None = all devices.
        described: device specs of a trained model, which replace those of the registry.

    Raises:
        DataError: there are no measurements (on that device).
    """
    labels: dict[tuple[str, str], dict[str, LabelRow]] = {}
    for label in data.labels:
        if label.outcome == "ok" and device in (None, label.device):
            labels.setdefault((label.graph_id, label.device), {})[label.mode] = label
    if not labels:
        measured = ", ".join(sorted({label.device for label in data.labels})) or "none"
        raise DataError(
            f"no network was measured{f' on {device}' if device else ''} (devices of the data set: "
            f"{measured}); measure with `cdmpp networks measure`"
        )
    names = sorted({name for _, name in labels})
    own = {spec.name: spec for spec in described}
    specs, _ = resolve_devices(dict.fromkeys(names, "llvm"))
    specs = tuple(own.get(spec.name, spec) for spec in specs)
    known = [
        (row, [name for name in names if (graph_id, name) in labels])
        for graph_id, row in data.by_id().items()
    ]
    known = [(row, measured_on) for row, measured_on in known if measured_on]
    rows = [
        _Row(place, names.index(name), row.architecture, labels[row.graph.graph_id, name])
        for place, (row, measured_on) in enumerate(known)
        for name in measured_on
    ]
    return _samples([row.graph for row, _ in known], specs, rows)


def unmeasured(graphs: Sequence[NetworkGraph], devices: Sequence[DeviceSpec]) -> NetworkSamples:
    """Returns samples without targets of every graph on every device, sorted by graph."""
    rows = [
        _Row(place, device, graph.name, {})
        for place, graph in enumerate(graphs)
        for device in range(len(devices))
    ]
    return _samples(graphs, devices, rows)


class _Row(NamedTuple):
    """One sample: indices of its graph and device, and its labels by mode."""

    graph: int
    device: int
    architecture: str
    labels: dict[str, LabelRow]


def _samples(
    graphs: Sequence[NetworkGraph], devices: Sequence[DeviceSpec], rows: Sequence[_Row]
) -> NetworkSamples:
    encoded = tuple(map(encode, graphs))
    return NetworkSamples(
        graphs=encoded,
        names=tuple(graph.graph_id for graph in graphs),
        graph=np.array([row.graph for row in rows], np.int64),
        device=np.array([row.device for row in rows], np.int64),
        devices=tuple(devices),
        architecture=tuple(row.architecture for row in rows),
        seconds=tuple(_seconds(encoded[row.graph], devices[row.device]) for row in rows),
        operators=tuple(_operators(encoded[row.graph], row.labels) for row in rows),
        targets=np.array([_targets(row.labels) for row in rows]).reshape(-1, len(TARGETS)),
        spread=np.array([_spread(row.labels) for row in rows]).reshape(-1, len(MODES)),
    )


def repeat_error(times_s: Sequence[float]) -> float:
    """Returns the relative error of the median of repeats, estimated from the repeats.

    It is half of the relative difference between the medians of even and odd repeats: for
    independent repeats, these differ by twice the error of the whole median. Drift between
    processes and days is not included. NaN for fewer than four repeats.
    """
    values = np.asarray(times_s, np.float64)
    if len(values) < 4:
        return float("nan")
    first, second = float(np.median(values[::2])), float(np.median(values[1::2]))
    return abs(first - second) / (first + second)


def _seconds(encoded: EncodedGraph, spec: DeviceSpec) -> FloatArray:
    known = _with_stand_ins(spec)
    return np.stack([operator_seconds(encoded.graph, known, mode) for mode in MODES], 1)


def _with_stand_ins(spec: DeviceSpec) -> DeviceSpec:
    peak = spec.peak_fp32_flop_per_s or NOMINAL_FLOP_PER_S
    return replace(
        spec,
        peak_fp32_flop_per_s=peak,
        mem_bandwidth_bytes_per_s=spec.mem_bandwidth_bytes_per_s or peak * NOMINAL_BYTES_PER_FLOP,
    )


def _targets(labels: dict[str, LabelRow]) -> list[float]:
    rows: Iterable[Any] = (
        getattr(labels[mode], value) if mode in labels else None
        for value in _VALUES
        for mode in MODES
    )
    return [float("nan") if value is None or value <= 0 else float(value) for value in rows]


def _operators(encoded: EncodedGraph, labels: dict[str, LabelRow]) -> FloatArray:
    found = np.full((len(encoded.order), len(MODES)), np.nan)
    for column, mode in enumerate(MODES):
        measured = labels[mode].operators_s if mode in labels else ()
        if measured:
            found[:, column] = np.array(measured, np.float64)[encoded.order]
    return np.where(found > 0, found, np.nan)


def _spread(labels: dict[str, LabelRow]) -> list[float]:
    return [
        repeat_error(labels[mode].times_s) if mode in labels else float("nan") for mode in MODES
    ]
