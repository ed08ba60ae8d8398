"""Reads, writes and converts the published data set.

There is one file per network and batch size. A graph is a pickled networkx graph (read without
networkx, see `graph_pickle`) or the same content as JSON. A label is a text with a dictionary of
`train` and `infer`, each `time|SM utilisation|memory utilisation|memory|peak SM utilisation|peak
memory utilisation|peak memory`, in milliseconds per sample, percent and MiB.

Source: `example.py` and `features_define.py` of PerfSeer's repository.
"""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cdmpp.errors import DataError, UsageError
from cdmpp.files.atomic import make_folder, write_text
from cdmpp.files.json_text import parse_json
from cdmpp.networks.dataset.published_files import PublishedFile, published_files, read_file
from cdmpp.networks.dataset.published_graph import graph_row, graph_value
from cdmpp.networks.dataset.rows import OUTCOMES, GraphRow, LabelRow, Outcome
from cdmpp.networks.dataset.store import (
    NetworkData,
    check_replaced,
    read_dataset,
    write_dataset,
)
from cdmpp.networks.graph.execution import MODES, Mode
from cdmpp.text import counted

#: Device label of the GPU on which the data set was measured.
PUBLISHED_DEVICE = "rtx3090"
#: Fields of a label, in order.
LABEL_FIELDS = (
    "time_ms_a_sample", "sm_util_mean_pct", "memory_util_mean_pct", "memory_mean_mib",
    "sm_util_peak_pct", "memory_util_peak_pct", "memory_peak_mib",
)  # fmt: skip
#: Fields that `LabelRow` lacks; its note has them as JSON.
_IN_NOTE = LABEL_FIELDS[2:6]
#: Outcome that this writer gives a mode without a label; without it a missing mode means out of
#: memory.
_NOT_MEASURED = "not-measured"
_MIB = 1 << 20
_MS = 1e3
_NO_VALUE = ("", "oom", "none", "nan", "out-of-memory", "out of memory")


@dataclass
class ConvertReport:
    """Summary of a conversion.

    Attributes:
        out_dir: the written data set.
        graphs: number of different graphs.
        architectures: number of different architectures.
        labels: number of label rows of both modes.
        out_of_memory: number of label rows with outcome `out-of-memory`.
        unlabelled: number of graphs without labels.
        without_graph: number of label files without a graph file.
        repeated: number of graph files with the content of another file.
        damaged: reasons for the files that were left out.
    """

    out_dir: Path
    graphs: int = 0
    architectures: int = 0
    labels: int = 0
    out_of_memory: int = 0
    unlabelled: int = 0
    without_graph: int = 0
    repeated: int = 0
    damaged: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Returns the report as JSON values."""
        return {**asdict(self), "out_dir": str(self.out_dir)}

    def summary(self) -> str:
        """Returns the report as lines of text."""
        lines = [
            f"{counted(self.graphs, 'graph')} of {counted(self.architectures, 'architecture')}, "
            f"{counted(self.labels, 'label')} "
            f"({self.out_of_memory} out of memory) in {self.out_dir}"
        ]
        for count, what in (
            (self.unlabelled, "graphs without a label file"),
            (self.without_graph, "label files without a graph, left out"),
            (self.repeated, "files with the graph of another file, left out"),
        ):
            if count:
                lines.append(f"  {count} {what}")
        lines += [f"  damaged, left out: {reason}" for reason in self.damaged]
        return "\n".join(lines)


def read_published(
    folder: Path,
    *,
    device: str = PUBLISHED_DEVICE,
    on_damaged: Callable[[str], None] | None = None,
) -> Iterator[tuple[GraphRow, list[LabelRow]]]:
    """Yields the networks of a published data set with their labels, sorted by file name.

    Args:
        folder: folder with `cg` and `label` (folders or .zip), or with both kinds of files.
        device: label of the measured device.
        on_damaged: called with the reason for every unusable file, which is then skipped; None =
            the first one raises an error.

    Raises:
        DataError: the data set is missing, or a file is damaged.
    """
    with published_files(folder) as files:
        for name, file in files.graphs.items():
            try:
                row = graph_row(read_file(file), str(file), name)
                labels = []
                if name in files.labels:
                    labels = _read_labels(files.labels[name], row, device)
            except DataError as error:
                if on_damaged is None:
                    raise
                on_damaged(str(error))
                continue
            yield row, labels


def convert_published(
    folder: Path,
    out_dir: Path,
    *,
    device: str = PUBLISHED_DEVICE,
    skip_damaged: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> ConvertReport:
    """Converts a published data set to cdmpp's layout (`cdmpp.networks.dataset.store`).

    Args:
        folder: see `read_published`.
        out_dir: folder of the new data set.
        device: label of the measured device.
        skip_damaged: whether to skip unusable files.
        on_progress: called with the number of graphs read so far.

    Raises:
        UsageError: `out_dir` has a data set with other measurements.
        DataError: see `read_published` and `write_dataset`.
    """
    report = ConvertReport(Path(out_dir))
    note = {"source": "published", "folder": Path(folder).name, "device": device}
    check_replaced(report.out_dir, note)
    labels: list[LabelRow] = []
    architectures: set[str] = set()
    seen: set[str] = set()

    def rows() -> Iterator[GraphRow]:
        on_damaged = report.damaged.append if skip_damaged else None
        for row, found in read_published(folder, device=device, on_damaged=on_damaged):
            graph_id = row.graph.graph_id
            if graph_id in seen:
                report.repeated += 1
                continue
            seen.add(graph_id)
            architectures.add(row.architecture)
            labels.extend(found)
            report.unlabelled += not found
            if on_progress is not None:
                on_progress(len(seen))
            yield row

    with published_files(folder) as files:
        report.without_graph = len(set(files.labels) - set(files.graphs))
    write_dataset(report.out_dir, rows(), labels, note=note)
    report.graphs, report.architectures, report.labels = len(seen), len(architectures), len(labels)
    report.out_of_memory = sum(label.outcome == "out-of-memory" for label in labels)
    return report


def export_published(folder: Path, out: Path, *, device: str | None = None) -> tuple[int, str]:
    """Writes a data set in the published layout; returns the number of graphs and the device of
    the written labels.

    Args:
        device: device whose labels are written; None = the only device.

    Raises:
        UsageError: `device` is None and the data set has several devices.
        DataError: the data set cannot be read, or `out` cannot be written.
    """
    data = read_dataset(folder)
    devices = sorted({label.device for label in data.labels})
    if device is None and len(devices) > 1:
        raise UsageError(
            f"{folder} has labels of {len(devices)} devices, a label file can only have one; "
            f"choose with --device, e.g. --device {devices[0]}"
        )
    device = device or (devices[0] if devices else "none")
    return write_published(data, out, device=device), device


def write_published(data: NetworkData, folder: Path, *, device: str) -> int:
    """Writes a data set in the published layout, with the graphs as JSON instead of pickles.

    `networkx.node_link_graph(value, edges="edges")` converts the JSON value to the graph that the
    published data set pickles. A failed measurement has no value in a label, as published; its
    outcome is under `MODE_outcome` unless it is out of memory.

    Args:
        data: the data set.
        folder: folder for `cg/NAME.json` and `label/NAME.txt`, in which `cg` and `label` must be
            missing or empty.
        device: device whose labels are written; a label file is for one device.

    Returns:
        The number of written graphs.

    Raises:
        DataError: the device was not measured, or the folder cannot be written or is not empty.
    """
    folder = Path(folder)
    devices = sorted({label.device for label in data.labels})
    if data.labels and device not in devices:
        raise DataError(
            f"no label of {device!r} among {len(data.labels)}, expected one of {', '.join(devices)}"
        )
    for part in ("cg", "label"):
        make_folder(folder / part, what="published layout")
        if any((folder / part).iterdir()):
            raise DataError(f"{folder / part}: not empty; give a new folder")
    labels: dict[str, list[LabelRow]] = {}
    for label in data.labels:
        if label.device == device:
            labels.setdefault(label.graph_id, []).append(label)
    for row in data.graphs:
        graph_id = row.graph.graph_id
        name = f"{row.architecture}_b{row.graph.batch}_{graph_id[:8]}"
        name = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in name)
        write_text(folder / "cg" / f"{name}.json", json.dumps(graph_value(row)) + "\n")
        if graph_id in labels:
            content = repr(_label_value(labels[graph_id], row.graph.batch))
            write_text(folder / "label" / f"{name}.txt", f"{content}\n")
    return len(data.graphs)


def _read_labels(file: PublishedFile, row: GraphRow, device: str) -> list[LabelRow]:
    """Returns the labels of both modes from a label file."""
    try:
        value = ast.literal_eval(read_file(file).decode("utf-8").strip())
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
        raise DataError(
            f"{file}: not a dictionary of values ({type(error).__name__}); expected "
            "{'train': '...|...', 'infer': '...|...'}"
        ) from None
    if not isinstance(value, dict):
        raise DataError(f"{file}: {type(value).__name__}, expected a dictionary")
    return [
        _label(value.get(mode), mode, row, device, f"{file} ({mode})", value)
        for mode in MODES
        if value.get(f"{mode}_outcome") != _NOT_MEASURED
    ]


def _label(
    value: Any, mode: Mode, row: GraphRow, device: str, where: str, whole: dict[Any, Any]
) -> LabelRow:
    graph_id = row.graph.graph_id
    if value is None or str(value).strip().lower() in _NO_VALUE:
        return LabelRow(graph_id, device, mode, outcome=_outcome(whole, mode, where))
    parts = str(value).split("|")
    if len(parts) != len(LABEL_FIELDS):
        raise DataError(
            f"{where}: {len(parts)} fields, expected {len(LABEL_FIELDS)}: {value!r:.120}"
        )
    try:
        numbers = {
            name: float(part) if part.strip() else math.nan
            for name, part in zip(LABEL_FIELDS, parts, strict=True)
        }
    except ValueError as error:
        raise DataError(f"{where}: {error}; expected {len(LABEL_FIELDS)} numbers") from None
    time_ms = numbers["time_ms_a_sample"]
    if not (math.isfinite(time_ms) and time_ms > 0):
        raise DataError(f"{where}: time {parts[0]!r}, expected milliseconds above 0")
    memory, utilisation = numbers["memory_peak_mib"], numbers["sm_util_mean_pct"]
    note = {name: numbers[name] for name in _IN_NOTE if math.isfinite(numbers[name])}
    return LabelRow(
        graph_id,
        device,
        mode,
        time_s=time_ms / _MS * row.graph.batch,
        memory_bytes=memory * _MIB if math.isfinite(memory) else None,
        utilisation=utilisation / 100 if math.isfinite(utilisation) else None,
        note=json.dumps(note) if note else "",
    )


def _outcome(whole: dict[Any, Any], mode: Mode, where: str) -> Outcome:
    given = whole.get(f"{mode}_outcome", "out-of-memory")
    for outcome in OUTCOMES:
        if given == outcome and outcome != "ok":
            return outcome
    raise DataError(f"{where}: outcome {given!r}, expected one of {', '.join(OUTCOMES[1:])}")


def _label_value(labels: Iterable[LabelRow], batch: int) -> dict[str, str]:
    value = {f"{mode}_outcome": _NOT_MEASURED for mode in MODES}
    for label in labels:
        del value[f"{label.mode}_outcome"]
        if label.outcome != "ok" or label.time_s is None:
            if label.outcome != "out-of-memory":
                value[f"{label.mode}_outcome"] = label.outcome
            continue
        numbers = _noted(label.note)
        numbers["time_ms_a_sample"] = label.time_s * _MS / batch
        if label.memory_bytes is not None:
            numbers["memory_peak_mib"] = label.memory_bytes / _MIB
        if label.utilisation is not None:
            numbers["sm_util_mean_pct"] = label.utilisation * 100
        value[label.mode] = "|".join(repr(numbers.get(name, math.nan)) for name in LABEL_FIELDS)
    return value


def _noted(note: str) -> dict[str, float]:
    """Returns the fields that `_label` wrote to a note; empty for other notes."""
    try:
        value = parse_json(note) if note else {}
    except ValueError:
        return {}
    if not isinstance(value, dict):
        return {}
    return {name: float(value[name]) for name in _IN_NOTE if isinstance(value.get(name), float)}
