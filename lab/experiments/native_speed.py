"""Record line -> compact AST: the native code and its Python reference, side by side. The lines are
beside this checkout (`../shared/data`, not part of the repository).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from cdmpp.datasets.tenset.record_line import parse_record
from cdmpp.datasets.tenset.task_index import load_tasks
from cdmpp.errors import DataError
from cdmpp.programs.ansor.dag import Dag, parse_dag
from cdmpp.programs.featurise import is_gpu_kind
from cdmpp.programs.native import NativeTask, Status, native_library
from cdmpp.text import markdown_table
from lab.pages import filled, write_page
from lab.paths import shared
from lab.stamp import stamp
from tests.programs.native.native_fuzz import golden_records
from tests.programs.native.test_native import dataset_lines
from tests.programs.reference.lower import lower_record
from tests.programs.reference.rejection import rejection
from tests.programs.reference.tree import compact_ast

Work = list[tuple[Dag, list[str]]]
_OPERATOR = "conv2d"
_MAX_LINES = 400
_ROUNDS = 5
_PHASES = ("parse", "lower", "features")


def work_of(lines: Iterator[str] | list[str], folder: str) -> Work:
    """Returns convolution records, grouped by task."""
    index = load_tasks(shared(f"{folder}/network_info"))
    dags: dict[str, Dag] = {}
    groups: dict[str, list[str]] = {}
    count = 0
    for line in lines:
        record = parse_record(line)
        key = record.workload_key
        if key not in dags:
            task = index.find(key, record.target_kind)
            assert task is not None
            dags[key] = parse_dag(task.dag_json)
        if any(_OPERATOR in op.name or _OPERATOR in op.tag for op in dags[key].ops):
            groups.setdefault(key, []).append(line)
            count += 1
        if count == _MAX_LINES:
            break
    return [(dags[key], group) for key, group in groups.items()]


def works() -> dict[str, Work]:
    """Returns the lines of both targets."""
    cuda = golden_records(shared("golden/golden_cuda.jsonl.gz"))
    return {
        "llvm conv2d": work_of(dataset_lines(2), "tenset-cpu"),
        "cuda conv2d": work_of(cuda, "tenset-cuda"),
    }


def python_seconds(work: Work) -> dict[str, float]:
    """Returns how long the reference takes for each phase."""
    seconds = dict.fromkeys(("parse", "lower", "features"), 0.0)

    def timed(phase: str, function: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        result = function()
        seconds[phase] += time.perf_counter() - start
        return result

    for dag, lines in work:
        for line in lines:
            record = timed("parse", lambda line=line: parse_record(line))  # type: ignore[misc]
            is_gpu = is_gpu_kind(record.target_kind)
            tree = timed(
                "lower",
                lambda dag=dag, record=record, is_gpu=is_gpu: lower_record(  # type: ignore[misc]
                    dag, record.steps, is_gpu=is_gpu
                ),
            )
            timed(
                "features",
                lambda tree=tree, record=record: (  # type: ignore[misc]
                    compact_ast(tree),
                    rejection(tree, record),
                ),
            )
    return seconds


def native_seconds(library: Any, work: Work) -> tuple[float, dict[str, float]]:
    """Returns how long the native code takes: the median of five rounds, and a round's phases."""
    tasks = [(NativeTask(dag, library), [line.encode() for line in lines]) for dag, lines in work]
    rounds: list[float] = []
    phases: dict[str, float] = {}
    for _ in range(_ROUNDS + 1):
        phases = {}
        start = time.perf_counter()
        for task, lines in tasks:
            batch = task.featurise_lines(lines, threads=1)
            if (batch.status == Status.DECLINED).any():
                raise DataError("the native code declines records of the benchmark")
            for phase, seconds in batch.seconds.items():
                phases[phase] = phases.get(phase, 0.0) + seconds
        rounds.append(time.perf_counter() - start)
    by_phase = {
        "parse": phases["parse"],
        "lower": phases["replay"] + phases["lower"] + phases["simplify"],
        "features": phases["features"],
    }
    return statistics.median(rounds[1:]), by_phase


def experiment() -> None:
    """Times both sides and writes the page."""
    library = native_library()
    rows: list[dict[str, Any]] = []
    for name, work in works().items():
        count = sum(len(lines) for _, lines in work)
        reference = python_seconds(work)
        seconds, phases = native_seconds(library, work)
        total = sum(reference.values())
        rows.append({
            "lines": name, "records": count,
            "records_per_s": count / seconds, "python_records_per_s": count / total,
            "ratio": total / seconds,
            "native_us": {phase: 1e6 * s / count for phase, s in phases.items()},
            "python_us": {phase: 1e6 * s / count for phase, s in reference.items()},
        })  # fmt: skip
    sides = {"native": "native_us", "Python": "python_us"}
    titles = ["lines", "native records/s", "Python records/s", "ratio"]
    titles += [f"{side} {phase}, µs" for side in sides for phase in _PHASES]
    cells = [
        [row["lines"], f"{row['records_per_s']:,.0f}", f"{row['python_records_per_s']:,.0f}",
         f"{row['ratio']:.0f}",
         *(f"{row[side][phase]:,.1f}" for side in sides.values() for phase in _PHASES)]
        for row in rows
    ]  # fmt: skip
    text = filled("native-speed", table=markdown_table(titles, cells))
    found = stamp("python -m lab run native-speed", schemas=["leaf", "leaf_extra"])
    print(write_page("native-speed", text, {"rows": rows}, found))
