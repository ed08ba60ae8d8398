"""SQLite files of nvprof (`-o FILE`) and of nsys (`nsys export --type sqlite`).

Source: CUPTI activity records; Nsight Systems user guide, SQLite schema reference. Columns are
looked up by name; a missing one is noted.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from cdmpp.errors import DataError
from cdmpp.profiling.formats.builder import EventBuilder
from cdmpp.profiling.schema import Kind, Launch, Profile

FORMAT = "CUPTI SQLite"
_NS_PER_S = 1e9
_MAGIC = b"SQLite format 3\x00"
_PREFIX = "CUPTI_ACTIVITY_KIND_"
_KERNELS = ("KERNEL", "CONCURRENT_KERNEL")
_APIS = ("RUNTIME", "DRIVER")
#: CUPTI's `copyKind`.
_COPY_KINDS = {
    0: "unknown", 1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA",
    8: "DtoD", 9: "HtoH", 10: "PtoP",
}  # fmt: skip
_NAME_COLUMNS = ("demangledName", "shortName", "name", "mangledName")
_LAUNCH_COLUMNS = (
    "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ", "registersPerThread",
    "staticSharedMemory", "dynamicSharedMemory",
)  # fmt: skip


def is_sqlite(head: bytes) -> bool:
    """Whether a file has the signature of SQLite."""
    return head.startswith(_MAGIC)


def read_sqlite(path: Path) -> Profile:
    """Returns kernels, copies, memsets, API calls and NVTX ranges.

    Raises:
        DataError: damaged, or without tables of a profiler.
    """
    try:
        address = f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1"
        with closing(sqlite3.connect(address, uri=True)) as connection:
            connection.row_factory = sqlite3.Row
            connection.text_factory = lambda raw: raw.decode("utf-8", errors="replace")
            return _read(path, connection)
    except (sqlite3.Error, TypeError, ValueError, OverflowError) as error:
        raise DataError(
            f"{path}: damaged or truncated SQLite file ({error}); export it again: "
            "nsys export --type sqlite REPORT"
        ) from None


def _read(path: Path, connection: sqlite3.Connection) -> Profile:
    tables = {
        str(row[0])
        for row in connection.execute("select name from sqlite_master where type='table'")
    }
    known = sorted(name for name in tables if name.startswith(_PREFIX))
    if not known and "NVTX_EVENTS" not in tables:
        shown = ", ".join(sorted(tables)[:6]) or "nothing"
        raise DataError(
            f"{path}: an SQLite file without tables of a profiler (it has {shown}); expected "
            f"{_PREFIX}KERNEL and the like, from nvprof -o or nsys export --type sqlite"
        )
    reader = _Reader(connection, tables)
    for name in _KERNELS:
        reader.kernels(_PREFIX + name)
    reader.copies(_PREFIX + "MEMCPY")
    reader.memsets(_PREFIX + "MEMSET")
    for name in _APIS:
        reader.apis(_PREFIX + name)
    reader.ranges("NVTX_EVENTS")
    if not len(reader.builder):
        raise DataError(
            f"{path}: the tables of the profiler are empty; expected launches or calls; run the "
            "program under the profiler again"
        )
    rows, events = reader.builder.finish(units_per_s=_NS_PER_S)
    epoch = reader.session_epoch_s()
    return Profile(
        str(path), f"{FORMAT} ({'nsys' if 'StringIds' in tables else 'nvprof'})", rows, events,
        device_name=reader.device_name(),
        epoch_s=None if epoch is None else epoch + reader.builder.origin, notes=tuple(reader.notes),
    )  # fmt: skip


class _Reader:
    """Reads the tables of a file."""

    def __init__(self, connection: sqlite3.Connection, tables: set[str]) -> None:
        self.builder = EventBuilder()
        self.notes: list[str] = []
        self._connection = connection
        self._tables = tables
        self._strings = self._read_strings()

    def kernels(self, table: str) -> None:
        names = self._present(table, ("start", "end"), (*_NAME_COLUMNS, *_LAUNCH_COLUMNS))
        name_column = next((name for name in _NAME_COLUMNS if name in names), None)
        for row in self._rows(table, names):
            name = self._text(row[name_column]) if name_column else "unknown kernel"
            launch = None
            if {"gridX", "blockX"} <= names:
                grid = [
                    int(row[f"grid{axis}"] or 1) if f"grid{axis}" in names else 1 for axis in "XYZ"
                ]
                block = [
                    int(row[f"block{axis}"] or 1) if f"block{axis}" in names else 1
                    for axis in "XYZ"
                ]
                shared = [
                    int(row[column] or 0)
                    for column in ("staticSharedMemory", "dynamicSharedMemory")
                    if column in names
                ]
                registers = row["registersPerThread"] if "registersPerThread" in names else None
                launch = Launch(
                    (grid[0], grid[1], grid[2]), (block[0], block[1], block[2]),
                    None if registers is None else int(registers),
                    sum(shared) if len(shared) == 2 else None,
                )  # fmt: skip
            self._add("kernel", name, row, names, launch=launch)

    def copies(self, table: str) -> None:
        names = self._present(table, ("start", "end"), ("bytes", "copyKind"))
        for row in self._rows(table, names):
            kind = row["copyKind"] if "copyKind" in names else 0
            moved = float(row["bytes"]) if "bytes" in names else None
            label = f"[CUDA memcpy {_COPY_KINDS.get(kind or 0, kind)}]"
            self._add("memcpy", label, row, names, moved_bytes=moved)

    def memsets(self, table: str) -> None:
        names = self._present(table, ("start", "end"), ("bytes",))
        for row in self._rows(table, names):
            moved = float(row["bytes"]) if "bytes" in names else None
            self._add("memset", "[CUDA memset]", row, names, moved_bytes=moved)

    def apis(self, table: str) -> None:
        names = self._present(table, ("start", "end"), ())
        label = table.removeprefix(_PREFIX).lower()
        for row in self._rows(table, names):
            if "nameId" in names:
                name = self._text(row["nameId"])
            else:
                # nvprof writes numbers of callbacks, whose names are only in CUPTI's headers.
                name = f"{label} call {row['cbid'] if 'cbid' in names else '?'}"
            self._add("api", name, row, names, lane=self._thread_lane(row, names, label))

    def ranges(self, table: str) -> None:
        if table not in self._tables:
            return
        names = self._present(table, ("start", "end"), ("text",))
        for row in self._rows(table, names):
            if row["end"] is None:
                continue
            text = row["text"] if "text" in names else None
            if text is None and "textId" in names:
                text = self._text(row["textId"])
            self._add(
                "range", str(text or "range"), row, names,
                lane=self._thread_lane(row, names, "ranges"),
            )  # fmt: skip

    def device_name(self) -> str | None:
        """Returns the name of the GPU if there is only one."""
        for table in ("TARGET_INFO_GPU", _PREFIX + "DEVICE"):
            if table in self._tables and "name" in self._columns(table):
                found = {
                    self._text(row[0])
                    for row in self._connection.execute(f"select name from {table}")
                }
                if len(found) == 1:
                    return found.pop()
        return None

    def session_epoch_s(self) -> float | None:
        """Returns the Unix time in seconds at time 0 of the file; None = unknown."""
        table = "TARGET_INFO_SESSION_START_TIME"
        if table not in self._tables or "utcEpochNs" not in self._columns(table):
            return None
        row = self._connection.execute(f"select utcEpochNs from {table}").fetchone()
        return None if row is None or row[0] is None else float(row[0]) / _NS_PER_S

    def _add(
        self,
        kind: Kind,
        name: str,
        row: sqlite3.Row,
        names: set[str],
        *,
        launch: Launch | None = None,
        moved_bytes: float | None = None,
        lane: int | None = None,
    ) -> None:
        start, end = row["start"], row["end"]
        if start is None or end is None or end < start:
            raise sqlite3.DataError(f"a {kind} that starts at {start} and ends at {end}")
        if lane is None:
            device = row["deviceId"] if "deviceId" in names else 0
            stream = row["streamId"] if "streamId" in names else "?"
            lane = self.builder.lane(("gpu", device, stream), f"GPU {device} stream {stream}")
        number = self.builder.row(kind, name, launch)
        self.builder.add(number, start, end - start, lane, moved_bytes=moved_bytes)

    def _thread_lane(self, row: sqlite3.Row, names: set[str], label: str) -> int:
        column = next((c for c in ("globalTid", "threadId") if c in names), None)
        thread = row[column] if column else "?"
        return self.builder.lane((label, thread), f"{label} thread {thread}")

    def _present(self, table: str, needed: tuple[str, ...], wanted: tuple[str, ...]) -> set[str]:
        """Returns the columns of a table and notes missing ones; empty = no such table."""
        if table not in self._tables:
            return set()
        names = self._columns(table)
        lost = [name for name in needed if name not in names]
        if lost:
            self.notes.append(f"{table} has no {', '.join(lost)}; the table is left out")
            return set()
        lacks = [name for name in wanted if name not in names and name not in _NAME_COLUMNS]
        if table.endswith("KERNEL") and not names & set(_NAME_COLUMNS):
            lacks.append("name")
        if lacks:
            self.notes.append(f"{table} has no {', '.join(lacks)}")
        return names

    def _columns(self, table: str) -> set[str]:
        return {str(row[1]) for row in self._connection.execute(f"pragma table_info({table})")}

    def _rows(self, table: str, names: set[str]) -> Iterator[sqlite3.Row]:
        if names:
            yield from self._connection.execute(f"select * from {table}")

    def _read_strings(self) -> dict[int, str]:
        for table, key in (("StringIds", "id"), ("StringTable", "_id_")):
            if table in self._tables and {key, "value"} <= self._columns(table):
                return dict(self._connection.execute(f"select {key}, value from {table}"))
        self.notes.append("the file has no table of names")
        return {}

    def _text(self, value: object) -> str:
        return self._strings.get(value, f"name {value}") if isinstance(value, int) else str(value)
