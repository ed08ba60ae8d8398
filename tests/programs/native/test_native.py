"""The native featuriser equals the Python reference; its build; damaged input."""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from cdmpp.datasets.read_report import ReadReport
from cdmpp.datasets.tenset.folder import default_dataset_dir, load_tasks, read_records
from cdmpp.datasets.tenset.record_line import parse_record
from cdmpp.datasets.tenset.task_index import TaskIndex
from cdmpp.errors import DataError, ReplayError
from cdmpp.programs.ansor.dag import Axis, Dag, DagOp, parse_dag
from cdmpp.programs.compact_ast import LEAF_EXTRA_COUNT, CompactAst
from cdmpp.programs.featurise import featurise_records, is_gpu_kind
from cdmpp.programs.featurise import native_batch as batch_of_records
from cdmpp.programs.gpu_limits import GpuLimits, gpu_limits
from cdmpp.programs.loops.expr import Buffer, Expr, int_var, load
from cdmpp.programs.native import NativeBatch, NativeTask, Status, build, native_library
from cdmpp.programs.native.build import NativeBuildError, is_ours, library_path
from cdmpp.programs.native.compiler import FLAGS, SOURCE_DIR
from cdmpp.records import MeasureRecord, TensetTask
from tests.fuzz.mutate import mutate_bytes
from tests.paths import ROOT, SHARED_DATA, shared
from tests.programs.ansor.fixture_records import fixture_records, record_with
from tests.programs.ansor.small_dags import matmul_relu
from tests.programs.native.native_fuzz import (
    Seed,
    difference,
    fixture_seeds,
    golden_records,
    golden_seeds,
    mutated,
    mutations_of,
    native_batch,
    python_outcome,
    sanitized_environment,
)
from tests.programs.reference.featurise import featurise_record

LIMITS = GpuLimits(49152, 1024, 8)


@pytest.fixture(scope="module")
def library() -> Any:
    return native_library()


def compare(library: Any, index: TaskIndex, lines: Iterable[str]) -> Counter[str]:
    """Compares lines with the reference; returns how many there were of each status."""
    by_task = defaultdict(list)
    for line in lines:
        record = parse_record(line)
        by_task[record.workload_key, record.target_kind].append(record)
    counts: Counter[str] = Counter()
    for key, records in by_task.items():
        task = index.find(*key)
        assert task is not None
        dag = parse_dag(task.dag_json)
        batch = batch_of_records(NativeTask(dag, library), records)
        for number, record in enumerate(records):
            limits, is_gpu = gpu_limits(record.hardware_params), is_gpu_kind(record.target_kind)
            expected = python_outcome(Seed(dag, [], is_gpu, limits), list(record.steps))
            assert expected is not None
            assert difference(batch, number, expected) is None, record
            counts[Status(int(batch.status[number])).name] += 1
    return counts


@pytest.mark.slow
@pytest.mark.parametrize("every", [24, pytest.param(1, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(
    ("name", "folder", "lines"),
    [("llvm", "tenset-cpu", 940), ("cuda", "tenset-cuda", 1700), ("gpu", "ansor-gpu", 965)],
)
def test_golden_lines_equal_the_reference(
    library: Any, name: str, folder: str, lines: int, every: int
) -> None:
    path = shared(f"golden/golden_{name}.jsonl.gz")
    chosen = list(golden_records(path))[::every]
    counts = compare(library, load_tasks(shared(f"{folder}/network_info")), chosen)
    assert set(counts) <= {"VALID", "REJECTED"}
    assert counts["VALID"] > 0
    assert counts.total() == -(-lines // every)


def dataset_lines(every: int) -> list[str]:
    """Returns every n-th record line of one device of the shipped dataset."""
    paths = sorted((default_dataset_dir() / "measure_records" / "xeon-avx512-2c").iterdir())
    lines = []
    for path in paths:
        for record in read_records(path, ReadReport(), keep_unmeasured=True):
            task = [record.workload_key, record.target, list(record.hardware_params), "", 0, []]
            value = {"i": [task, [[], list(record.steps)]], "r": [[1], 0, 1, 1], "v": "v0.6"}
            lines.append(json.dumps(value))
    return lines[::every]


@pytest.mark.parametrize(
    "every", [60, pytest.param(4, marks=(pytest.mark.slow, pytest.mark.exhaustive))]
)
def test_shipped_programs_equal_the_reference(library: Any, every: int) -> None:
    index = load_tasks(default_dataset_dir() / "network_info")
    lines = dataset_lines(every)
    counts = compare(library, index, lines)
    assert counts["VALID"] >= 0.95 * len(lines) > 20
    assert counts["DECLINED"] == counts["FAILED"] == 0


def test_mutated_programs_equal_the_reference(library: Any) -> None:
    fuzz(library, fixture_seeds(), 400, seed=2, least_decided=200)


@pytest.mark.slow
@pytest.mark.parametrize("count", [200, pytest.param(20_000, marks=pytest.mark.exhaustive)])
def test_mutated_golden_programs_equal_the_reference(library: Any, count: int) -> None:
    seeds = fixture_seeds()
    for name, folder in (("cuda", "tenset-cuda"), ("gpu", "ansor-gpu"), ("llvm", "tenset-cpu")):
        path, info = shared(f"golden/golden_{name}.jsonl.gz"), shared(f"{folder}/network_info")
        seeds += golden_seeds(path, info, every=40)
    fuzz(library, seeds, count, seed=3, least_decided=count * 3 // 5)


def fuzz(
    library: Any, seeds: list[Seed], count: int, *, seed: int, least_decided: int
) -> Counter[Status]:
    counts: Counter[Status] = Counter()
    for program, mutations in mutations_of(seeds, count, seed=seed):
        batch = native_batch(NativeTask(program.dag, library), program, mutations)
        for number, steps in enumerate(mutations):
            found = difference(batch, number, python_outcome(program, steps))
            assert found is None, (found, json.dumps(steps))
            counts[Status(int(batch.status[number]))] += 1
    assert counts.total() == count
    assert counts.total() - counts[Status.DECLINED] >= least_decided
    assert counts[Status.FAILED]
    assert counts[Status.VALID]
    return counts


def assert_equal(left: NativeBatch, right: NativeBatch) -> None:
    for name in (
        "status", "leaf_offset", "leaf_features", "leaf_extra", "leaf_position", "tree_offset",
        "tree",
    ):  # fmt: skip
        assert np.array_equal(getattr(left, name), getattr(right, name)), name
    assert (left.reasons, left.details) == (right.reasons, right.details)


def test_threads_give_the_same_as_one(library: Any) -> None:
    record = record_with("CHW")
    rng = random.Random(5)
    texts = [json.dumps(mutated(record.steps, rng)).encode() for _ in range(200)]
    task = NativeTask(record.dag, library)
    few = {"is_gpu": [False] * 200, "limits": [None] * 200}
    one = task.featurise_steps(texts, **few)  # type: ignore[arg-type]
    assert_equal(one, task.featurise_steps(texts, **few, threads=3))  # type: ignore[arg-type]
    results: list[NativeBatch] = []
    callers = [
        Thread(target=lambda: results.append(task.featurise_steps(texts, **few)))  # type: ignore[arg-type]
        for _ in range(3)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(results) == 3
    for result in results:
        assert_equal(one, result)


def test_an_empty_batch(library: Any) -> None:
    batch = NativeTask(matmul_relu(), library).featurise_steps([], is_gpu=[], limits=[])
    assert batch.leaf_features.shape == (0, 164)
    assert batch.leaf_extra.shape == (0, LEAF_EXTRA_COUNT)
    assert batch.status.size == batch.tree.size == len(batch.reasons) == 0


def test_gpu_limits_and_failures_are_named(library: Any) -> None:
    too_many = [["FU", 3, [0, 1]], ["AN", 3, 0, 6]]
    task = NativeTask(matmul_relu(), library)
    texts = [json.dumps(steps).encode() for steps in (too_many, too_many, [["AN", 9, 0, 1]])]
    batch = task.featurise_steps(texts, is_gpu=[True] * 3, limits=[LIMITS, None, LIMITS])
    assert batch.status.tolist() == [Status.REJECTED, Status.VALID, Status.FAILED]
    assert batch.reasons[0] == "threads per block (2048) are above the limit (1024)"
    assert (batch.reasons[2], batch.details[2]) == ("stage index out of range", "9 of 4 stages")


@pytest.mark.parametrize("text", ["", "{}", "1", "[[]]", "[[1]]", '[["CI", 1]', '[["CI", 1]] 2'])
def test_what_is_no_list_of_steps_is_declined(library: Any, text: str) -> None:
    task = NativeTask(matmul_relu(), library)
    batch = task.featurise_steps([text.encode()], is_gpu=[False], limits=[None])
    assert batch.status.tolist() == [Status.DECLINED]
    assert batch.reasons[0]
    assert batch.leaf_offset.tolist() == [0, 0]


def test_damaged_steps_never_crash(library: Any) -> None:
    record = record_with("RF")
    rng, text = random.Random(4), json.dumps(record.steps).encode()
    texts = [mutate_bytes(rng, text) for _ in range(3000)]
    batch = NativeTask(record.dag, library).featurise_steps(
        texts, is_gpu=[False] * 3000, limits=[None] * 3000, threads=2
    )
    assert (batch.status == Status.DECLINED).sum() > 2000
    for number in np.flatnonzero(batch.status != Status.DECLINED):
        steps = json.loads(texts[number].decode())
        outcome = python_outcome(Seed(record.dag, [], False, None), steps)
        assert difference(batch, int(number), outcome) is None


def test_a_computation_without_native_form(library: Any) -> None:
    dag = matmul_relu()
    huge = Buffer("A", "float32", (2**70,))
    with pytest.raises(DataError, match="Cannot represent a computation"):
        NativeTask(Dag((DagOp("A", "placeholder", (huge,)), *dag.ops[1:]), (3,), ()), library)
    deep = Expr("const", "float32", (), 1.0)
    for _ in range(300):
        deep = Expr("add", "float32", (deep, deep))
    body = DagOp("D", "compute", dag.ops[3].outputs, dag.ops[3].axes, (), (deep,))
    with pytest.raises(DataError, match="nested deeply"):
        NativeTask(Dag((*dag.ops[:3], body), (3,), ()), library)


def task_and_records() -> tuple[TensetTask, list[MeasureRecord]]:
    record = record_with("CHW")
    task = TensetTask(record.workload_key, "llvm", "llvm", record.dag_json, ())
    programs: list[list[Any]] = [
        record.steps,
        [["AN", 99, 0, 1]],
        [["AN", None, 0, 1]],
        [["AN", 2**70, 0, 1]],
        [["AN", "\ud800", 0, 1]],
    ]
    records = [
        MeasureRecord(record.workload_key, "llvm", "llvm", "d", (), tuple(p), (), 0, 0, 0, "v0.6")
        for p in programs
    ]
    return task, records


def test_featurise_records_gives_what_the_reference_gives() -> None:
    task, records = task_and_records()
    dag = parse_dag(task.dag_json)
    native = featurise_records(task, records)
    python = [featurise_record(dag, record) for record in records]
    assert isinstance(native[0], CompactAst)
    assert isinstance(python[0], CompactAst)
    for name in ("leaf_features", "leaf_extra", "leaf_position", "tree"):
        left, right = getattr(native[0], name), getattr(python[0], name)
        assert np.array_equal(left, right)
        assert (left.dtype, left.shape) == (right.dtype, right.shape)
    assert native[0].valid
    assert native[0].reject_reason is None
    for ours, theirs in zip(native[1:], python[1:], strict=True):
        assert isinstance(ours, ReplayError)
        assert isinstance(theirs, ReplayError)
        assert (str(ours), ours.reason) == (str(theirs), theirs.reason)


def test_without_a_compiler_there_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(NativeBuildError, match=r"no-such-compiler.*Install g\+\+"):
        library_path(cache_dirs=[tmp_path])


def test_an_installation_without_the_library_never_compiles(
    monkeypatch: pytest.MonkeyPatch, fake_compiler: Path
) -> None:
    monkeypatch.setattr(build, "is_checkout", lambda: False)
    monkeypatch.setattr(build, "library_name", lambda: "featurise-0.so")
    with pytest.raises(NativeBuildError, match="Reinstall cdmpp"):
        native_library.__wrapped__()
    assert not (fake_compiler / "calls").exists()


def test_turning_it_off_is_ignored_with_a_warning(
    library: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CDMPP_NATIVE", "0")
    with caplog.at_level(logging.WARNING, logger="cdmpp"):
        assert native_library.__wrapped__()._name == library._name
    (warning,) = caplog.records
    assert "CDMPP_NATIVE=0 is ignored" in warning.getMessage()


@pytest.fixture
def fake_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler that writes its process number as the library and counts its calls."""
    script = tmp_path / "compiler"
    script.write_text(
        "#!/bin/sh\n"
        f'echo call >> "{tmp_path}/calls"\n'
        'while [ "$1" != -o ]; do shift; done\n'
        'sleep 0.3; echo $$ > "$2"\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    return tmp_path


def test_the_library_is_compiled_once(fake_compiler: Path) -> None:
    folder = fake_compiler / "cache"
    first = library_path(cache_dirs=[folder])
    assert library_path(cache_dirs=[folder]) == first
    assert (fake_compiler / "calls").read_text() == "call\n"
    assert library_path([*FLAGS, "-g"], cache_dirs=[folder]) != first
    assert sorted(folder.iterdir()) == sorted(folder.glob("featurise-*.so"))


def test_what_a_killed_build_left_goes_with_the_next(fake_compiler: Path) -> None:
    folder = fake_compiler / "cache"
    folder.mkdir()
    (folder / f"featurise-0.so.abc.{2**22 + 1}.tmp").write_text("half")  # no such process
    (folder / f"featurise-0.so.abc.{os.getpid()}.tmp").write_text("being written")
    made = library_path(cache_dirs=[folder])
    left = folder / f"featurise-0.so.abc.{os.getpid()}.tmp"
    assert sorted(folder.iterdir()) == sorted([made, left])


def test_two_builds_at_once_leave_one_whole_library(fake_compiler: Path) -> None:
    folder = fake_compiler / "cache"
    paths: list[Path] = []
    builds = [
        Thread(target=lambda: paths.append(library_path(cache_dirs=[folder]))) for _ in range(2)
    ]
    for thread in builds:
        thread.start()
    for thread in builds:
        thread.join()
    assert paths[0] == paths[1]
    assert list(folder.iterdir()) == [paths[0]]
    assert paths[0].read_text().strip().isdigit()


def test_the_next_folder_is_taken_where_one_cannot_be_written(fake_compiler: Path) -> None:
    blocked = fake_compiler / "file"
    blocked.write_text("")
    path = library_path(cache_dirs=[blocked / "below", fake_compiler / "user"])
    assert path.parent == fake_compiler / "user"
    with pytest.raises(NativeBuildError, match="XDG_CACHE_HOME"):
        library_path(["-O0"], cache_dirs=[blocked / "below"])


def test_a_library_that_others_could_have_written_is_not_taken(fake_compiler: Path) -> None:
    shared, own = fake_compiler / "shared", fake_compiler / "own"
    first = library_path(cache_dirs=[shared, own])
    assert first.parent == shared
    shared.chmod(0o777)
    second = library_path(cache_dirs=[shared, own])
    assert second == own / first.name
    assert (fake_compiler / "calls").read_text() == "call\n" * 2
    before = second.stat().st_ino
    second.chmod(0o666)
    assert library_path(cache_dirs=[shared, own]) == second
    assert second.stat().st_ino != before, "compiled anew in its place"
    assert is_ours(second)
    assert not is_ours(own / "nothing")
    with pytest.raises(NativeBuildError, match="by this user only"):
        library_path(cache_dirs=[shared])


def test_the_library_is_bound_to_its_sources(fake_compiler: Path) -> None:
    sources, folder = fake_compiler / "src", fake_compiler / "cache"
    shutil.copytree(SOURCE_DIR, sources)
    source = sources / "featurise.cc"
    first = library_path(cache_dirs=[folder], source=source)
    header = sources / "common.hpp"
    header.write_text(header.read_text() + "\n")
    assert library_path(cache_dirs=[folder], source=source) != first


def test_a_failing_compiler_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(NativeBuildError, match="C\\+\\+17 compiler"):
        library_path(["--no-such-flag"], cache_dirs=[tmp_path])
    assert list(tmp_path.iterdir()) == []


def test_something_else_is_not_loaded(tmp_path: Path) -> None:
    other = tmp_path / "featurise-0.so"
    other.write_text("not a library")
    with pytest.raises(NativeBuildError, match="delete it"):
        build.load_library(other)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_sanitizers_find_nothing(tmp_path: Path) -> None:
    """Address and undefined behaviour sanitizers over mutated programs and damaged texts."""
    try:
        path, environment = sanitized_environment(tmp_path)
    except NativeBuildError as error:
        pytest.skip(f"no sanitizers here: {error}")
    files: list[str] = []
    for name, folder in (("cuda", "tenset-cuda"), ("gpu", "ansor-gpu")):
        golden, info = f"golden/golden_{name}.jsonl.gz", f"{folder}/network_info"
        if (SHARED_DATA / golden).exists():
            files += [str(SHARED_DATA / golden), str(SHARED_DATA / info)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.programs.native.native_fuzz", str(path), "30000", *files],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    counts = json.loads(done.stdout)
    assert counts["VALID"] > 2_500
    assert counts["FAILED"] > 10_000


#: More than the native code's numbers hold, and more than a float.
_HUGE = (2**63, -(2**63) - 1, 2**64, 10**400)


def _places(value: Any, above: tuple[int, ...] = ()) -> Iterable[tuple[int, ...]]:
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from _places(item, (*above, number))
    elif type(value) is int:
        yield above


def _with(steps: list[Any], place: tuple[int, ...], value: int) -> list[Any]:
    """Returns steps with another number at a place."""
    changed = json.loads(json.dumps(steps))
    inner = changed
    for number in place[:-1]:
        inner = inner[number]
    inner[place[-1]] = value
    return list(changed)


@pytest.mark.parametrize("count", [3, pytest.param(6, marks=pytest.mark.exhaustive)])
def test_numbers_beyond_64_bits_get_the_same_sentence(library: Any, count: int) -> None:
    for seed in fixture_seeds()[:count]:
        programs = [
            _with(seed.steps, place, value) for place in _places(seed.steps) for value in _HUGE
        ]
        batch = native_batch(NativeTask(seed.dag, library), seed, programs)
        for number, steps in enumerate(programs):
            expected = python_outcome(seed, steps)
            assert expected is not None, f"another error than a reason: {steps}"
            assert difference(batch, number, expected) is None, steps


@pytest.mark.parametrize(("stages", "is_fine"), [(8, True), (20, False), (40, False)])
def test_expressions_that_double_with_every_inlined_stage_end(
    library: Any, stages: int, is_fine: bool
) -> None:
    buffers = [Buffer(f"B{number}", "float32", (8,)) for number in range(stages + 1)]
    ops = [DagOp("B0", "placeholder", (buffers[0],))]
    for before, after in pairwise(buffers):
        read = load(before, (int_var("i"),))
        twice = Expr("add", "float32", (read, read))
        axes = (Axis("i", 8),)
        ops.append(DagOp(after.name, "compute", (after,), axes, (), (twice,), None, (before,)))
    steps = [["CI", number] for number in range(stages - 1, 0, -1)]
    seed = Seed(Dag(tuple(ops), (stages,), (buffers[0], buffers[-1])), steps, False, None)
    expected = python_outcome(seed, steps)
    assert isinstance(expected, CompactAst) == is_fine
    assert is_fine or expected == f"expression too large after inlining: B{stages}"
    batch = native_batch(NativeTask(seed.dag, library), seed, [steps])
    assert difference(batch, 0, expected) is None
    assert int(batch.status[0]) != Status.DECLINED


def test_a_record_of_too_many_steps_ends(library: Any) -> None:
    steps = [["PR", 2, 0, "auto_unroll_max_step$16"]] * 5000
    seed = Seed(matmul_relu(), steps, False, None)
    expected = python_outcome(seed, steps)
    assert expected == "too many steps: 5000, at most 4096"
    batch = native_batch(NativeTask(seed.dag, library), seed, [steps, steps[:4096]])
    assert difference(batch, 0, expected) is None
    assert int(batch.status[0]) == Status.FAILED
    assert difference(batch, 1, python_outcome(seed, steps[:4096])) is None


def test_what_is_not_represented_is_a_reason() -> None:
    program = fixture_records()[0]
    split = next(step for step in program.steps if step[0] == "SP")
    huge = [*program.steps[: program.steps.index(split)], [*split[:4], [2**62, 2**62], split[5]]]
    task = TensetTask(program.workload_key, "llvm", "llvm", program.dag_json, ())
    records = [
        MeasureRecord("k", "llvm", "llvm", "d", (), tuple(steps), (), 0, 0, 0, "v0.6")
        for steps in (huge, program.steps)
    ]
    found, other = featurise_records(task, records)
    assert str(found) == "unsupported program: argument of a step"
    assert isinstance(other, CompactAst)
