"""Features and work of a TVM program, before a model predicts it."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cdmpp.analytic.roofline.programs import leaf_work
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DataError, ReplayError
from cdmpp.predict.prediction import misfit
from cdmpp.programs.added_columns import ACROSS_THREADS_COLUMN
from cdmpp.programs.compact_ast import (
    FIRST_WITH_ACROSS_THREADS,
    LEAF_EXTRA_SCHEMA_VERSION,
    CompactAst,
)
from cdmpp.programs.featurise import compact_asts, is_gpu_kind
from cdmpp.programs.gpu_limits import GpuLimits
from cdmpp.programs.loops.loop_tree import Loop, LoopTree, stores_with_path
from cdmpp.programs.work import WORK_COLUMNS, ProgramWork, as_floats, program_work
from tvm_helper.compat import Target, shash2hex
from tvm_helper.tasks.default_schedule import default_schedule
from tvm_helper.tasks.operator_name import operator_of
from tvm_helper.tir.features import featurise_modules, module_limits, read_loop_tree
from tvm_helper.tir.loop_tree import loop_tree_from_tir
from tvm_helper.tir.named_program import NamedProgram, is_scheduled
from tvm_helper.tir.symbolic import symbolic_sizes

#: Note on a program that TVM's default rules scheduled.
AS_DEFAULT = "as DLight would schedule it"
#: Ratio of a program's work to that in its features above which the features are incomplete.
#: A buffer that is read and written counts twice in the work and once in the rounded features.
_UNSEEN = 2.1
#: A GPU is mostly idle with fewer threads than `_WARP`, if there are more than `_FEW` operations.
_WARP, _FEW = 32, 1e4
#: Integer operations per byte above which they may dominate a program's time.
_BUSY = 2.0
_UNTRAINED_TYPES = ("float8", "float6", "float4")


@dataclass(frozen=True)
class Looks:
    """Facts about a program.

    Attributes:
        operator: operator name; empty if unknown.
        is_scheduled: whether the program has a schedule.
        is_gpu: whether the program is a GPU kernel; None if it cannot be read.
        workload_key: key that is equal for programs of equal structure.
    """

    operator: str
    is_scheduled: bool
    is_gpu: bool | None
    workload_key: str


def look_at(module: Any) -> Looks:
    """Returns facts about a program."""
    try:
        operator = operator_of(module)
    except Exception:  # a module without blocks has no names
        operator = ""
    key = str(shash2hex(module))
    tree = read_loop_tree(module, is_gpu=False)
    if isinstance(tree, ReplayError):  # featurising reports the reason
        return Looks(operator, True, None, key)
    return Looks(operator, is_scheduled(tree), tree.is_gpu, key)


def unsized(module: Any) -> str:
    """Returns a message about the symbolic sizes of a program; empty without symbolic sizes."""
    missing = symbolic_sizes(module)
    if not missing:
        return ""
    given = " ".join(f"--set {name}=4096" for name in missing)
    return f"it has symbolic sizes: {', '.join(missing)}; set them, e.g. {given}"


def fit(
    program: NamedProgram, looks: Looks, device: DeviceSpec, target: Target
) -> NamedProgram | str:
    """Returns the program for a device, or the reason why the device cannot run it. TVM's default
    rules schedule an unscheduled program for a GPU.
    """
    reason = None if looks.is_gpu is None else misfit(device, is_gpu=looks.is_gpu)
    if reason is None:
        return program
    if looks.is_gpu or looks.is_scheduled or device.kind != "gpu":
        return reason
    try:
        module = default_schedule(program.module, target).mod
    except DataError as error:
        return f"it has no thread bindings, {device.name} is a GPU; {error}; schedule it for one"
    note = "; ".join(filter(None, (program.note, AS_DEFAULT)))
    return NamedProgram(program.name, module, note=note, source=program.module)


@dataclass(frozen=True)
class ProgramReading:
    """Input of a model for a program.

    Attributes:
        ast: compact AST of the program, or of a similar program if the model's features lack a
            large part of its work.
        tree: the loop tree of `ast`.
        work: lower bounds of the program's work.
        doubts: reasons why the prediction may be wrong, even with machine code.
        types: types of its data that are not in the training data.
    """

    ast: CompactAst
    tree: LoopTree
    work: ProgramWork
    doubts: tuple[str, ...]
    types: tuple[str, ...] = ()

    @property
    def reasons(self) -> tuple[str, ...]:
        """All reasons why the prediction may be wrong."""
        if not self.types:
            return self.doubts
        return (*self.doubts, f"it has data of {', '.join(self.types)}, not in the training data")


def read_program(
    module: Any,
    target: Target,
    source: Any = None,
    *,
    version: int = LEAF_EXTRA_SCHEMA_VERSION,
) -> ProgramReading | str:
    """Returns the model's input for a program, or the reason why it cannot be predicted.

    Args:
        source: the unscheduled module, if TVM's default rules scheduled it; else None.
        version: version of the added leaf columns that the model was trained on.
    """
    ast = features_of(module, target, version)
    if isinstance(ast, str):
        return ast if source is None else f"{AS_DEFAULT}, {ast}"
    is_gpu = is_gpu_kind(target.kind.name)
    complete = read_loop_tree(module, is_gpu)
    if isinstance(complete, ReplayError):
        return str(complete)
    if host := _on_host(complete):
        return (
            f"the store to {host} is outside of the thread bindings, so the host would run it; "
            "bind its loops to threads too"
        )
    work = program_work(complete)
    seen = leaf_work(ast.leaf_features)
    types = () if is_gpu else _untrained_types(complete)
    doubts = []
    is_hidden = work.bytes > _UNSEEN * seen.bytes.sum() or work.flop > _UNSEEN * seen.flop.sum()
    if is_hidden:
        doubts.append(
            "it reduces across threads, whose reads the model's features lack" if is_gpu else
            "the model's features lack most of its bytes or operations"
        )  # fmt: skip
    has_all_leaves = version >= FIRST_WITH_ACROSS_THREADS
    if has_all_leaves and np.any(ast.leaf_extra[:, ACROSS_THREADS_COLUMN] > 0):
        doubts.append("it reduces across threads, which is rare in the training data")
    is_integer = not has_all_leaves and work.integer_op > max(work.flop, _BUSY * work.bytes)
    if is_integer:
        doubts.append(
            "its arithmetic is on integers, which are not in the training data: predicted as "
            "the same program on float32"
        )
    if 0 < work.threads < _WARP and work.flop + work.integer_op > _FEW:
        doubts.append(
            f"it runs on {work.threads:.0f} of the GPU's threads, sequentially; bind loops to "
            "threads, or give the unscheduled program"
        )
    if work.uncounted:
        calls = ", ".join(work.uncounted)
        doubts.append(f"it calls {calls}, whose operations are not counted")
        work = _at_least(work, source)
    if not is_hidden and not is_integer:
        tree = complete if has_all_leaves else loop_tree_from_tir(module, complete=False)
        return ProgramReading(ast, tree, work, tuple(doubts), types)
    tree = as_floats(complete) if is_integer else complete
    (found,) = compact_asts([tree], [_hardware_limits(target)])
    if isinstance(found, ReplayError):
        return str(found)
    return ProgramReading(found.of_version(version), tree, work, tuple(doubts), types)


def _on_host(tree: LoopTree) -> str:
    """Returns the buffer of a store without a thread binding beside stores with one; else empty."""
    hosts, is_bound = [], False
    for store, path in stores_with_path(tree):
        if any(isinstance(node, Loop) and "Idx" in node.kind for node in path):
            is_bound = True
        else:
            hosts.append(str(store.buffer.name))
    return hosts[0] if hosts and is_bound else ""


def _untrained_types(tree: LoopTree) -> tuple[str, ...]:
    """Returns types that no measured CPU program has: floats of 8 bits and less."""
    names = {one.dtype for one in tree.parameters}
    return tuple(sorted(name for name in names if name.startswith(_UNTRAINED_TYPES)))


def _at_least(work: ProgramWork, source: Any) -> ProgramWork:
    """Returns the maximum of the work of a program that calls matrix units and of its source.

    All FLOPs of the source count as narrow: matrix units multiply narrow operands into a wide sum,
    which the source counts as wide. In a program with a parameter in fp8 or fp4 they count as such.
    """
    tree = None if source is None else read_loop_tree(source, is_gpu=False)
    if tree is None or isinstance(tree, ReplayError):
        return work
    found = program_work(tree)
    types = {one.dtype[:6] for one in tree.parameters}
    column = "fp4_flop" if "float4" in types else "fp8_flop" if "float8" in types else "narrow_flop"
    least = replace(
        found, wide_flop=0.0, double_flop=0.0, narrow_flop=0.0, fp8_flop=0.0, fp4_flop=0.0
    )
    values = {name: getattr(least, name) for name in WORK_COLUMNS} | {column: found.flop}
    return replace(work, **{name: max(getattr(work, name), values[name]) for name in WORK_COLUMNS})


def features_of(
    module: Any, target: Target, version: int = LEAF_EXTRA_SCHEMA_VERSION
) -> CompactAst | str:
    """Returns a program's compact AST, or the reason why it cannot be predicted."""
    limits = _hardware_limits(target)
    (ast,) = featurise_modules([module], target, limits=limits, version=version)
    if isinstance(ast, ReplayError):
        return str(ast)
    if len(ast.leaf_features) == 0:
        tree = read_loop_tree(module, is_gpu=False)
        calls = "" if isinstance(tree, ReplayError) else ", ".join(tree.uncounted)
        return "it stores nothing" + (f": it calls {calls}, whose work is unknown" if calls else "")
    return ast if ast.valid else ast.reject_reason or "invalid program"


def _hardware_limits(target: Target) -> GpuLimits | None:
    """Returns the limits of a kernel without Ansor's limit on virtual threads, which only bounds
    its search: GPUs run such kernels, and MetaSchedule samples them.
    """
    limits = module_limits(target)
    return None if limits is None else replace(limits, vthreads=sys.maxsize)
