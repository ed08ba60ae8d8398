"""Record line -> compact AST: the native code and its Python reference, side by side.

Every benchmark stores the seconds of each phase and the ratio to the reference on the same lines
in its `extra_info`, and prints them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from cdmpp.datasets.tenset.record_line import parse_record
from cdmpp.datasets.tenset.task_index import load_tasks
from cdmpp.features.tree import compact_ast
from tests.paths import shared
from tests.tvm_helper.native.native_fuzz import golden_records
from tests.tvm_helper.native.test_native import dataset_lines
from tvm_helper.featurise import is_gpu_kind, rejection
from tvm_helper.native import NativeTask, Status, native_library
from tvm_helper.records.dag import Dag, parse_dag
from tvm_helper.records.lower import lower_record

Work = list[tuple[Dag, list[str]]]
_OPERATOR = "conv2d"
_MAX_LINES = 400


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


@pytest.fixture(scope="module", params=["llvm", "cuda"])
def work(request: pytest.FixtureRequest) -> Work:
    if request.param == "llvm":
        return work_of(dataset_lines(2), "tenset-cpu")
    return work_of(golden_records(shared("golden/golden_cuda.jsonl.gz")), "tenset-cuda")


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


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_record_lines_to_compact_asts(
    benchmark: BenchmarkFixture, work: Work, threads: int
) -> None:
    library = native_library()
    if library is None:
        pytest.skip("no C++ compiler, or CDMPP_NATIVE=0")
    tasks = [(NativeTask(dag, library), [line.encode() for line in lines]) for dag, lines in work]
    count = sum(len(lines) for _, lines in work)

    def run() -> dict[str, float]:
        total: dict[str, float] = {}
        for task, lines in tasks:
            batch = task.featurise_lines(lines, threads=threads)
            assert not (batch.status == Status.DECLINED).any()
            for phase, seconds in batch.seconds.items():
                total[phase] = total.get(phase, 0.0) + seconds
        return total

    if benchmark.disabled:
        benchmark(run)
        return
    reference = python_seconds(work)
    phases = benchmark.pedantic(run, rounds=5, warmup_rounds=1)
    assert benchmark.stats is not None
    seconds = benchmark.stats.stats.median
    native = {
        "parse": phases["parse"],
        "lower": phases["replay"] + phases["lower"] + phases["simplify"],
        "features": phases["features"],
    }
    total = sum(reference.values())
    benchmark.extra_info.update(
        records=count,
        records_per_s=count / seconds,
        python_records_per_s=count / total,
        ratio=total / seconds,
        native_us={phase: 1e6 * value / count for phase, value in native.items()},
        python_us={phase: 1e6 * value / count for phase, value in reference.items()},
    )
    print(json.dumps(benchmark.extra_info, default=str))
