"""Reads an extracted dataset: two Parquet tables in shards, and their manifest."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cdmpp.datasets.extraction.schema import schema_versions
from cdmpp.errors import DataError
from cdmpp.files.atomic import sha256_file
from cdmpp.programs.compact_ast import LEAF_EXTRA_COUNTS

MANIFEST = "manifest.json"
#: Packed measurement campaign below `data/`, without its tables.
PACKED_CAMPAIGN = "campaign.tar.xz"


def is_extracted_dir(path: Path) -> bool:
    """Whether the folder holds a complete extracted dataset."""
    return (Path(path) / MANIFEST).is_file()


def read_manifest(extracted_dir: Path) -> dict[str, Any]:
    """Returns the manifest of an extracted dataset.

    Raises:
        DataError: the manifest is missing, damaged or of another schema version.
    """
    path = Path(extracted_dir) / MANIFEST
    try:
        value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if "schema" not in value:
            raise DataError(
                f"{extracted_dir}: not an extracted dataset ({MANIFEST} has no schema); expected "
                "the --out of cdmpp dataset extract, or a folder of cdmpp measure"
            )
        schema = value["schema"]
        if _is_read(schema) and not (
            isinstance(value["data_hash"], str) and isinstance(value["shards"], list)
        ):
            raise ValueError("data_hash is not a string, or shards is not a list")
    except OSError:
        command = f"create or resume it with: cdmpp dataset extract --out {extracted_dir}"
        if (path.parent / PACKED_CAMPAIGN).is_file():
            name = path.parent.resolve().name
            command = f"it is packed; run: make tables, then use cache/data/{name}"
        raise DataError(
            f"{extracted_dir}: not a complete extracted dataset ({MANIFEST} is missing); {command}"
        ) from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(
            f"{path}: damaged ({error}). Rerun: cdmpp dataset extract --out {extracted_dir}"
        ) from None
    if not _is_read(schema):
        raise DataError(
            f"{extracted_dir}: extracted with schema versions {schema}, this version needs "
            f"{schema_versions()}. Rerun: cdmpp dataset extract --out {extracted_dir}"
        )
    return value


def _is_read(schema: dict[str, Any]) -> bool:
    """Whether tables of these schema versions can be read; `leaf_extra` may be older."""
    return schema.get("leaf_extra") in LEAF_EXTRA_COUNTS and schema == {
        **schema_versions(), "leaf_extra": schema["leaf_extra"],
    }  # fmt: skip


def read_table(extracted_dir: Path, table: str, columns: list[str]) -> Iterator[Any]:
    """Yields the given columns of a table as pyarrow tables, one per row group of each shard.

    Args:
        table: `programs` or `measurements`.

    Raises:
        DataError: a shard is missing or does not match the manifest.
    """
    for shard in read_manifest(extracted_dir)["shards"]:
        yield from read_shard(extracted_dir, shard, table, columns)


def read_shard(
    extracted_dir: Path, shard: dict[str, Any], table: str, columns: list[str]
) -> Iterator[Any]:
    """Yields the given columns of one shard as pyarrow tables, one per row group.

    Args:
        shard: its entry in the manifest's `shards`.
        table: `programs` or `measurements`.

    Raises:
        DataError: the shard is missing or does not match the manifest.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = Path(extracted_dir) / shard[table]["file"]
    try:
        if sha256_file(path) != shard[table]["sha256"]:
            raise DataError(
                f"{path}: does not match the manifest. Rerun: cdmpp dataset extract --out "
                f"{extracted_dir}"
            )
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                yield file.read_row_group(group, columns=columns)
    except (OSError, pa.ArrowException) as error:
        why = " ".join(str(error).split())[:200]
        raise DataError(
            f"{path}: cannot read ({why}). Rerun: cdmpp dataset extract --out {extracted_dir}"
        ) from None
