"""Reader of operator measurements in the layout of NeuSight's tables.

Source: github.com/sitar-lab/NeuSight (MIT), the artifact of "Forecasting GPU Performance for Deep
Learning Training and Inference", ASPLOS 2025, with the columns of one table per operator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cdmpp.analytic.operators.operators import MATMUL_KINDS, Operators, make_operators
from cdmpp.analytic.rows import Rows
from cdmpp.analytic.table_file import TableFile
from cdmpp.arrays import FloatArray, TextArray
from cdmpp.errors import CdmppError, DataError

#: Names of the tables, one per operator family.
TABLES = ("bmm", "linear", "elementwise", "softmax", "ln")
#: Baselines whose predictions the table of instances records.
PEERS = ("neusight", "roofline", "habitat", "li")
_S_PER_MS = 1e-3
_WHAT = "measured operators"
_TENSORS = ("input_shapes", "output_shape")
_CONFIGURATION = ("model", "batch", "seq", "phase")


@dataclass(frozen=True)
class OperatorTable(Rows):
    """Measured operators of one family.

    Attributes:
        operators: N operators.
        device: text [N], device labels of the registry.
        latency_s: float64 [N].
    """

    operators: Operators
    device: TextArray
    latency_s: FloatArray


@dataclass(frozen=True)
class InstanceTable(Rows):
    """Operators inside whole models, with the predictions of baselines.

    Attributes:
        table: the operators and their measured time.
        family: text [N], one of `TABLES`.
        configuration: text [N]: device, model, batch, sequence length and phase.
        phase: text [N], `inference` or `training` (whose times are forward times).
        repeat: float64 [N], number of occurrences of the instance in the whole model.
        peer_s: name of `PEERS` -> float64 [N], seconds.
    """

    table: OperatorTable
    family: TextArray
    configuration: TextArray
    phase: TextArray
    repeat: FloatArray
    peer_s: dict[str, FloatArray]


def read_table(path: Path) -> OperatorTable:
    """Reads a table of single operators: `device,op,...,latency_ms`.

    Raises:
        DataError: the file cannot be read, lacks a column, or has an invalid value.
        DeviceError: unknown device.
    """
    table = TableFile.read(path, ("device", "op", "latency_ms"), what=_WHAT)
    names = ("batch", "m", "n", "k") if "k" in table.columns else ("rows", "cols")
    operators = _operators(table, {name: table.numbers(name) for name in names})
    return OperatorTable(
        operators, np.array(table.devices()), table.times("latency_ms", scale=_S_PER_MS)
    )


def read_instances(path: Path) -> dict[str, InstanceTable]:
    """Reads the table of operator instances; returns family -> its rows, in file order.

    Raises:
        DataError, DeviceError: as `read_table`.
    """
    columns = (
        "device", "op_class", "op", "shape", "input_shapes", "output_shape", "measured_ms",
        "model", "batch", "seq", "phase", "repeat", *(f"{name}_ms" for name in PEERS),
    )  # fmt: skip
    table = TableFile.read(path, columns, what=_WHAT)
    parts = {family: table.where("op_class", family) for family in TABLES}
    return {family: _instances(part, family) for family, part in parts.items() if len(part)}


def _instances(table: TableFile, family: str) -> InstanceTable:
    sizes = table.values("shape", _sizes)
    if other := next((size for size in sizes if size.keys() != sizes[0].keys()), None):
        raise DataError(
            f"{table.path}: column 'shape' has the sizes {', '.join(other)} in one row and "
            f"{', '.join(sizes[0])} in another row of {family}; expected the same sizes"
        )
    # Broadcast operands are read once, so the tensors' own shapes give the traffic.
    moved = None
    if family not in MATMUL_KINDS:
        read = sum(np.array(table.values(name, _elements)) for name in _TENSORS)
        moved = np.asarray(read, np.float64)
    shape = {name: np.array([size[name] for size in sizes]) for name in sizes[0]}
    labels = table.devices()
    keys = zip(labels, *(table.columns[name] for name in _CONFIGURATION), strict=True)
    return InstanceTable(
        table=OperatorTable(
            _operators(table, shape, moved),
            np.array(labels),
            table.times("measured_ms", scale=_S_PER_MS),
        ),
        family=np.full(len(table), family),
        configuration=np.array([" ".join(key) for key in keys]),
        phase=np.array(table.columns["phase"]),
        repeat=table.numbers("repeat"),
        peer_s={name: table.numbers(f"{name}_ms", scale=_S_PER_MS) for name in PEERS},
    )


def _operators(
    table: TableFile, shape: Mapping[str, FloatArray], moved: FloatArray | None = None
) -> Operators:
    try:
        return make_operators(table.columns["op"], shape, moved_elements=moved)
    except CdmppError as error:
        raise DataError(f"{table.path}: {error}") from None


def _sizes(text: str) -> dict[str, float]:
    pairs = (part.split("=") for part in text.split(";"))
    return {name: float(size) for name, size in pairs}


def _elements(text: str) -> float:
    return float(sum(np.prod([int(size) for size in one.split("x")]) for one in text.split("|")))
