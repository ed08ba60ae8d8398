"""Modules in TVM's hands: the native walker against the reference, and against TVM's own passes."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

pytest.importorskip("tvm", reason="apache-tvm is not installed")

from cdmpp.analytic.roofline.floor import least_work_of_program
from cdmpp.errors import ReplayError
from cdmpp.programs.added_columns import ACROSS_THREADS_COLUMN
from cdmpp.programs.compact_ast import LEAF_EXTRA_SCHEMA_VERSION, CompactAst
from cdmpp.programs.featurise import is_gpu_kind
from cdmpp.programs.gpu_limits import GpuLimits
from cdmpp.programs.loops.loop_tree import Allocation, Node, children, stores_with_path
from cdmpp.programs.native import NativeBuildError, Status
from tests.programs.ansor.fixture_records import fixture_records
from tests.programs.ansor.small_dags import matmul_relu
from tests.programs.reference.rejection import gpu_violation
from tests.programs.reference.tree import compact_ast
from tests.tvm_helper.sampled import WORKLOADS, sample_schedules, sample_target
from tests.tvm_helper.tir.test_schedule_of_record import GPU, TILED
from tvm_helper.compat import Sequential, block_passes, s_tir, te, tirx, topi, tvm
from tvm_helper.measure.tasks import named_function
from tvm_helper.native import modules as native_module
from tvm_helper.native.modules import NativeModules, modules_library
from tvm_helper.tasks.build import arguments_of
from tvm_helper.tasks.sampling import TargetKind
from tvm_helper.tasks.script import read_script
from tvm_helper.tir import features as module_features
from tvm_helper.tir.features import featurise_modules, module_limits, native_modules
from tvm_helper.tir.loop_tree import loop_tree_from_tir, lowering_passes
from tvm_helper.tir.packing import LAYOUT_FREE, runnable
from tvm_helper.tir.schedule_of_record import replay

pytestmark = pytest.mark.tvm

ACROSS_THREADS = """
@T.prim_func(s_tir=True)
def sums(A: T.Buffer((256, 1024), "float32"), B: T.Buffer((256,), "float32")):
    for i in T.thread_binding(256, thread="blockIdx.x"):
        for k in T.thread_binding(1024, thread="threadIdx.x"):
            with T.sblock("sum"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    B[vi] = T.float32(0)
                B[vi] = B[vi] + A[vi, vk]
"""
#: The second block may run on every thread, the sum is on one.
READ_BY_ALL = """
@T.prim_func(s_tir=True)
def scaled(A: T.Buffer((256, 64), "float32"), B: T.Buffer((256,), "float32")):
    S = T.sblock_alloc_buffer((256,), scope="shared")
    for i in T.thread_binding(256, thread="blockIdx.x"):
        for k0 in range(2):
            for k1 in T.thread_binding(32, thread="threadIdx.x"):
                with T.sblock("sum"):
                    vi = T.axis.spatial(256, i)
                    vk = T.axis.reduce(64, k0 * 32 + k1)
                    with T.init():
                        S[vi] = T.float32(0)
                    S[vi] = S[vi] + A[vi, vk]
        with T.sblock("scale"):
            vi = T.axis.spatial(256, i)
            B[vi] = S[vi] * T.float32(2)
"""
#: What threads reduce along the rows of a matrix, and whether TVM has to lower it.
REDUCED: list[tuple[Callable[[Any], Any], int, str, bool]] = [
    (partial(topi.sum, axis=1), 256, "float32", False),
    (partial(topi.sum, axis=1), 256, "int32", False),
    (partial(topi.prod, axis=1), 256, "float32", False),
    (partial(topi.min, axis=1), 256, "float32", False),
    (partial(topi.max, axis=1), 250, "float32", True),
    (partial(topi.max, axis=1), 256, "float16", True),
    (partial(topi.argmax, axis=1), 256, "float32", True),
]
SAMPLES = 8
TARGET_KINDS = get_args(TargetKind)
CASES = [(kind, workload) for kind in TARGET_KINDS for workload in WORKLOADS]


@lru_cache
def sampled_modules(kind: TargetKind, workload: str) -> list[Any]:
    schedules = sample_schedules(WORKLOADS[workload](), kind, SAMPLES)
    return [schedule.mod for schedule in schedules]


@pytest.fixture(scope="module")
def native() -> NativeModules:
    found = native_modules()
    if found is None:
        pytest.skip("there is no C++ compiler")
    return found


def by_reference(
    modules: Sequence[Any], target: Any, version: int = LEAF_EXTRA_SCHEMA_VERSION
) -> list[CompactAst | ReplayError]:
    """Walks modules in Python and featurises them in Python."""
    complete = version == LEAF_EXTRA_SCHEMA_VERSION
    is_gpu = target is not None and is_gpu_kind(target.kind.name)
    limits = module_limits(target)
    found: list[CompactAst | ReplayError] = []
    for module in modules:
        tree = loop_tree_from_tir(runnable(module), complete=complete)
        tree.is_gpu = tree.is_gpu or is_gpu
        ast = compact_ast(tree).of_version(version)
        reason = ast.reject_reason
        if reason is None and tree.is_gpu and limits is not None:
            reason = gpu_violation(tree, limits)
        found.append(replace(ast, valid=reason is None, reject_reason=reason))
    return found


def assert_same(found: CompactAst | ReplayError, expected: CompactAst | ReplayError) -> None:
    assert isinstance(found, CompactAst)
    assert isinstance(expected, CompactAst)
    assert found.tree.tolist() == expected.tree.tolist()
    assert found.leaf_position.tolist() == expected.leaf_position.tolist()
    assert np.array_equal(found.leaf_features, expected.leaf_features)
    assert np.array_equal(found.leaf_extra, expected.leaf_extra)
    assert (found.valid, found.reject_reason) == (expected.valid, expected.reject_reason)


@pytest.mark.parametrize(("kind", "workload"), CASES)
def test_native_walker_equals_the_reference(
    native: NativeModules, kind: TargetKind, workload: str
) -> None:
    modules, target = sampled_modules(kind, workload), sample_target(kind)
    batch = native.featurise(modules, is_gpu=kind == "cuda", limits=None)
    assert Status.DECLINED not in batch.status
    expected = by_reference(modules, target)
    for found, wanted in zip(featurise_modules(modules, target), expected, strict=True):
        assert_same(found, wanted)
    assert all(isinstance(ast, CompactAst) and len(ast.leaf_features) > 1 for ast in expected)


@pytest.mark.parametrize(("kind", "workload"), CASES)
def test_a_model_of_version_3_gets_the_leaves_that_it_was_trained_on(
    native: NativeModules, kind: TargetKind, workload: str
) -> None:
    modules, target = sampled_modules(kind, workload), sample_target(kind)
    older = featurise_modules(modules, target, version=3)
    for found, wanted in zip(older, by_reference(modules, target, 3), strict=True):
        assert_same(found, wanted)
    for old, new in zip(older, featurise_modules(modules, target), strict=True):
        assert isinstance(old, CompactAst)
        assert isinstance(new, CompactAst)
        if not new.leaf_extra[:, ACROSS_THREADS_COLUMN].any():
            assert_same(new.of_version(3), old)


def test_what_threads_reduce_together_is_read(native: NativeModules) -> None:
    module = read_script(ACROSS_THREADS)[0].module
    (found,), (expected,) = featurise_modules([module], None), by_reference([module], None)
    assert_same(found, expected)
    assert isinstance(found, CompactAst)
    assert found.leaf_extra[:, ACROSS_THREADS_COLUMN].tolist() == [1.0, 0.0]
    read = least_work_of_program(found.leaf_features, found.leaf_extra)
    assert read.bytes[0] == pytest.approx(4 * (256 * 1024 + 256), rel=1e-4)
    (older,) = featurise_modules([module], None, version=3)
    assert isinstance(older, CompactAst)
    assert len(older.leaf_features) == 1


@pytest.mark.parametrize(("reduce", "width", "dtype", "is_left"), REDUCED)
def test_rounds_that_threads_share_equal_the_reference(
    native: NativeModules, reduce: Callable[[Any], Any], width: int, dtype: str, is_left: bool
) -> None:
    rows = te.placeholder((32, width), dtype, name="A")
    function = te.create_prim_func([rows, reduce(rows)])
    modules = [one.mod for one in sample_schedules(function, "cuda", 12)]
    batch = native.featurise(modules, is_gpu=True, limits=None, may_lower=False)
    assert (Status.DECLINED in batch.status) == is_left
    target = sample_target("cuda")
    found = featurise_modules(modules, target)
    for one, wanted in zip(found, by_reference(modules, target), strict=True):
        assert_same(one, wanted)
    shared = [one for one in found if isinstance(one, CompactAst)]
    assert any(one.leaf_extra[:, ACROSS_THREADS_COLUMN].any() for one in shared)


def test_tvm_lowers_what_all_threads_read(native: NativeModules) -> None:
    module = read_script(READ_BY_ALL)[0].module
    batch = native.featurise([module], is_gpu=True, limits=None, may_lower=False)
    assert list(batch.status) == [Status.DECLINED]
    (found,), (expected,) = featurise_modules([module], None), by_reference([module], None)
    assert_same(found, expected)


def test_replayed_records_equal_the_reference(native: NativeModules) -> None:
    modules = [replay(record.dag, record.steps).mod for record in fixture_records()]
    modules += [replay(matmul_relu(*size), TILED).mod for size in ((64, 32, 48), (50, 30, 20))]
    modules += [replay(matmul_relu(*size), GPU).mod for size in ((64, 32, 48), (64, 32, 4))]
    batch = native.featurise(modules, is_gpu=False, limits=None)
    assert Status.DECLINED not in batch.status
    expected = by_reference(modules, None)
    for found, wanted in zip(featurise_modules(modules, None), expected, strict=True):
        assert_same(found, wanted)


@pytest.mark.parametrize("kind", TARGET_KINDS)
def test_a_lowered_module_is_the_same_program(native: NativeModules, kind: TargetKind) -> None:
    target = sample_target(kind)
    for workload in ("matmul", "conv2d_bias_relu", "softmax"):
        modules = sampled_modules(kind, workload)
        lowered = [lowering_passes()(module) for module in modules]
        batch = native.featurise(lowered, is_gpu=kind == "cuda", limits=None, may_lower=False)
        assert Status.DECLINED not in batch.status
        found = featurise_modules(lowered, target, lowered=True)
        for one, other in zip(found, featurise_modules(modules, target), strict=True):
            assert_same(one, other)


def test_threads_change_nothing(native: NativeModules) -> None:
    modules = [m for kind, workload in CASES for m in sampled_modules(kind, workload)]
    alone = featurise_modules(modules, None)
    for found, wanted in zip(featurise_modules(modules, None, threads=2), alone, strict=True):
        assert_same(found, wanted)
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda _: featurise_modules(modules, None), range(2)))
    for results in both:
        for found, wanted in zip(results, alone, strict=True):
            assert_same(found, wanted)


def test_bad_modules_are_values_in_their_places() -> None:
    good = sampled_modules("llvm", "matmul")[0]
    variable = tirx.Var("i", "int32")
    forever = tirx.While(variable < 3, tirx.Evaluate(tirx.const(0, "int32")))
    bad = tvm.IRModule({"main": tirx.PrimFunc([], forever)})
    results = featurise_modules([tvm.IRModule({}), good, bad, good], sample_target("llvm"))
    assert [type(result) for result in results] == [
        ReplayError, CompactAst, ReplayError, CompactAst,
    ]  # fmt: skip
    assert "main" in str(results[0])
    assert "While" in str(results[2])
    assert_same(results[1], results[3])
    assert featurise_modules([], None) == []


def test_what_has_no_constant_shape_is_refused() -> None:
    size = tirx.Var("n", "int32")
    a = te.placeholder((size, 8), name="A")
    b = te.compute((size, 8), lambda i, j: a[i, j] + 1.0, name="B")
    module = tvm.IRModule({"main": te.create_prim_func([a, b])})
    (found,) = featurise_modules([module], None)
    assert isinstance(found, ReplayError)
    assert "constant shape" in str(found)


def branching_module() -> Any:
    """A plain program with a condition of two branches, which the native code declines."""
    source = tirx.decl_buffer((8,), "float32", "source")
    result = tirx.decl_buffer((8,), "float32", "result")
    i = tirx.Var("i", "int32")
    one = tirx.BufferStore(result, tirx.BufferLoad(source, [i]), [i])
    other = tirx.BufferStore(result, tirx.const(0.0, "float32"), [i])
    loop = tirx.For(i, 0, 8, 0, tirx.IfThenElse(i < 5, one, other))
    return tvm.IRModule({"main": tirx.PrimFunc([source, result], loop)})


def test_what_the_native_code_declines_is_walked_in_python(native: NativeModules) -> None:
    module = branching_module()
    batch = native.featurise([module], is_gpu=False, limits=None)
    assert list(batch.status) == [Status.DECLINED]
    (found,) = featurise_modules([module], sample_target("llvm"), lowered=True)
    assert isinstance(found, CompactAst)
    assert len(found.leaf_features) == 2


def test_init_without_decomposition_becomes_a_condition(native: NativeModules) -> None:
    function = WORKLOADS["matmul"]()
    module = tvm.IRModule({"main": function})
    (found,) = featurise_modules([module], sample_target("llvm"))
    assert_same(found, by_reference([module], sample_target("llvm"))[0])
    assert isinstance(found, CompactAst)
    assert len(found.leaf_features) == 2


def test_block_annotations_and_unit_loops_equal_the_reference(native: NativeModules) -> None:
    a = te.placeholder((6, 7), name="A")
    b = te.compute((6, 7), lambda i, j: a[i, j] + 1.0, name="B")
    c = te.compute((6, 7), lambda i, j: b[i, j] * 2.0, name="C")
    schedule = s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func([a, c])}))
    i, j = schedule.get_loops(schedule.get_sblock("C"))
    outer, _ = schedule.split(i, [1, None])
    schedule.annotate(outer, "pragma_auto_unroll_max_step", 16)
    _, inner = schedule.split(j, [None, 4])
    schedule.vectorize(inner)
    schedule.compute_at(schedule.get_sblock("B"), outer)
    schedule.annotate(schedule.get_sblock("B"), "pragma_auto_unroll_max_step", 8)
    batch = native.featurise([schedule.mod], is_gpu=False, limits=None)
    assert list(batch.status) == [Status.VALID]
    (found,) = featurise_modules([schedule.mod], None)
    assert_same(found, by_reference([schedule.mod], None)[0])


def extents_by_tvm(module: Any) -> list[tuple[str, tuple[int, ...]]]:
    """Returns (name, extents) of every allocation as TVM's own compaction has it, sorted."""
    passes = [
        block_passes.LowerCrossThreadReduction(), block_passes.LowerInitBlock(),
        block_passes.PlanAndUpdateBufferAllocationLocation(), block_passes.ConvertBlocksToOpaque(),
        block_passes.CompactBufferAllocation(), block_passes.LowerMatchBuffer(),
        block_passes.LowerOpaqueBlock(),
    ]  # fmt: skip
    found: list[tuple[str, tuple[int, ...]]] = []

    def visit(node: Any) -> None:
        if isinstance(node, tirx.AllocBuffer):
            shape = tuple(int(extent) for extent in node.buffer.shape)
            found.append((str(node.buffer.name), shape))
        for child in getattr(node, "seq", None) or [getattr(node, "body", None)]:
            if child is not None:
                visit(child)
        if isinstance(node, tirx.IfThenElse):
            visit(node.then_case)

    visit(Sequential(passes)(module)["main"].body)
    return sorted(found)


def allocated_extents(module: Any) -> list[tuple[str, tuple[int, ...]]]:
    tree = loop_tree_from_tir(module)
    found: list[tuple[str, tuple[int, ...]]] = []

    def visit(nodes: list[Node]) -> None:
        for node in nodes:
            if isinstance(node, Allocation) and node.buffer not in tree.parameters:
                assert all(isinstance(extent, int) for extent in node.extents)
                found.append((node.buffer.name, tuple(map(int, node.extents))))  # type: ignore[arg-type]
            visit(children(node))

    visit(tree.body)
    return sorted(found)


@pytest.mark.parametrize("kind", TARGET_KINDS)
def test_regions_are_those_of_tvms_compaction(kind: TargetKind) -> None:
    equal = total = 0
    for workload in ("matmul", "conv2d_bias_relu", "depthwise", "batch_matmul"):
        for module in sampled_modules(kind, workload):
            ours, theirs = allocated_extents(module), extents_by_tvm(runnable(module))
            assert [name for name, _ in ours] == [name for name, _ in theirs]
            for (_, mine), (_, other) in zip(ours, theirs, strict=True):
                total += 1
                equal += mine == other
                assert all(a >= b for a, b in zip(mine, other, strict=True))
    assert total > 20
    assert equal / total >= 0.97


def test_limits_come_from_the_target() -> None:
    target = sample_target("cuda")
    assert module_limits(target) == GpuLimits(49152, 1024, 8)
    assert module_limits(sample_target("llvm")) is None
    modules = sampled_modules("cuda", "conv2d_bias_relu")
    free = featurise_modules(modules, None)
    assert all(isinstance(ast, CompactAst) and ast.valid for ast in free)
    tight = featurise_modules(modules, target, limits=GpuLimits(49152, 1, 8))
    assert all(isinstance(ast, CompactAst) and not ast.valid for ast in tight)


def test_without_a_compiler_python_walks_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_module, "library_path", no_compiler)
    assert modules_library.__wrapped__() is None
    monkeypatch.setattr(module_features, "native_modules", lambda: None)
    for kind in TARGET_KINDS:
        modules, target = sampled_modules(kind, "matmul"), sample_target(kind)
        expected = by_reference(modules, target)
        for found, wanted in zip(featurise_modules(modules, target), expected, strict=True):
            assert_same(found, wanted)


def no_compiler(*_: Any, **__: Any) -> None:
    raise NativeBuildError("there is no compiler")


def test_the_library_names_no_folder(native: NativeModules) -> None:
    """It finds `tvm_ffi` by its name, so that it may be moved and shared between environments."""
    path = Path(native._library._name)
    assert b"libtvm_ffi.so" in path.read_bytes()
    shown = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True)
    assert "NEEDED" in shown.stdout
    assert "RPATH" not in shown.stdout
    assert "RUNPATH" not in shown.stdout


def packed_modules() -> list[Any]:
    """Schedules of a matrix product whose weights MetaSchedule has packed."""
    _, function = named_function("dense:m=64,n=64,k=96")
    found = [one.mod for one in sample_schedules(function, "llvm", SAMPLES)]
    assert all("layout_rewrite_preproc" in module.script() for module in found)
    return found


@pytest.mark.parametrize("is_native", [True, False])
def test_what_packs_weights_beforehand_is_no_part_of_a_program(is_native: bool) -> None:
    modules = packed_modules()
    target = sample_target("llvm")
    featurise = featurise_modules if is_native else by_reference
    as_they_run = [runnable(module) for module in modules]
    for found, expected in zip(
        featurise(modules, target), featurise(as_they_run, target), strict=True
    ):
        assert_same(found, expected)
    names = {store.buffer.name for store, _ in stores_with_path(loop_tree_from_tir(modules[0]))}
    assert names
    assert not [name for name in names if "weight" in name]


def test_attributes_of_functions_are_seen(native: NativeModules) -> None:
    free = packed_modules()[0]
    modules = [free, tvm.IRModule({}), runnable(free), free]
    assert native.have_attribute(modules, LAYOUT_FREE) == [True, False, False, True]
    assert native.have_attribute([], LAYOUT_FREE) == []


def test_a_program_is_made_runnable_once() -> None:
    module = packed_modules()[0]
    assert LAYOUT_FREE in module["main"].attrs, "it is not changed"
    found = runnable(module)
    assert runnable(found).same_as(found)
    _, (_, shape), _ = arguments_of(found)
    assert len(shape) > 2
    assert np.prod(shape) == 96 * 64
    plain = tvm.IRModule({"main": module["main"].without_attr(LAYOUT_FREE)})
    assert runnable(plain).same_as(plain)


def test_what_tvm_itself_has_made_runnable_has_features() -> None:
    module = packed_modules()[0]
    passed = block_passes.RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(module)
    assert LAYOUT_FREE in passed["main"].attrs
    target = sample_target("llvm")
    (found,), (expected,) = (featurise_modules([one], target) for one in (passed, module))
    assert_same(found, expected)
