"""Summary statistics of a data set of networks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.errors import DataError
from cdmpp.networks.dataset.published import PUBLISHED_DEVICE, read_published
from cdmpp.networks.dataset.rows import GraphRow, LabelRow
from cdmpp.networks.dataset.store import MANIFEST, read_dataset
from cdmpp.networks.graph.execution import MODES

#: Columns of every graph.
GRAPH_COLUMNS = ("gflop", "traffic_gb", "params_m", "operators")
#: Columns of every labelled graph, each with the prefix `train_` or `infer_`.
LABEL_COLUMNS = ("utilisation_pct", "memory_mib", "time_ms")
ROWS = ("mean", "min", "median", "max")
_GIGA, _MEGA, _MIB, _MS = 1e9, 1e6, float(1 << 20), 1e3
_FLOAT_BYTES = 4


def dataset_rows(
    folder: Path,
    *,
    device: str = PUBLISHED_DEVICE,
    on_damaged: Callable[[str], None] | None = None,
) -> Iterator[tuple[GraphRow, list[LabelRow]]]:
    """Yields the networks of a data set with their labels.

    Args:
        folder: a data set of cdmpp or in the published layout.
        device: label of the device on which the published layout was measured.
        on_damaged: see `read_published`.

    Raises:
        DataError: the folder has neither layout, or a file is damaged.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(
            f"{folder}: no such folder; expected a data set of networks ({MANIFEST}) or the "
            "published layout (cg and label)"
        )
    if not (folder / MANIFEST).is_file():
        yield from read_published(folder, device=device, on_damaged=on_damaged)
        return
    data = read_dataset(folder)
    labels: dict[str, list[LabelRow]] = {}
    for label in data.labels:
        labels.setdefault(label.graph_id, []).append(label)
    for row in data.graphs:
        yield row, labels.get(row.graph.graph_id, [])


def network_statistics(rows: Iterable[tuple[GraphRow, list[LabelRow]]]) -> dict[str, Any]:
    """Returns summary statistics of a data set as JSON values.

    Keys: `graphs`, `architectures`, `sources` and `batches` (counts), `kinds` (number of operators
    per kind), `columns` (over all graphs) and `devices`: label -> `labels`, `outcomes`, `columns`.
    A column has `n`, `mean`, `min`, `median` and `max`. Times are per iteration (one batch);
    `params_m` counts weights and buffers as four-byte values.

    Raises:
        DataError: the data set has no graph.
    """
    graph_values: dict[str, list[float]] = {name: [] for name in GRAPH_COLUMNS}
    label_values: dict[str, dict[str, list[float]]] = {}
    outcomes: dict[str, Counter[str]] = {}
    architectures: set[str] = set()
    sources: Counter[str] = Counter()
    batches: Counter[int] = Counter()
    kinds: Counter[str] = Counter()
    for row, labels in rows:
        graph = row.graph
        architectures.add(row.architecture)
        sources[row.source] += 1
        batches[graph.batch] += 1
        kinds.update(graph.kinds)
        graph_values["gflop"].append(float(graph.flops.sum()) / _GIGA)
        graph_values["traffic_gb"].append(float(graph.column("bytes").sum()) / _GIGA)
        weights = float(graph.column("weight_size").sum())
        graph_values["params_m"].append(weights / _FLOAT_BYTES / _MEGA)
        graph_values["operators"].append(float(len(graph.kinds)))
        for label in labels:
            outcomes.setdefault(label.device, Counter())[label.outcome] += 1
            columns = label_values.setdefault(label.device, {})
            for name, value in _label_values(label):
                columns.setdefault(name, []).append(value)
    if not sources:
        raise DataError("the data set has no graph; expected at least one")
    return {
        "graphs": sources.total(),
        "architectures": len(architectures),
        "sources": dict(sources.most_common()),
        "batches": {str(batch): batches[batch] for batch in sorted(batches)},
        "kinds": dict(kinds.most_common()),
        "columns": {name: _summary(values) for name, values in graph_values.items()},
        "devices": {
            device: {
                "labels": outcomes[device].total(),
                "outcomes": dict(outcomes[device].most_common()),
                "columns": _ordered(label_values[device]),
            }
            for device in sorted(outcomes)
        },
    }


def _label_values(label: LabelRow) -> Iterator[tuple[str, float]]:
    if label.outcome != "ok":
        return
    values = (
        ("utilisation_pct", label.utilisation, 100.0),
        ("memory_mib", label.memory_bytes, 1 / _MIB),
        ("time_ms", label.time_s, _MS),
    )
    for name, value, factor in values:
        if value is not None:
            yield f"{label.mode}_{name}", value * factor


def _ordered(columns: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    names = [f"{mode}_{name}" for mode in reversed(MODES) for name in LABEL_COLUMNS]
    return {name: _summary(columns[name]) for name in names if name in columns}


def _summary(values: list[float]) -> dict[str, float]:
    array = np.array(values, np.float64)
    return {
        "n": len(values),
        "mean": float(array.mean()),
        "min": float(array.min()),
        "median": float(np.median(array)),
        "max": float(array.max()),
    }
