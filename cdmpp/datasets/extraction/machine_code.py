"""Tables of machine code beside an extracted dataset, one per compiler target or GPU.

Their names are `machine_code.parquet` and `machine_code-NAME.parquet`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from cdmpp.errors import DataError
from cdmpp.files.atomic import write_atomic
from cdmpp.programs.code_layout import CODE_LAYOUTS, CodeKind

#: File names of the tables in a folder.
PATTERN = "machine_code*.parquet"
#: File beside them: additional time of kernels in a network (`predict.machine_code`).
IN_NETWORK = "in_network.json"
_VERSION, _TARGETS = b"cdmpp.machine_code", b"cdmpp.targets"
_EARLIER = ("1",)
#: Brotli's highest level: tables are 9 % smaller than by zstd's.
_LEVEL = 11
_HINT = "regenerate it with: cdmpp measure --machine-code --out DIR (or dataset extract)"


#: Id and columns of a program; None = no machine code.
CompiledProgram: TypeAlias = tuple[str, NDArray[np.float32] | None]


@dataclass(frozen=True)
class MachineCode:
    """Features of the machine code of programs.

    Attributes:
        targets: device label -> compiler target, as TVM's JSON.
        columns: program id -> float32 [len(CODE_LAYOUTS[kind].names)].
        kind: kind of the devices.
    """

    targets: Mapping[str, str]
    columns: dict[str, NDArray[np.float32]]
    kind: CodeKind = "cpu"

    def save(self, folder: Path, *, name: str = "") -> Path:
        """Writes the table and returns its path.

        Args:
            name: name of the target, if a folder has several tables.

        Raises:
            DataError: the table cannot be written.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        layout = CODE_LAYOUTS[self.kind]
        values = (
            np.stack(list(self.columns.values()))
            if self.columns
            else np.zeros((0, len(layout.names)), np.float32)
        )
        columns = {name: values[:, place] for place, name in enumerate(layout.names)}
        table = pa.table({"program_id": list(self.columns), **columns})
        version = str(layout.version)
        targets = json.dumps(dict(self.targets), sort_keys=True)
        table = table.replace_schema_metadata({_VERSION: version, _TARGETS: targets})
        path = Path(folder) / PATTERN.replace("*", f"-{name}" if name else "")
        write_atomic(
            path,
            lambda file: pq.write_table(
                table,
                file,
                compression="brotli",
                compression_level=_LEVEL,
                use_dictionary=False,
                write_statistics=False,  # nobody asks for them, and they are 2 % of a table
            ),
        )
        return path


def read_machine_code(folder: Path) -> tuple[MachineCode, ...]:
    """Returns the tables of machine code of a dataset.

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
        kinds = {str(layout.version): kind for kind, layout in CODE_LAYOUTS.items()}
        if version not in kinds:
            raise DataError(f"{path} has version {version}, expected {' or '.join(kinds)}; {_HINT}")
        kind = kinds[version]
        columns = [table[name].to_numpy() for name in CODE_LAYOUTS[kind].names]
        values = np.stack(columns, axis=1).astype(np.float32)
        targets = {str(label): str(text) for label, text in json.loads(metadata[_TARGETS]).items()}
        names = table["program_id"].to_pylist()
    except (OSError, ValueError, KeyError, AttributeError, pa.ArrowException) as error:
        raise DataError(f"{path} is damaged ({error}); {_HINT}") from None
    return MachineCode(targets, dict(zip(names, values, strict=True)), kind)


def known_columns(folder: Path, targets: Mapping[str, str]) -> dict[str, NDArray[np.float32]]:
    """Returns the columns of a dataset's table for these devices and targets.

    The result is empty if there is no such table, or if an earlier version wrote it.

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
    """Returns the version of a table; empty if the table cannot be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_schema(path).metadata or {}
    except (OSError, ValueError, pa.ArrowException):
        return ""
    return str(metadata.get(_VERSION, b"").decode())
