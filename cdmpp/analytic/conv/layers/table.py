"""Measured convolution layers: the time of the fastest algorithm, without counters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cdmpp.analytic.conv.algorithms import ConvAlgorithm
from cdmpp.analytic.conv.shapes import ConvShapes
from cdmpp.analytic.rows import Rows
from cdmpp.analytic.table_file import TableFile, whole
from cdmpp.arrays import FloatArray, IntArray
from cdmpp.devices.registry import get_devices
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DataError

#: Columns of a layer file; `algorithm` may be empty or absent.
LAYER_COLUMNS = (
    "device", "batch", "in_channels", "in_width", "out_channels", "kernel", "stride", "padding",
    "algorithm", "time_ms",
)  # fmt: skip
#: Alternative names of columns in published tables.
_OTHER_NAMES = {"in_width": "size", "time_ms": "latency_ms", "algorithm": "cudnn_algorithm"}
NO_ALGORITHM = -1
_SIZES = LAYER_COLUMNS[1:8]
_NEEDED = tuple(name for name in LAYER_COLUMNS if name != "algorithm")


@dataclass(frozen=True)
class LayerTable(Rows):
    """Layers measured on one or more devices.

    Attributes:
        shapes: shapes of the layers.
        devices: the devices that `device` indexes.
        device: int64 [R], index into `devices`.
        time_ms: float64 [R].
        algorithm: int64 [R], cuDNN's number; -1 = not recorded.
        position: float64 [R], position of the row among its device's rows, 0 to 1.
    """

    shapes: ConvShapes
    devices: tuple[DeviceSpec, ...]
    device: IntArray
    time_ms: FloatArray
    algorithm: IntArray
    position: FloatArray


def read_layers(path: Path) -> LayerTable:
    """Reads the layers of a CSV file (`.csv`, `.csv.gz`) with the columns of `LAYER_COLUMNS`.

    `size`, `latency_ms` and `cudnn_algorithm` are alternative names. The rows of a device are
    assumed to be in the order of measurement.

    Raises:
        DataError: the file is missing or malformed.
        DeviceError: unknown device.
    """
    table = TableFile.read(path, _NEEDED, what="convolution layers", other_names=_OTHER_NAMES)
    sizes = {name: np.array(table.values(name, whole), np.int64) for name in _SIZES}
    order, device = np.unique(table.devices(), return_inverse=True)
    algorithm = np.full(len(table), NO_ALGORITHM, np.int64)
    if "algorithm" in table.columns:
        algorithm = np.array(table.values("algorithm", _algorithm), np.int64)
    return LayerTable(
        ConvShapes.of(**sizes), tuple(get_devices(map(str, order))), device,
        table.times("time_ms"), algorithm, _positions(device),
    )  # fmt: skip


def _algorithm(text: str) -> int:
    if not text:
        return NO_ALGORITHM
    try:
        return int(ConvAlgorithm[text.upper()])
    except KeyError:
        known = ", ".join(algorithm.name.lower() for algorithm in ConvAlgorithm)
        raise DataError(f"unknown algorithm {text!r}; known: {known}") from None


def _positions(device: IntArray) -> FloatArray:
    position = np.zeros(len(device))
    for index in np.unique(device):
        rows = np.flatnonzero(device == index)
        position[rows] = np.arange(len(rows)) / max(len(rows) - 1, 1)
    return position


def device_rows(table: LayerTable) -> Sequence[tuple[DeviceSpec, IntArray]]:
    """Returns (device, its row indices) of every device with rows."""
    found = ((spec, np.flatnonzero(table.device == i)) for i, spec in enumerate(table.devices))
    return [(spec, rows) for spec, rows in found if len(rows)]
