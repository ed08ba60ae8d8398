"""RecordSource: the interface between an extraction and the formats of records.

One class per format (Tenset, AutoTVM, MetaSchedule, cdmpp's campaigns) lists devices and shards,
reads the records of a shard and featurises them; `extraction.extract` does the rest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from cdmpp.datasets.extraction.schema import QUICK_LEVEL
from cdmpp.datasets.read_report import ReadReport
from cdmpp.errors import DataError, ReplayError
from cdmpp.files.atomic import sha256_file
from cdmpp.programs.compact_ast import CompactAst
from cdmpp.records import MeasureRecord, Source


@dataclass(frozen=True)
class ShardPlan:
    """Inputs of a shard.

    Attributes:
        number: position of the shard in the dataset.
        files: (device, record file) in reading order.
        weight: size of the records in some unit, for progress.
        digest: digest of everything that determines the content, except the code.
        lines: for each file, numbers of the lines (or entries) to read; empty = all.
    """

    number: int
    files: tuple[tuple[str, Path], ...]
    weight: int
    digest: str
    lines: tuple[Sequence[int], ...] = ()

    def paths(self, out_dir: Path) -> tuple[Path, Path, Path]:
        """Returns the paths of the shard's programs, measurements and completion note."""
        return (
            out_dir / f"programs-{self.number:05d}.parquet",
            out_dir / f"measurements-{self.number:05d}.parquet",
            out_dir / f"shard-{self.number:05d}.json",
        )


def files_digest(files: Sequence[tuple[str, Path]], *others: object) -> str:
    """Returns a digest of record files, their devices, and other JSON values.

    Raises:
        DataError: a record file cannot be read.
    """
    try:
        known = [(device, path.name, sha256_file(path)) for device, path in files]
    except OSError as error:
        raise DataError(f"cannot read a record file: {error}") from None
    return hashlib.sha256(json.dumps([known, *others]).encode()).hexdigest()


@dataclass(frozen=True)
class Featurised:
    """Features of programs of one task.

    Attributes:
        source: format of the records.
        operator: name of the task's operator.
        flop_count: floating-point operations of the task; None = unknown.
        programs: compact AST of each program, or the reason why there is none.
        networks: (name, weight) of the networks with this task.
    """

    source: Source
    operator: str
    flop_count: float | None
    programs: Sequence[CompactAst | ReplayError]
    networks: Sequence[tuple[str, int]] = ()


class RecordSource(Protocol):
    """Records of one format. Subclass it; an instance is sent to the processes that build shards.

    Attributes:
        featuriser: module-level function that featurises; its code is part of a shard's key.
        waiting: number of programs that are featurised together; None = all of the shard.
        level: compression level of the tables.
        if_useless: hint for the error if no program has features; empty = no error.
    """

    featuriser: Callable[..., Any]
    waiting: ClassVar[int | None] = None
    level: ClassVar[int] = QUICK_LEVEL
    if_useless: ClassVar[str] = ""

    def devices(self) -> list[str]:
        """Returns the labels of the devices whose records are read, sorted.

        Raises:
            DataError: the records or a device are missing.
        """

    def plan(self, report: ReadReport) -> list[ShardPlan]:
        """Returns the shards; counts in `report` the records that it reads.

        Raises:
            DataError: the records or a device are missing, or no record is usable.
        """

    def records(
        self, plan: ShardPlan, report: ReadReport
    ) -> Iterator[tuple[Hashable, str, MeasureRecord]]:
        """Yields (group, program id, record) of a shard.

        Counts in `report` the records that `plan` has not counted. Programs of one group are
        featurised together.

        Raises:
            DataError: a file cannot be read.
        """

    def featurise(self, group: Any, records: list[MeasureRecord]) -> Featurised:
        """Featurises programs of one group.

        Raises:
            DataError: the group cannot be read.
            UsageError: the side environment that the featuriser needs is missing.
        """
