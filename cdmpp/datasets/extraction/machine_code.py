"""The tables of machine code beside an extracted dataset: one a compiler target,
`machine_code.parquet` or `machine_code-NAME.parquet`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cdmpp.datasets.extraction.schema import SMALL_LEVEL
from cdmpp.errors import DataError
from cdmpp.features.machine_code.columns import MACHINE_CODE_NAMES, MACHINE_CODE_SCHEMA_VERSION
from cdmpp.files.atomic import write_atomic

#: What the tables of a folder are called.
PATTERN = "machine_code*.parquet"
_VERSION, _TARGETS = b"cdmpp.machine_code", b"cdmpp.targets"
_EARLIER = ("1",)
_HINT = "write it anew with: cdmpp measure --machine-code --out DIR (or dataset extract)"


@dataclass(frozen=True)
class MachineCode:
    """What a compiler made of programs.

    Attributes:
        targets: label of each device that the code is for -> its target, TVM's JSON.
        columns: program id -> float32 [len(MACHINE_CODE_NAMES)].
    """

    targets: Mapping[str, str]
    columns: dict[str, NDArray[np.float32]]

    def save(self, folder: Path, *, name: str = "") -> Path:
        """Writes the table and returns its path.

        Args:
            name: of the target, where a folder has several tables.

        Raises:
            DataError: it cannot be written.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        values = (
            np.stack(list(self.columns.values()))
            if self.columns
            else np.zeros((0, len(MACHINE_CODE_NAMES)), np.float32)
        )
        columns = {name: values[:, place] for place, name in enumerate(MACHINE_CODE_NAMES)}
        table = pa.table({"program_id": list(self.columns), **columns})
        version = str(MACHINE_CODE_SCHEMA_VERSION)
        targets = json.dumps(dict(self.targets), sort_keys=True)
        table = table.replace_schema_metadata({_VERSION: version, _TARGETS: targets})
        path = Path(folder) / PATTERN.replace("*", f"-{name}" if name else "")
        write_atomic(
            path,
            lambda file: pq.write_table(
                table, file, compression="zstd", compression_level=SMALL_LEVEL
            ),
        )
        return path


def read_machine_code(folder: Path) -> tuple[MachineCode, ...]:
    """Returns the tables of a dataset, none where it has none.

    Raises:
        DataError: a file is damaged or of another version.
    """
    return tuple(_read(path) for path in sorted(Path(folder).glob(PATTERN)))


def _read(path: Path) -> MachineCode:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
        metadata = table.schema.metadata or {}
        version = metadata.get(_VERSION, b"none").decode()
        if version != str(MACHINE_CODE_SCHEMA_VERSION):
            raise DataError(
                f"{path} has version {version}, expected {MACHINE_CODE_SCHEMA_VERSION}; {_HINT}"
            )
        columns = [table[name].to_numpy() for name in MACHINE_CODE_NAMES]
        values = np.stack(columns, axis=1).astype(np.float32)
        targets = {str(label): str(text) for label, text in json.loads(metadata[_TARGETS]).items()}
        names = table["program_id"].to_pylist()
    except (OSError, ValueError, KeyError, AttributeError, pa.ArrowException) as error:
        raise DataError(f"{path} is damaged ({error}); {_HINT}") from None
    return MachineCode(targets, dict(zip(names, values, strict=True)))


def known_columns(folder: Path, targets: Mapping[str, str]) -> dict[str, NDArray[np.float32]]:
    """Returns the columns of a dataset's table that is for these devices and targets; nothing
    without such a table, or where an earlier version wrote it.

    Raises:
        DataError: as `read_machine_code`.
    """
    for path in sorted(Path(folder).glob(PATTERN)):
        if _version(path) not in _EARLIER:
            table = _read(path)
            if table.targets == targets:
                return dict(table.columns)
    return {}


def _version(path: Path) -> str:
    """Returns the version of a table, nothing where it cannot be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_schema(path).metadata or {}
    except (OSError, ValueError, pa.ArrowException):
        return ""
    return str(metadata.get(_VERSION, b"").decode())
