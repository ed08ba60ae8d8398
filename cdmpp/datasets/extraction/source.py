"""RecordSource: what an extraction has to know of records, whatever their form is.

One class a form (Tenset, AutoTVM, MetaSchedule, our own campaigns) says which devices and shards
there are, reads the records of a shard and featurises them; `extraction.extract` does the rest.
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
    """What goes into a shard.

    Attributes:
        number: position of the shard in the dataset.
        files: (device, record file) in reading order.
        weight: size of the records in some unit, for progress.
        digest: of what the content follows from, beside the code.
        lines: of each file the numbers of the lines (or entries) to read; empty = all.
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
    """What featurising some programs of one task gave.

    Attributes:
        source: form of the records.
        operator: name of the task's operator.
        flop_count: floating-point operations of the task, None where unknown.
        programs: for every program its compact AST, or why there is none.
        networks: (name, weight) of the networks that hold the task.
    """

    source: Source
    operator: str
    flop_count: float | None
    programs: Sequence[CompactAst | ReplayError]
    networks: Sequence[tuple[str, int]] = ()


class RecordSource(Protocol):
    """Records of one form. Subclass it; an instance is sent to the processes that build shards.

    Attributes:
        featuriser: module-level function that featurises; other code makes other shards.
        waiting: programs after which those read so far are featurised; None = at the shard's end.
        level: of compression of the tables.
        if_useless: what to expect where not one program has features; empty = that is no error.
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
        """Returns the shards; counts in `report` what is read for that.

        Raises:
            DataError: the records or a device are missing, or nothing in them is usable.
        """

    def records(
        self, plan: ShardPlan, report: ReadReport
    ) -> Iterator[tuple[Hashable, str, MeasureRecord]]:
        """Yields (group, program id, record) of a shard; counts in `report` what `plan` has not.

        Programs of one group are featurised together.

        Raises:
            DataError: a file cannot be read.
        """

    def featurise(self, group: Any, records: list[MeasureRecord]) -> Featurised:
        """Featurises programs of one group.

        Raises:
            DataError: the group cannot be read.
            UsageError: there is no side environment, and one is needed.
        """
