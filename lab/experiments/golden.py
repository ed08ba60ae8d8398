"""Fidelity: replayed records compared with results of the original TVM 0.8 (golden files)."""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.datasets.tenset.record_line import parse_record
from cdmpp.datasets.tenset.task_index import TaskIndex, load_tasks
from cdmpp.errors import CdmppError, DataError
from cdmpp.files.json_text import parse_json
from cdmpp.programs.ansor.dag import Dag, parse_dag
from cdmpp.programs.featurise import is_gpu_kind
from cdmpp.programs.loops.loop_tree import Loop, LoopTree, Node, Store, stores_with_path
from cdmpp.programs.schema import LEAF_FEATURE_NAMES
from cdmpp.text import markdown_table
from lab.pages import write_page
from lab.paths import shared
from lab.stamp import stamp
from tests.programs.reference.lower import lower_record
from tests.programs.reference.operations import op_counts
from tests.programs.reference.rejection import rejection
from tests.programs.reference.tree import compact_ast

#: Counters in the order in which they are printed.
COUNTS = (
    "lines", "replayed", "structure_equal", "stores_matched", "float_ops_equal", "int_ops_equal",
    "invalid_expected", "invalid_agree", "valid_expected", "valid_agree",
    "rows_compared", "compute_cells", "compute_cells_equal", "buffer_cells", "buffer_cells_close",
    "other_cells", "other_cells_close",
)  # fmt: skip
#: Compared property -> the counter of equal items, the counter of all items, and their unit.
SHARES = {
    "replayed": ("replayed", "lines", "lines"),
    "structure equal": ("structure_equal", "replayed", "replayed lines"),
    "float counts equal": ("float_ops_equal", "stores_matched", "stores"),
    "int counts equal": ("int_ops_equal", "stores_matched", "stores"),
    "compute cells equal": ("compute_cells_equal", "compute_cells", "cells"),
    "buffer cells close": ("buffer_cells_close", "buffer_cells", "cells"),
    "other cells close": ("other_cells_close", "other_cells", "cells"),
    "rejected alike": ("invalid_agree", "invalid_expected", "rejected lines"),
    "accepted alike": ("valid_agree", "valid_expected", "accepted lines"),
}
#: Index of the first column of buffer accesses, and of the first column after these.
_BUFFERS, _OTHERS = map(LEAF_FEATURE_NAMES.index, ("B0.acc_type.kRead", "arith_intensity_curve_0"))
#: Counters of compared and equal cells, and the columns of the leaf vector that they count.
_CELL_GROUPS = (
    ("compute_cells", "compute_cells_equal", slice(0, _BUFFERS)),
    ("buffer_cells", "buffer_cells_close", slice(_BUFFERS, _OTHERS)),
    ("other_cells", "other_cells_close", slice(_OTHERS, None)),
)
_CLOSE = 1e-3
_SYMBOLIC = "symbolic"
LoopSignature = tuple[tuple[int | str, str], ...]


@dataclass
class GoldenReport:
    """Counts of a comparison.

    Attributes:
        counts: counters of `COUNTS`. They count lines; from `stores_matched` on, stores; from
            `rows_compared` on, rows and cells of the original's leaf vectors.
        failures: reason why lines did not replay -> number of lines.
        differences: structural difference of replayed lines -> number of lines.
    """

    counts: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    differences: Counter[str] = field(default_factory=Counter)

    def as_json(self) -> dict[str, int]:
        """Returns every counter, including zeros."""
        return {name: self.counts[name] for name in COUNTS}


def compare_golden(files: Iterable[Path], network_info_dirs: Iterable[Path]) -> GoldenReport:
    """Replays every line of golden files and compares structure, operation counts and validity.

    Replays only `record` of a line; the computation comes from `network_info` by workload key. The
    original's results are read for the comparison only.

    Raises:
        DataError: a file or folder cannot be read.
    """
    indices = [load_tasks(directory) for directory in network_info_dirs]
    dags: dict[tuple[str, str], Dag] = {}
    report = GoldenReport()
    for path in files:
        for line in _golden_lines(path):
            report.counts["lines"] += 1
            _compare_line(line, indices, dags, report)
    return report


def _golden_lines(path: Path) -> Iterator[dict[str, Any]]:
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8") as stream:
            for number, text in enumerate(stream, start=1):
                value = parse_json(text)
                if not isinstance(value, dict):
                    raise DataError(f"{path}:{number}: not a golden line: expected a JSON object.")
                if "record" in value:
                    yield value
    except (OSError, EOFError, ValueError) as error:
        raise DataError(
            f"{path}: cannot be read as golden file ({error}); expected JSON lines, plain "
            "or gzipped."
        ) from error


def _compare_line(
    line: dict[str, Any],
    indices: list[TaskIndex],
    dags: dict[tuple[str, str], Dag],
    report: GoldenReport,
) -> None:
    rejected = bool(line.get("feature_error"))
    report.counts["invalid_expected" if rejected else "valid_expected"] += 1
    try:
        tree, reason = _replay(str(line["record"]), indices, dags)
    except CdmppError as error:
        report.failures[getattr(error, "reason", str(error))] += 1
        return
    report.counts["replayed"] += 1
    if (reason is not None) == rejected:
        report.counts["invalid_agree" if rejected else "valid_agree"] += 1
    ours = list(stores_with_path(tree))
    golden = line["stores"]
    difference = structure_difference(ours, golden)
    if difference is None:
        report.counts["structure_equal"] += 1
    else:
        report.differences[difference] += 1
    if len(ours) != len(golden):
        return
    if line.get("features"):
        _compare_features(compact_ast(tree).leaf_features, line, report.counts)
    for (store, path), expected in zip(ours, golden, strict=True):
        if _our_loops(path) == _golden_loops(expected):
            _compare_ops(store, expected, report.counts)


def _replay(
    text: str, indices: list[TaskIndex], dags: dict[tuple[str, str], Dag]
) -> tuple[LoopTree, str | None]:
    """Returns the loop tree of a record and why the program is rejected (None if it is not)."""
    record = parse_record(text)
    key = (record.workload_key, record.target_kind)
    if key not in dags:
        tasks = (index.find(*key) for index in indices)
        task = next((task for task in tasks if task is not None), None)
        if task is None:
            raise DataError(f"task is not in network_info: {record.workload_key}")
        dags[key] = parse_dag(task.dag_json)
    tree = lower_record(dags[key], record.steps, is_gpu=is_gpu_kind(record.target_kind))
    return tree, rejection(tree, record)


def structure_difference(
    ours: list[tuple[Store, tuple[Node, ...]]], golden: list[dict[str, Any]]
) -> str | None:
    """Returns how the stores and their loops differ; None if they are equal, in the same order.

    Stores are equal if they write the same buffer (by name, with one buffer of ours for each of the
    original's) inside the same loops (extent and kind; loops of extent 1 are ignored).
    """
    if len(ours) != len(golden):
        return f"{len(ours)} stores instead of {len(golden)}"
    ids: dict[object, int] = {}
    for (store, path), expected in zip(ours, golden, strict=True):
        if store.buffer.name != expected["buffer"]:
            return "a store writes a buffer of another name"
        if ids.setdefault(store.buffer, expected["buf_id"]) != expected["buf_id"]:
            return "a store writes another buffer of the same name"
        if _our_loops(path) != _golden_loops(expected):
            return "loops of a store differ"
    if len(set(ids.values())) != len(ids):
        return "two buffers are one in the original"
    return None


def _our_loops(path: tuple[Node, ...]) -> LoopSignature:
    return tuple(
        (node.extent if isinstance(node.extent, int) else _SYMBOLIC, node.kind)
        for node in path
        if isinstance(node, Loop) and node.extent != 1
    )


def _golden_loops(store: dict[str, Any]) -> LoopSignature:
    return tuple(
        (loop[0] if isinstance(loop[0], int) else _SYMBOLIC, loop[1])
        for loop in store["loops"]
        if loop[0] != 1
    )


def _compare_ops(store: Store, expected: dict[str, Any], counts: Counter[str]) -> None:
    counts["stores_matched"] += 1
    ours = {name: count for name, count in op_counts(store.value).items() if count}
    golden = {name: count for name, count in expected["ops"].items() if count}
    for group, is_float in (("float_ops_equal", True), ("int_ops_equal", False)):
        mine, theirs = (
            {n: c for n, c in counted.items() if n.startswith("float_") == is_float}
            for counted in (ours, golden)
        )
        counts[group] += mine == theirs


def _compare_features(
    leaf_features: NDArray[np.float32], line: dict[str, Any], counts: Counter[str]
) -> None:
    """Compares leaf vectors; the original has one row per buffer, that of the last store to it."""
    last = {store["buf_id"]: leaf for leaf, store in enumerate(line["stores"])}
    rows = np.asarray(line["features"], dtype=np.float32)
    ours = leaf_features[[last[buffer] for buffer in line["feature_row_buf_ids"]]]
    close = np.abs(ours - rows) <= _CLOSE * np.maximum(1.0, np.abs(rows))
    counts["rows_compared"] += len(rows)
    for cells, cells_close, columns in _CELL_GROUPS:
        counts[cells] += close[:, columns].size
        counts[cells_close] += int(close[:, columns].sum())


#: Part of the golden files -> folder with the tasks of its records.
TASKS = {"llvm": "tenset-cpu", "cuda": "tenset-cuda", "gpu": "ansor-gpu"}
_HEAD = """# Golden comparison

What the replay, the loop tree and the leaf vectors share with what the original TVM 0.8 computed
for the same records: CPU records of Tenset (llvm), random schedules for a T4 (cuda), measured GPU
records (gpu). A cell is one value of a leaf vector; close: to 1e-3."""


def page(reports: dict[str, GoldenReport]) -> str:
    """Returns the counters of every part as Markdown."""
    rows = []
    for name, (alike, of, unit) in SHARES.items():
        counts = [(report.counts[alike], report.counts[of]) for report in reports.values()]
        cells = [f"{part:,} of {whole:,}" if whole else "-" for part, whole in counts]
        rows.append([f"{name}, {unit}", *cells])
    texts = [_HEAD, markdown_table(["", *reports], rows)]
    for name, report in reports.items():
        for what, reasons in (
            ("did not replay", report.failures),
            ("differ in structure", report.differences),
        ):
            texts += [f"- {name}, {count} {what}: {why}" for why, count in reasons.most_common()]
    return "\n\n".join(texts)


def experiment() -> None:
    """Compares the golden files beside this checkout (../shared/data/golden); writes the page.

    `make golden GOLDEN=FILE` compares another file.
    """
    reports = {
        name: compare_golden(
            [shared(f"golden/golden_{name}.jsonl.gz")], [shared(f"{folder}/network_info")]
        )
        for name, folder in TASKS.items()
    }
    values = {"parts": {name: report.as_json() for name, report in reports.items()}}
    found = stamp("python -m lab run golden", schemas=["leaf"])
    print(write_page("golden", page(reports), values, found))
