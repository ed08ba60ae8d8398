"""Reader of operator measurements in the layout of NeuSight's tables.

Source: github.com/sitar-lab/NeuSight (MIT), the artifact of "Forecasting GPU Performance for Deep
Learning Training and Inference", ASPLOS 2025, with the columns of one table per operator.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cdmpp.analytic.operators.operators import Operators, make_operators
from cdmpp.errors import CdmppError, DataError

FloatArray = NDArray[np.float64]
TextArray = NDArray[np.str_]
Rows = list[dict[str, str]]

#: Operator family -> its table.
TABLES = ("bmm", "linear", "elementwise", "softmax", "ln")
#: Predictions that the table of instances records.
PEERS = ("neusight", "roofline", "habitat", "li")
_S_PER_MS = 1e-3


@dataclass(frozen=True)
class OperatorTable:
    """Measured operators of one family.

    Attributes:
        operators: N operators.
        device: text [N], device labels of the registry.
        latency_s: float64 [N].
    """

    operators: Operators
    device: TextArray
    latency_s: FloatArray

    def __len__(self) -> int:
        return len(self.device)

    def __getitem__(self, index: NDArray[np.bool_] | NDArray[np.intp]) -> OperatorTable:
        return OperatorTable(self.operators[index], self.device[index], self.latency_s[index])


@dataclass(frozen=True)
class InstanceTable:
    """Operators inside whole models, with what others predicted.

    Attributes:
        table: the operators and their measured time.
        family: text [N], one of `TABLES`.
        configuration: text [N]: device, model, batch, sequence length and phase.
        phase: text [N], `inference` or `training` (then the time is the forward time).
        repeat: float64 [N], how often the instance occurs in the whole model.
        peer_s: name of `PEERS` -> float64 [N], seconds.
    """

    table: OperatorTable
    family: TextArray
    configuration: TextArray
    phase: TextArray
    repeat: FloatArray
    peer_s: dict[str, FloatArray]

    def __getitem__(self, index: NDArray[np.bool_]) -> InstanceTable:
        return InstanceTable(
            self.table[index],
            self.family[index],
            self.configuration[index],
            self.phase[index],
            self.repeat[index],
            {name: values[index] for name, values in self.peer_s.items()},
        )


def read_table(path: Path) -> OperatorTable:
    """Reads a table of single operators: `device,op,...,latency_ms`.

    Raises:
        DataError: the file cannot be read, or lacks a column, or has a value that is no number.
    """
    rows = _read(path, ("device", "op", "latency_ms"))
    names = ("batch", "m", "n", "k") if "k" in rows[0] else ("rows", "cols")
    shape = {name: _numbers(rows, name, path) for name in names}
    try:
        operators = make_operators([row["op"] for row in rows], shape)
    except CdmppError as error:
        raise DataError(f"{path}: {error}") from None
    return OperatorTable(operators, _labels(rows), _numbers(rows, "latency_ms", path) * _S_PER_MS)


def read_instances(path: Path) -> dict[str, InstanceTable]:
    """Reads the table of operator instances; returns family -> its rows, in file order.

    Raises:
        DataError: as `read_table`.
    """
    columns = ("device", "op_class", "op", "shape", "input_shapes", "output_shape", "measured_ms")
    rows = _read(path, (*columns, "repeat", *(f"{name}_ms" for name in PEERS)))
    tables: dict[str, InstanceTable] = {}
    for family in TABLES:
        chosen = [row for row in rows if row["op_class"] == family]
        if chosen:
            tables[family] = _instances(chosen, family, path)
    return tables


def _instances(rows: Rows, family: str, path: Path) -> InstanceTable:
    sizes = [dict(part.split("=") for part in row["shape"].split(";")) for row in rows]
    shape = {name: np.array([float(size[name]) for size in sizes]) for name in sizes[0]}
    # Broadcast operands are read once, so the tensors themselves say what moves.
    moved = None if family in ("bmm", "linear") else np.array([_elements(row) for row in rows])
    try:
        operators = make_operators([row["op"] for row in rows], shape, moved_elements=moved)
    except CdmppError as error:
        raise DataError(f"{path}: {error}") from None
    labels = _labels(rows)
    keys = ("model", "batch", "seq", "phase")
    return InstanceTable(
        table=OperatorTable(operators, labels, _numbers(rows, "measured_ms", path) * _S_PER_MS),
        family=np.full(len(rows), family),
        configuration=np.array(
            [
                " ".join((str(label), *(row[key] for key in keys)))
                for label, row in zip(labels, rows, strict=True)
            ]
        ),
        phase=np.array([row["phase"] for row in rows]),
        repeat=_numbers(rows, "repeat", path),
        peer_s={name: _numbers(rows, f"{name}_ms", path) * _S_PER_MS for name in PEERS},
    )


def _elements(row: Mapping[str, str]) -> float:
    tensors = [*row["input_shapes"].split("|"), row["output_shape"]]
    return float(sum(np.prod([int(size) for size in text.split("x")]) for text in tensors))


def _labels(rows: Rows) -> TextArray:
    from cdmpp.devices.registry import get_device

    label: dict[str, str] = {}
    for name in {row["device"] for row in rows}:
        label[name] = get_device(name).name
    return np.array([label[row["device"]] for row in rows])


def _numbers(rows: Rows, name: str, path: Path) -> FloatArray:
    try:
        return np.array([float(row[name]) for row in rows])
    except (ValueError, TypeError):
        raise DataError(f"{path}: column {name!r} has a value that is no number") from None


def _read(path: Path, columns: Sequence[str]) -> Rows:
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8", newline="") as stream:
            reader = csv.DictReader(stream)
            missing = [name for name in columns if name not in (reader.fieldnames or ())]
            if missing:
                raise DataError(
                    f"{path}: lacks the columns {', '.join(missing)}; expected {', '.join(columns)}"
                )
            rows = list(reader)
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot read the table ({error})") from None
    if not rows:
        raise DataError(f"{path}: the table has no rows")
    return rows
