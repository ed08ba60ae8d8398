"""`merge`: merges extracted datasets into one.

Every program is stored once, with features if any input has them; every measurement is kept. The
networks of a task are those of all inputs.
"""

from __future__ import annotations

import glob
import hashlib
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.datasets.extraction.extract import tables_hash
from cdmpp.datasets.extraction.extracted import (
    MANIFEST,
    is_extracted_dir,
    read_manifest,
    read_shard,
)
from cdmpp.datasets.extraction.program_rows import reason_group
from cdmpp.datasets.extraction.row_content import CONTENT_COLUMNS, row_contents
from cdmpp.datasets.extraction.schema import (
    measurements_schema,
    open_writer,
    programs_schema,
    schema_versions,
)
from cdmpp.datasets.extraction.shard import table_note
from cdmpp.datasets.read_report import ReadReport
from cdmpp.errors import DataError, UsageError
from cdmpp.files.atomic import make_folder, remove_abandoned, write_json
from cdmpp.programs.compact_ast import (
    FIRST_WITH_ACROSS_THREADS,
    LEAF_EXTRA_COUNTS,
    leaf_extra_version,
)
from cdmpp.programs.featurise import is_gpu_kind
from cdmpp.text import agreed, counted

Networks = dict[str, int]


@dataclass
class MergeReport:
    """Result of a merge.

    Attributes:
        out_dir: the merged dataset.
        inputs: the input datasets.
        programs: number of distinct programs.
        featurised: number of programs with features.
        valid: number of programs with features that the original toolchain accepts.
        merged_programs: programs that occur more than once in the inputs.
        conflicting_programs: merged programs whose features differ between inputs; the first
            features of the best quality are kept.
        measurements: rows of `measurements`.
        repeated_measurements: rows of merged programs that are equal to an earlier row.
        data_hash: digest of the tables.
    """

    out_dir: Path
    inputs: list[Path]
    programs: int = 0
    featurised: int = 0
    valid: int = 0
    merged_programs: int = 0
    conflicting_programs: int = 0
    measurements: int = 0
    repeated_measurements: int = 0
    data_hash: str = ""
    rejected: Counter[str] = field(default_factory=Counter)

    def summary(self) -> str:
        """Returns the report as lines of text."""
        lines = [
            f"{counted(self.programs, 'program')} ({self.featurised} with features) and "
            f"{counted(self.measurements, 'measurement')} of {len(self.inputs)} datasets in "
            f"{self.out_dir}",
            f"{counted(self.merged_programs, 'program', 'were')} in several inputs, stored once",
        ]
        if self.conflicting_programs:
            lines.append(
                f"{self.conflicting_programs} of them {agreed(self.conflicting_programs, 'have')} "
                "different features in another input "
                "(the first features are kept): different versions extracted the inputs. "
                "Extract them again with one version"
            )
        if self.repeated_measurements:
            lines.append(
                f"{counted(self.repeated_measurements, 'measurement', 'occur')} twice, with equal "
                "costs and times: the inputs overlap"
            )
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Returns the report as JSON values."""
        return {
            **vars(self),
            "out_dir": str(self.out_dir),
            "inputs": [str(path) for path in self.inputs],
            "rejected": dict(sorted(self.rejected.items())),
        }


def merge(inputs: Sequence[Path], out_dir: Path) -> MergeReport:
    """Merges extracted datasets into a new one, which is written atomically.

    GPU programs with `leaf_extra` of version 4 get the columns of version 5, which are 0 for GPUs.
    Memory holds about 400 bytes per program.

    Raises:
        UsageError: there are fewer than two inputs, an input is given twice, or `out_dir` exists
            and is not an empty folder.
        DataError: an input is incomplete, of another schema version or damaged, the numbers of
            leaf_extra columns differ, or `out_dir` cannot be written.
    """
    inputs, out_dir = [Path(path) for path in inputs], Path(out_dir)
    if len(inputs) < 2 or len({path.resolve() for path in inputs}) < len(inputs):
        raise UsageError(
            f"merge needs at least two different datasets, got {', '.join(map(str, inputs))}"
        )
    if out_dir.exists() and (not out_dir.is_dir() or any(out_dir.iterdir())):
        raise UsageError(f"{out_dir} exists already; give a new folder with --out DIR")
    manifests = [read_manifest(path) for path in inputs]
    # Inputs without features have no leaf_extra columns.
    widths = {m["leaf_extra_count"] for m in manifests if m["featurised"]}
    if len(widths) > 1 and min(widths) < LEAF_EXTRA_COUNTS[FIRST_WITH_ACROSS_THREADS]:
        raise _unlike(widths)
    make_folder(out_dir.parent, what="merged dataset")
    remove_abandoned(out_dir.parent, f"{glob.escape(out_dir.name)}.*.tmp")
    temporary = out_dir.with_name(f"{out_dir.name}.{os.getpid()}.tmp")
    try:
        temporary.mkdir()
        report = _Merger(inputs, manifests, out_dir, temporary).run(max(widths, default=0))
        if out_dir.exists():
            out_dir.rmdir()
        os.replace(temporary, out_dir)
    except OSError as error:
        raise DataError(
            f"{out_dir}: cannot write the merged dataset there ({error.strerror or error}); "
            "choose a writable folder, or free disk space"
        ) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return report


def _unlike(widths: set[int]) -> DataError:
    return DataError(
        f"the datasets have different numbers of leaf_extra columns ({sorted(widths)}); "
        "extract the older ones again: cdmpp dataset extract"
    )


def merged_folder(inputs: Sequence[Path], cache_dir: Path) -> Path:
    """Returns a folder with all of the extracted datasets.

    Several datasets are merged into a folder below `cache_dir`, unless this or another process has
    merged them already.

    Raises:
        UsageError, DataError: as `merge`.
    """
    if len(inputs) == 1:
        return inputs[0]
    hashes = " ".join(str(read_manifest(path)["data_hash"]) for path in inputs)
    folder = cache_dir / f"merged-{hashlib.sha256(hashes.encode()).hexdigest()[:12]}"
    if not is_extracted_dir(folder):
        try:
            merge(inputs, folder)
        except (UsageError, DataError):
            if not is_extracted_dir(folder):
                raise
    return folder


@dataclass(slots=True)
class _Copy:
    """The kept copy of a program: its position in reading order, its quality and its digest.

    Quality is 0 without features, 1 with features that the original toolchain rejects, 2 if valid.
    """

    place: int
    quality: int
    content: bytes


class _Merger:
    def __init__(
        self, inputs: list[Path], manifests: list[dict[str, Any]], out_dir: Path, folder: Path
    ) -> None:
        self._inputs = inputs
        self._manifests = manifests
        self._folder = folder
        self._report = MergeReport(out_dir, inputs)
        self._copies: dict[bytes, _Copy] = {}
        self._networks: dict[tuple[str, str], Networks] = {}
        self._merged: set[bytes] = set()

    def run(self, leaf_extra_count: int) -> MergeReport:
        self._choose()
        shards: list[dict[str, Any]] = []
        place = 0
        seen_rows: set[bytes] = set()
        for folder, shard in self._shards():
            number = len(shards)
            programs = self._folder / f"programs-{number:05d}.parquet"
            measurements = self._folder / f"measurements-{number:05d}.parquet"
            program_count, place = self._copy_programs(
                folder, shard, programs, place, leaf_extra_count
            )
            measurement_count = self._copy_measurements(folder, shard, measurements, seen_rows)
            shards.append(
                {
                    "programs": table_note(programs, program_count),
                    "measurements": table_note(measurements, measurement_count),
                }
            )
        self._write_manifest(shards, leaf_extra_count)
        return self._report

    def _shards(self) -> Iterator[tuple[Path, dict[str, Any]]]:
        for folder, manifest in zip(self._inputs, self._manifests, strict=True):
            for shard in manifest["shards"]:
                yield folder, shard

    def _choose(self) -> None:
        """Chooses the kept copy of every program: the first with the best quality."""
        columns = [
            "program_id", "workload_key", "target_kind", "networks", "valid", "leaf_position",
            *CONTENT_COLUMNS,
        ]  # fmt: skip
        conflicts: set[bytes] = set()
        place = 0
        for folder, shard in self._shards():
            for table in read_shard(folder, shard, "programs", columns):
                contents = row_contents(table)
                leaves = table["leaf_position"].combine_chunks().value_lengths().to_pylist()
                rows = table.select(columns[:5]).to_pylist()
                for row, leaf_count, content in zip(rows, leaves, contents, strict=True):
                    quality = 2 if row["valid"] else int(leaf_count > 0)
                    identity = bytes.fromhex(row["program_id"])
                    kept = self._copies.get(identity)
                    if kept is None:
                        self._copies[identity] = _Copy(place, quality, content)
                    else:
                        self._merged.add(identity)
                        if min(quality, kept.quality) > 0 and content != kept.content:
                            conflicts.add(identity)
                        if quality > kept.quality:
                            self._copies[identity] = _Copy(place, quality, content)
                    self._add_networks(row)
                    place += 1
        self._report.merged_programs = len(self._merged)
        self._report.conflicting_programs = len(conflicts)

    def _add_networks(self, row: dict[str, Any]) -> None:
        known = self._networks.setdefault((row["workload_key"], row["target_kind"]), {})
        for pair in row["networks"]:
            known.setdefault(pair["name"], pair["weight"])

    def _copy_programs(
        self, folder: Path, shard: dict[str, Any], path: Path, place: int, leaf_extra_count: int
    ) -> tuple[int, int]:
        """Writes the kept programs of a shard; returns (rows, position after the last row)."""
        import pyarrow as pa

        schema = programs_schema()
        rows = 0
        with open_writer(path, schema) as writer:
            for table in read_shard(folder, shard, "programs", schema.names):
                identities = table["program_id"].to_pylist()
                keep = []
                for identity in identities:
                    keep.append(self._copies[bytes.fromhex(identity)].place == place)
                    place += 1
                kept = table.filter(pa.array(keep, pa.bool_()))
                kept = _widened(self._with_networks(kept, schema), leaf_extra_count)
                self._count_programs(kept)
                rows += len(kept)
                if len(kept):
                    writer.write_table(kept.cast(schema))
        return rows, place

    def _with_networks(self, table: Any, schema: Any) -> Any:
        import pyarrow as pa

        keys = table.select(["workload_key", "target_kind"]).to_pylist()
        networks = [
            [
                {"name": name, "weight": weight}
                for name, weight in sorted(
                    self._networks[row["workload_key"], row["target_kind"]].items()
                )
            ]
            for row in keys
        ]
        column = schema.get_field_index("networks")
        field_ = schema.field(column)
        return table.set_column(column, field_, pa.array(networks, field_.type))

    def _count_programs(self, table: Any) -> None:
        report = self._report
        report.programs += len(table)
        leaves = table["leaf_position"].combine_chunks().value_lengths().to_pylist()
        report.featurised += sum(leaf_count > 0 for leaf_count in leaves)
        for row in table.select(["valid", "reject_reason"]).to_pylist():
            if row["valid"]:
                report.valid += 1
            else:
                report.rejected[reason_group(row["reject_reason"])] += 1

    def _copy_measurements(
        self, folder: Path, shard: dict[str, Any], path: Path, seen: set[bytes]
    ) -> int:
        schema = measurements_schema()
        rows = 0
        with open_writer(path, schema) as writer:
            for table in read_shard(folder, shard, "measurements", schema.names):
                for row in table.to_pylist():
                    if bytes.fromhex(row["program_id"]) not in self._merged:
                        continue
                    digest = hashlib.blake2b(repr(row).encode(), digest_size=8).digest()
                    self._report.repeated_measurements += digest in seen
                    seen.add(digest)
                rows += len(table)
                writer.write_table(table.cast(schema))
        self._report.measurements += rows
        return rows

    def _write_manifest(self, shards: list[dict[str, Any]], leaf_extra_count: int) -> None:
        report = self._report
        report.data_hash = tables_hash(shards)
        read = ReadReport()
        for manifest in self._manifests:
            read.add(ReadReport.from_json(manifest["read"]))
        devices = {label for manifest in self._manifests for label in manifest["devices"]}
        counts = report.to_json()
        copied = ("programs", "featurised", "valid", "rejected", "measurements", "data_hash")
        value = {
            "devices": sorted(devices),
            **{key: counts[key] for key in copied},
            "read": read.to_json(),
            "schema": {
                **schema_versions(),
                "leaf_extra": leaf_extra_version(leaf_extra_count),
            },
            "leaf_extra_count": leaf_extra_count,
            "shards": shards,
            "merged_from": [manifest["data_hash"] for manifest in self._manifests],
        }
        write_json(self._folder / MANIFEST, value)


def _widened(programs: Any, count: int) -> Any:
    """Returns GPU programs with the later columns of `leaf_extra`, which are 0.

    Raises:
        DataError: a program for a CPU lacks them.
    """
    import pyarrow as pa

    extra = programs["leaf_extra"].combine_chunks()
    leaves = programs["leaf_position"].combine_chunks().value_lengths().to_numpy()
    values = extra.flatten().to_numpy()
    if len(values) == leaves.sum() * count:
        return programs
    before = len(values) // int(leaves.sum())
    if not all(map(is_gpu_kind, programs["target_kind"].to_pylist())):
        raise _unlike({before, count})
    wide = np.zeros((leaves.sum(), count), np.float32)
    wide[:, :before] = values.reshape(-1, before)
    offsets = np.concatenate([[0], np.cumsum(leaves * count)]).astype(np.int32)
    column = programs.schema.get_field_index("leaf_extra")
    return programs.set_column(
        column, programs.schema.field(column), pa.ListArray.from_arrays(offsets, wide.ravel())
    )
