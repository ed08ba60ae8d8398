"""Measured convolution layers: the time of the fastest algorithm, no counters."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cdmpp.analytic.conv.algorithms import ConvAlgorithm
from cdmpp.analytic.conv.shapes import ConvShapes, FloatArray, IntArray
from cdmpp.devices.registry import get_device
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DataError
from cdmpp.files.atomic import write_bytes
from cdmpp.text import csv_text

#: Columns of a layer file; `algorithm` may be empty or absent.
LAYER_COLUMNS = (
    "device", "batch", "in_channels", "in_width", "out_channels", "kernel", "stride", "padding",
    "algorithm", "time_ms",
)  # fmt: skip
#: Other names of columns, as in published tables.
_OTHER_NAMES = {"in_width": "size", "time_ms": "latency_ms", "algorithm": "cudnn_algorithm"}
NO_ALGORITHM = -1


@dataclass(frozen=True)
class LayerTable:
    """Layers measured on one or more devices.

    Attributes:
        shapes: of the layers.
        devices: the devices; their order gives `device`.
        device: int64 [R], index into `devices`.
        time_ms: float64 [R].
        algorithm: int64 [R], cuDNN's number; -1 = not recorded.
        position: float64 [R], how far the measuring of that device had got, 0 to 1.
    """

    shapes: ConvShapes
    devices: tuple[DeviceSpec, ...]
    device: IntArray
    time_ms: FloatArray
    algorithm: IntArray
    position: FloatArray

    def __len__(self) -> int:
        return len(self.time_ms)

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> LayerTable:
        """Returns some rows; the devices stay."""
        return LayerTable(
            self.shapes.take(rows),
            self.devices,
            self.device[rows],
            self.time_ms[rows],
            self.algorithm[rows],
            self.position[rows],
        )

    def with_times(self, time_ms: FloatArray) -> LayerTable:
        """Returns the same rows with other times."""
        return LayerTable(
            self.shapes, self.devices, self.device, time_ms, self.algorithm, self.position
        )

    def device_values(self, name: str) -> FloatArray:
        """Returns float64 [R], a number of each row's DeviceSpec; NaN = unknown."""
        values = [getattr(spec, name) for spec in self.devices]
        return np.array([np.nan if v is None else float(v) for v in values])[self.device]


def read_layers(path: Path) -> LayerTable:
    """Returns the layers of a CSV file (`.csv`, `.csv.gz`) with the columns of `LAYER_COLUMNS`.

    `size`, `latency_ms` and `cudnn_algorithm` are understood too. The rows of a device are taken to
    be in the order in which they were measured.

    Raises:
        DataError: the file is missing or malformed.
        DeviceError: an unknown device.
    """
    rows = _rows(Path(path))
    names = {column: _name(rows[0], column, path) for column in LAYER_COLUMNS}
    try:
        numbers = {
            column: np.array([float(row[names[column]]) for row in rows])
            for column in LAYER_COLUMNS
            if column not in ("device", "algorithm")
        }
    except (TypeError, ValueError) as error:
        raise DataError(f"{path}: {error}; expected a number in every row") from None
    time_ms = numbers.pop("time_ms")
    if not (np.isfinite(time_ms) & (time_ms > 0)).all():
        row = int(np.flatnonzero(~(np.isfinite(time_ms) & (time_ms > 0)))[0])
        raise DataError(f"{path}: row {row + 1} has time {time_ms[row]} ms; expected above 0")
    shapes = ConvShapes.of(**{name: column.astype(np.int64) for name, column in numbers.items()})
    labels = [row[names["device"]] for row in rows]
    order = sorted(set(labels))
    device = np.array([order.index(label) for label in labels], np.int64)
    algorithm = np.array([_algorithm(row.get(names["algorithm"]), path) for row in rows], np.int64)
    return LayerTable(
        shapes, tuple(get_device(label) for label in order), device, time_ms, algorithm,
        _positions(device),
    )  # fmt: skip


def write_layers(path: Path, table: LayerTable) -> None:
    """Writes layers as CSV with the columns of `LAYER_COLUMNS`, gzipped where the name says so.

    Raises:
        DataError: the file cannot be written.
    """
    rows = (
        [
            table.devices[table.device[row]].name,
            *(int(getattr(table.shapes, name)[row]) for name in LAYER_COLUMNS[1:8]),
            "" if number < 0 else ConvAlgorithm(number).name.lower(),
            float(table.time_ms[row]),
        ]
        for row, number in enumerate(table.algorithm)
    )
    content = csv_text(LAYER_COLUMNS, rows).encode()
    if path.suffix == ".gz":
        content = gzip.compress(content, mtime=0)
    write_bytes(path, content)


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        content = path.read_bytes()
        text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot read the layers ({error})") from None
    rows = list(csv.DictReader(io.StringIO(text)))
    if not rows:
        raise DataError(f"{path}: no layers; expected columns {', '.join(LAYER_COLUMNS)}")
    return rows


def _name(row: Mapping[str, str], column: str, path: Path) -> str:
    for name in (column, _OTHER_NAMES.get(column, column)):
        if name in row:
            return name
    if column == "algorithm":
        return column
    raise DataError(
        f"{path}: no column {column!r}; got {', '.join(row)}; expected {', '.join(LAYER_COLUMNS)}"
    )


def _algorithm(text: str | None, path: Path) -> int:
    if not text:
        return NO_ALGORITHM
    try:
        return int(ConvAlgorithm[text.upper()])
    except KeyError:
        known = ", ".join(algorithm.name.lower() for algorithm in ConvAlgorithm)
        raise DataError(f"{path}: unknown algorithm {text!r}; known: {known}") from None


def _positions(device: IntArray) -> FloatArray:
    position = np.zeros(len(device))
    for index in np.unique(device):
        rows = np.flatnonzero(device == index)
        position[rows] = np.arange(len(rows)) / max(len(rows) - 1, 1)
    return position


def device_rows(table: LayerTable) -> Sequence[tuple[DeviceSpec, IntArray]]:
    """Returns (device, its row numbers) of every device that has rows."""
    found = ((spec, np.flatnonzero(table.device == i)) for i, spec in enumerate(table.devices))
    return [(spec, rows) for spec, rows in found if len(rows)]
