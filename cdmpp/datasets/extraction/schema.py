"""Columns of the two Parquet tables of an extracted dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from cdmpp.programs.compact_ast import (
    LEAF_EXTRA_SCHEMA_VERSION,
    LEAF_FEATURE_COUNT,
    LEAF_SCHEMA_VERSION,
)

#: Version of the tables below; readers reject other versions.
STORE_SCHEMA_VERSION = 2


def schema_versions() -> dict[str, int]:
    """Returns the versions that define the content of the tables."""
    return {
        "store": STORE_SCHEMA_VERSION,
        "leaf": LEAF_SCHEMA_VERSION,
        "leaf_extra": LEAF_EXTRA_SCHEMA_VERSION,
    }


def _metadata() -> dict[str, str]:
    versions = {f"cdmpp.{name}_schema_version": str(v) for name, v in schema_versions().items()}
    return versions | {"cdmpp.leaf_feature_count": str(LEAF_FEATURE_COUNT)}


def programs_schema() -> Any:
    """Returns the schema of `programs`: one row per program, independent of devices.

    `leaf_features` and `leaf_extra` are flat lists, leaf after leaf; the number of leaves is the
    length of `leaf_position`. They are empty if the program could not be featurised. A program with
    features has `valid` = false if the original toolchain rejects it. `tree` is the serialised
    compact AST. `flop_count` is null if unknown. `schedule` is the canonical JSON of the transform
    steps of a Tenset record, null for other sources.
    """
    network = pa.struct([pa.field("name", pa.string()), pa.field("weight", pa.int64())])
    return pa.schema(
        [
            pa.field("program_id", pa.string(), nullable=False),
            pa.field("source", pa.string(), nullable=False),
            pa.field("workload_key", pa.string(), nullable=False),
            pa.field("operator", pa.string(), nullable=False),
            pa.field("target_kind", pa.string(), nullable=False),
            pa.field("networks", pa.list_(network), nullable=False),
            pa.field("flop_count", pa.float64()),
            pa.field("valid", pa.bool_(), nullable=False),
            pa.field("reject_reason", pa.string()),
            pa.field("leaf_features", pa.list_(pa.float32()), nullable=False),
            pa.field("leaf_extra", pa.list_(pa.float32()), nullable=False),
            pa.field("leaf_position", pa.list_(pa.int32()), nullable=False),
            pa.field("tree", pa.list_(pa.int32()), nullable=False),
            pa.field("schedule", pa.string()),
        ],
        metadata=_metadata(),
    )


def measurements_schema() -> Any:
    """Returns the schema of `measurements`: one row per record.

    `latency_s` (mean of `costs_s`) and `latency_std_s` (population standard deviation) are null
    unless `error_code` is 0. `measured_at` is Unix time in seconds.
    """
    return pa.schema(
        [
            pa.field("program_id", pa.string(), nullable=False),
            pa.field("device", pa.string(), nullable=False),
            pa.field("latency_s", pa.float64()),
            pa.field("latency_std_s", pa.float64()),
            pa.field("costs_s", pa.list_(pa.float64()), nullable=False),
            pa.field("error_code", pa.int32(), nullable=False),
            pa.field("measured_at", pa.int64(), nullable=False),
        ],
        metadata=_metadata(),
    )


#: Compression levels of zstd: fast for extractions; a third smaller for campaigns, whose time is
#: spent on measurements.
QUICK_LEVEL, SMALL_LEVEL = 1, 19


def open_writer(path: Path, schema: Any, level: int = QUICK_LEVEL) -> Any:
    """Returns a `pyarrow.parquet.ParquetWriter` for one of the tables.

    Only repeating strings get a dictionary: a dictionary of features costs 50 MB and saves little.
    """
    import pyarrow.parquet as pq

    repeating = [
        field.name
        for field in schema
        if pa.types.is_string(field.type) and field.name not in ("program_id", "schedule")
    ]
    return pq.ParquetWriter(
        path, schema, compression="zstd", compression_level=level, use_dictionary=repeating
    )
