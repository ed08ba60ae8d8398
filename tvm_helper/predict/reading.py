"""What can be told of a program in TVM's hands before any model is asked."""

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
from cdmpp.programs.compact_ast import LEAF_EXTRA_SCHEMA_VERSION, CompactAst
from cdmpp.programs.featurise import compact_asts, is_gpu_kind
from cdmpp.programs.gpu_limits import GpuLimits
from cdmpp.programs.loops.loop_tree import LoopTree
from cdmpp.programs.work import WORK_COLUMNS, ProgramWork, as_floats, program_work
from tvm_helper.compat import Target, shash2hex
from tvm_helper.tasks.default_schedule import default_schedule
from tvm_helper.tasks.operator_name import operator_of
from tvm_helper.tir.features import featurise_modules, module_limits, read_loop_tree
from tvm_helper.tir.loop_tree import loop_tree_from_tir
from tvm_helper.tir.named_program import NamedProgram, is_scheduled
from tvm_helper.tir.symbolic import symbolic_sizes

#: Said of a program that TVM's default rules scheduled.
AS_DEFAULT = "as DLight would schedule it"
#: A model does not see a program of which its features have less than one part in so many.
_UNSEEN = 2.0
#: Fewer threads than these leave most of a GPU idle, unless there is hardly anything to do.
_WARP, _FEW = 32, 1e4
#: Integer operations a byte above which they may be what a program's time goes into.
_BUSY = 2.0


@dataclass(frozen=True)
class Looks:
    """What a program looks like.

    Attributes:
        operator: its operator name; empty where it cannot be told.
        is_scheduled: whether it has a schedule.
        is_gpu: whether it is a GPU kernel; None where it cannot be read.
        workload_key: equal for programs of equal structure.
    """

    operator: str
    is_scheduled: bool
    is_gpu: bool | None
    workload_key: str


def look_at(module: Any) -> Looks:
    """Returns what a program looks like."""
    try:
        operator = operator_of(module)
    except Exception:  # a module without blocks has no names to read
        operator = ""
    key = str(shash2hex(module))
    tree = read_loop_tree(module, is_gpu=False)
    if isinstance(tree, ReplayError):  # the features say why
        return Looks(operator, True, None, key)
    return Looks(operator, is_scheduled(tree), tree.is_gpu, key)


def unsized(module: Any) -> str:
    """Returns what is missing of a program with symbolic sizes; empty where nothing is."""
    missing = symbolic_sizes(module)
    if not missing:
        return ""
    given = " ".join(f"--set {name}=4096" for name in missing)
    return f"it has symbolic sizes: {', '.join(missing)}; set them, e.g. {given}"


def fit(
    program: NamedProgram, looks: Looks, device: DeviceSpec, target: Target
) -> NamedProgram | str:
    """Returns a program as a device runs it, or why the device cannot: what nobody scheduled is
    scheduled for a GPU by TVM's default rules.
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
    """A program as a model is asked about it.

    Attributes:
        ast: its compact AST; where a model cannot see all of its work, that of the program nearest
            to it that the model can.
        tree: the loop tree of `ast`.
        work: what it does at the least.
        doubts: why a model cannot see all of its work.
    """

    ast: CompactAst
    tree: LoopTree
    work: ProgramWork
    doubts: tuple[str, ...]


def read_program(
    module: Any,
    target: Target,
    source: Any = None,
    *,
    version: int = LEAF_EXTRA_SCHEMA_VERSION,
) -> ProgramReading | str:
    """Returns what a model is asked of a program, or why it cannot be predicted.

    Args:
        source: the module that TVM's default rules scheduled; None where they did not.
        version: of the added leaf columns, as the model was trained on.
    """
    ast = features_of(module, target, version)
    if isinstance(ast, str):
        return ast if source is None else f"{AS_DEFAULT}, {ast}"
    is_gpu = is_gpu_kind(target.kind.name)
    complete = read_loop_tree(module, is_gpu)
    if isinstance(complete, ReplayError):
        return str(complete)
    work = program_work(complete)
    seen = leaf_work(ast.leaf_features)
    doubts = []
    is_hidden = work.bytes > _UNSEEN * seen.bytes.sum() or work.flop > _UNSEEN * seen.flop.sum()
    if is_hidden:
        doubts.append(
            "it reduces across threads, whose reads the model's features lack" if is_gpu else
            "the model's features lack most of its bytes or operations"
        )  # fmt: skip
    is_current = version == LEAF_EXTRA_SCHEMA_VERSION
    if is_current and np.any(ast.leaf_extra[:, ACROSS_THREADS_COLUMN] > 0):
        doubts.append("it reduces across threads, which is rare in the training data")
    is_integer = not is_current and work.integer_op > max(work.flop, _BUSY * work.bytes)
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
        tree = complete if is_current else loop_tree_from_tir(module, complete=False)
        return ProgramReading(ast, tree, work, tuple(doubts))
    tree = as_floats(complete) if is_integer else complete
    (found,) = compact_asts([tree], [_hardware_limits(target)])
    if isinstance(found, ReplayError):
        return str(found)
    return ProgramReading(found.of_version(version), tree, work, tuple(doubts))


def _at_least(work: ProgramWork, source: Any) -> ProgramWork:
    """Returns the larger of what was counted of a program that calls matrix units, and of its
    source: there, a product of narrow operands with a wide sum is wide, on these units it is not.
    """
    tree = None if source is None else read_loop_tree(source, is_gpu=False)
    if tree is None or isinstance(tree, ReplayError):
        return work
    found = program_work(tree)
    found = replace(found, narrow_flop=found.flop, wide_flop=0.0, double_flop=0.0)
    return replace(
        work, **{name: max(getattr(work, name), getattr(found, name)) for name in WORK_COLUMNS}
    )


def features_of(
    module: Any, target: Target, version: int = LEAF_EXTRA_SCHEMA_VERSION
) -> CompactAst | str:
    """Returns a program's compact AST, or why it cannot be predicted."""
    limits = _hardware_limits(target)
    (ast,) = featurise_modules([module], target, limits=limits, version=version)
    if isinstance(ast, ReplayError):
        return str(ast)
    if len(ast.leaf_features) == 0:
        return "it stores nothing"
    return ast if ast.valid else ast.reject_reason or "invalid program"


def _hardware_limits(target: Target) -> GpuLimits | None:
    """Returns what a kernel may use, without Ansor's bound on virtual threads: that one keeps its
    search small, while a GPU runs such kernels and MetaSchedule samples them.
    """
    limits = module_limits(target)
    return None if limits is None else replace(limits, vthreads=sys.maxsize)
