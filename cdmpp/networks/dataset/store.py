"""Data sets of networks and their measurements: two Parquet files and a manifest."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet

from cdmpp.errors import CdmppError, DataError, UsageError
from cdmpp.files.atomic import make_folder, sha256_file, write_atomic, write_json
from cdmpp.files.json_text import parse_json
from cdmpp.networks.dataset.graph_table import graphs_from_table, table_of_graphs
from cdmpp.networks.dataset.rows import _NEXT, OUTCOMES, SCHEMA_VERSION, GraphRow, LabelRow
from cdmpp.text import counted

MANIFEST = "manifest.json"
GRAPHS = "graphs.parquet"
LABELS = "labels.parquet"

#: Number of graphs per written table.
_PIECE_GRAPHS = 2048
_PARQUET: dict[str, Any] = {"compression": "zstd", "compression_level": 15}


@dataclass(frozen=True)
class NetworkData:
    """A data set in memory.

    Attributes:
        graphs: every network at every batch size.
        labels: measurements; a graph may have no labels.
        manifest: counts, digests and the writer's `note`.
    """

    graphs: list[GraphRow]
    labels: list[LabelRow]
    manifest: dict[str, Any]

    def by_id(self) -> dict[str, GraphRow]:
        """Returns the graph rows by graph id."""
        return {row.graph.graph_id: row for row in self.graphs}


def write_dataset(
    folder: Path,
    graphs: Iterable[GraphRow],
    labels: Iterable[LabelRow],
    *,
    note: Mapping[str, Any],
) -> None:
    """Writes `manifest.json`, `graphs.parquet` and `labels.parquet` into `folder`.

    Files are written atomically, the manifest last. Equal graphs are stored once, with the names of
    the first. Equal rows give equal bytes.

    Args:
        folder: created if it does not exist; an existing data set is replaced.
        graphs: the networks, consumed in pieces.
        labels: their measurements, consumed after the graphs.
        note: JSON values for the manifest (device, generator's configuration, ...).

    Raises:
        DataError: a label refers to a missing graph, a label occurs twice, or the folder cannot be
            written.
    """
    folder = make_folder(Path(folder), what="data set of networks")
    ids: set[str] = set()
    architectures: set[str] = set()
    kept: list[LabelRow] = []

    def write_graphs(path: Path) -> None:
        try:
            _write_graphs(path, graphs, ids, architectures)
            kept.extend(labels)
            _check_labels(folder, kept, ids)
            with contextlib.suppress(FileNotFoundError):
                (folder / MANIFEST).unlink()  # outdated once the files change
        except CdmppError:
            path.unlink(missing_ok=True)
            raise

    write_atomic(folder / GRAPHS, write_graphs)
    write_atomic(folder / LABELS, lambda path: _write_table(path, _label_table(kept)))
    manifest = {
        "schema_version": SCHEMA_VERSION,
        "graphs": len(ids),
        "architectures": len(architectures),
        "labels": len(kept),
        "outcomes": {
            outcome: count
            for outcome in OUTCOMES
            if (count := sum(label.outcome == outcome for label in kept))
        },
        "devices": sorted({label.device for label in kept}),
        "sha256": {name: sha256_file(folder / name) for name in (GRAPHS, LABELS)},
        "note": dict(note),
    }
    write_json(folder / MANIFEST, manifest)


def check_replaced(folder: Path, note: Mapping[str, Any]) -> None:
    """Checks that writing a data set would not replace other measurements.

    Args:
        note: note of the data set to be written.

    Raises:
        UsageError: the folder has a data set with labels and another note.
    """
    try:
        manifest = json.loads((Path(folder) / MANIFEST).read_text(encoding="utf-8"))
        labels, before = int(manifest["labels"]), manifest["note"]
    except (OSError, ValueError, KeyError, TypeError):
        return
    if labels and before != dict(note):
        raise UsageError(
            f"{folder} has a data set with {counted(labels, 'label')} that would be lost; give "
            "another folder: --out DIR"
        )


def read_dataset(folder: Path) -> NetworkData:
    """Reads a data set that `write_dataset` wrote.

    Raises:
        DataError: the data set is missing, has another schema version, or its files were changed.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    tables = {}
    for name in (GRAPHS, LABELS):
        path = folder / name
        try:
            digest = sha256_file(path)
            written = str(manifest["sha256"].get(name))
            if digest != written:
                raise DataError(
                    f"{path}: sha256 is {digest[:12]}..., {MANIFEST} has {written[:12]}...; the "
                    f"file was changed or truncated, {_NEXT}"
                )
            tables[name] = parquet.read_table(path)
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{path}: cannot read ({error}); {_NEXT}") from None
    graphs = [GraphRow(**row) for row in graphs_from_table(tables[GRAPHS])]
    labels = _labels_of_table(tables[LABELS])
    return NetworkData(graphs, labels, manifest)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Returns the manifest of a data set.

    Raises:
        DataError: the manifest is missing, cannot be read or has another schema version.
    """
    path = Path(folder) / MANIFEST
    try:
        manifest: Any = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(
            f"{folder}: not a data set of networks ({MANIFEST} missing); {_NEXT}"
        ) from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot read ({error}); {_NEXT}") from None
    found: dict[str, Any] = manifest if isinstance(manifest, dict) else {}
    version = found.get("schema_version")
    if version != SCHEMA_VERSION or not isinstance(found.get("sha256"), dict):
        raise DataError(
            f"{path}: schema version {version}, expected {SCHEMA_VERSION} of a data set of "
            f"networks; {_NEXT}"
        )
    return found


def _write_graphs(
    path: Path, graphs: Iterable[GraphRow], ids: set[str], architectures: set[str]
) -> None:
    """Writes the graphs in pieces; adds their ids and architectures to the sets."""

    def pieces() -> Iterator[pa.Table]:
        piece: dict[str, GraphRow] = {}
        for row in graphs:
            graph_id = row.graph.graph_id
            if graph_id in ids:
                continue
            ids.add(graph_id)
            architectures.add(row.architecture)
            piece[graph_id] = row
            if len(piece) == _PIECE_GRAPHS:
                yield table_of_graphs(list(piece.values()), list(piece))
                piece = {}
        if piece or not ids:
            yield table_of_graphs(list(piece.values()), list(piece))

    tables = pieces()
    first = next(tables)
    with parquet.ParquetWriter(path, first.schema, **_PARQUET) as writer:
        for table in itertools.chain([first], tables):
            writer.write_table(table)


def _write_table(path: Path, table: pa.Table) -> None:
    parquet.write_table(table, path, **_PARQUET)


def _check_labels(folder: Path, labels: Sequence[LabelRow], ids: Set[str]) -> None:
    seen = set()
    for label in labels:
        key = (label.graph_id, label.device, label.mode)
        if label.graph_id not in ids:
            raise DataError(
                f"{folder}: the graph {label.graph_id} of a label is not among the {len(ids)} "
                "graphs; pass the graph rows of all labels"
            )
        if key in seen:
            raise DataError(
                f"{folder}: two labels for graph {label.graph_id} on {label.device} "
                f"({label.mode}), expected one; drop the older measurement"
            )
        seen.add(key)


def _label_table(labels: Sequence[LabelRow]) -> pa.Table:
    schema = _label_schema()
    return pa.table(
        {
            name: pa.array([getattr(label, name) for label in labels], schema.field(name).type)
            for name in schema.names
        },
        schema=schema,
    )


def _label_schema() -> pa.Schema:
    text = {"graph_id", "device", "mode", "outcome", "note", "torch_version", "measured_at"}
    columns = []
    for field in fields(LabelRow):
        dtype = pa.string() if field.name in text else pa.float64()
        if field.name == "times_s":
            dtype = pa.list_(pa.float64())
        elif field.name == "operators_s":
            dtype = pa.list_(pa.float32())
        elif field.name == "threads":
            dtype = pa.int32()
        columns.append((field.name, dtype))
    return pa.schema(columns)


def _labels_of_table(table: pa.Table) -> list[LabelRow]:
    missing = set(_label_schema().names) - set(table.column_names)
    if missing:
        raise DataError(f"{LABELS}: no column `{min(missing)}`; {_NEXT}")
    rows = table.select(_label_schema().names).to_pylist()
    lists = ("times_s", "operators_s")
    return [LabelRow(**{**row, **{name: tuple(row[name] or ()) for name in lists}}) for row in rows]
