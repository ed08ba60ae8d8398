"""What can be told of a program in TVM's hands before any model is asked."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Any

from cdmpp.errors import ReplayError
from cdmpp.programs.compact_ast import CompactAst
from cdmpp.programs.gpu_limits import GpuLimits
from tvm_helper.compat import Target, shash2hex
from tvm_helper.tasks.operator_name import operator_of
from tvm_helper.tasks.program_file import is_scheduled
from tvm_helper.tir.features import featurise_modules, module_limits
from tvm_helper.tir.loop_tree import loop_tree_from_tir


@dataclass(frozen=True)
class Looks:
    """What a program looks like.

    Attributes:
        operator: its operator name; empty where it cannot be told.
        is_scheduled: whether it has a schedule.
        is_gpu: whether it is a GPU kernel.
        workload_key: equal for programs of equal structure.
    """

    operator: str
    is_scheduled: bool
    is_gpu: bool
    workload_key: str


def look_at(module: Any) -> Looks:
    """Returns what a program looks like."""
    try:
        operator = operator_of(module)
    except Exception:  # a module without blocks has no names to read
        operator = ""
    key = str(shash2hex(module))
    try:
        tree = loop_tree_from_tir(module)
    except Exception:  # TVM raises whatever its checks do; the features say why
        return Looks(operator, True, False, key)
    return Looks(operator, is_scheduled(tree), tree.is_gpu, key)


def features_of(module: Any, target: Target) -> CompactAst | str:
    """Returns a program's compact AST, or why it cannot be predicted."""
    (ast,) = featurise_modules([module], target, limits=_hardware_limits(target))
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
