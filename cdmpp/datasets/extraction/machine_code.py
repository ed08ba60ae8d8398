"""The table of machine code beside an extracted dataset: `machine_code.parquet`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cdmpp.datasets.extraction.schema import SMALL_LEVEL
from cdmpp.errors import DataError
from cdmpp.features.machine_code import MACHINE_CODE_NAMES, MACHINE_CODE_SCHEMA_VERSION
from cdmpp.files.atomic import write_atomic

FILE_NAME = "machine_code.parquet"
_VERSION, _TARGET = b"cdmpp.machine_code", b"cdmpp.target"
_HINT = "write it anew with: cdmpp measure --machine-code --out DIR"


@dataclass(frozen=True)
class MachineCode:
    """What a compiler made of programs.

    Attributes:
        target: for what, TVM's JSON.
        columns: program id -> float32 [len(MACHINE_CODE_NAMES)].
    """

    target: str
    columns: dict[str, NDArray[np.float32]]

    def save(self, folder: Path) -> Path:
        """Writes the table and returns its path.

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
        table = table.replace_schema_metadata({_VERSION: version, _TARGET: self.target})
        path = Path(folder) / FILE_NAME
        write_atomic(
            path,
            lambda file: pq.write_table(
                table, file, compression="zstd", compression_level=SMALL_LEVEL
            ),
        )
        return path


def read_machine_code(folder: Path) -> MachineCode | None:
    """Returns a dataset's table, None where it has none.

    Raises:
        DataError: the file is damaged or of another version.
    """
    path = Path(folder) / FILE_NAME
    if not path.exists():
        return None
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
        target = metadata[_TARGET].decode()
        names = table["program_id"].to_pylist()
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        raise DataError(f"{path} is damaged ({error}); {_HINT}") from None
    return MachineCode(target, dict(zip(names, values, strict=True)))


def known_columns(folder: Path, target: str) -> dict[str, NDArray[np.float32]]:
    """Returns the columns of a dataset's table that are for a target; nothing without such a table.

    Raises:
        DataError: as `read_machine_code`.
    """
    table = read_machine_code(folder)
    return dict(table.columns) if table is not None and table.target == target else {}
