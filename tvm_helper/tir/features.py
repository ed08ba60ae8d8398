"""Featurisation of TVM modules to compact ASTs, for cost models in TVM's search.

Native code walks a scheduled module directly; TVM lowers it first only if it has unusual reductions
across threads. Without a compiler, and for modules that the native code declines, Python builds the
loop tree (`tvm_helper.tir.loop_tree`) and the library for records computes its features. The
results are equal.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from cdmpp.errors import DataError, ReplayError
from cdmpp.programs.compact_ast import (
    FIRST_WITH_ACROSS_THREADS,
    FIRST_WITH_SETS,
    LEAF_EXTRA_COUNTS,
    LEAF_EXTRA_SCHEMA_VERSION,
    CompactAst,
)
from cdmpp.programs.featurise import compact_asts, is_gpu_kind, outcomes
from cdmpp.programs.gpu_limits import GpuLimits
from cdmpp.programs.loops.loop_tree import LoopTree
from cdmpp.programs.native.binding import NativeBatch, Status
from cdmpp.programs.native.build import NativeBuildError
from tvm_helper.compat import Target
from tvm_helper.native.modules import NativeModules, modules_library
from tvm_helper.tir.loop_tree import loop_tree_from_tir, lowering_passes
from tvm_helper.tir.packing import LAYOUT_FREE, runnable

_LANES_PER_VTHREAD = 4
_log = logging.getLogger("cdmpp")


def featurise_modules(
    modules: Sequence[Any],
    target: Target | None,
    *,
    limits: GpuLimits | None = None,
    threads: int = 1,
    lowered: bool = False,
    version: int = LEAF_EXTRA_SCHEMA_VERSION,
) -> list[CompactAst | ReplayError]:
    """Lowers and featurises modules. The native part runs without the interpreter lock.

    Args:
        modules: `IRModule`s with one function `main` of a schedule or a measure candidate; not
            changed. Blocks that pack weights are ignored.
        target: target of the schedules, which determines whether they are GPU kernels and the
            limits of a kernel. None = unknown: a program with thread bindings is a GPU kernel.
        limits: limits of a kernel; None = those of the target.
        threads: number of native threads.
        lowered: whether the modules have no blocks; then no pass runs.
        version: version of the added leaf columns that the model was trained on.

    Returns:
        Compact AST of each module, or the reason why it has none, in order.
    """
    if not lowered:
        modules = _runnable(modules)
    is_gpu = target is not None and is_gpu_kind(target.kind.name)
    limits = module_limits(target) if limits is None else limits
    batch = _read(modules, is_gpu, limits, threads=threads, lowered=lowered, version=version)
    return _asts(batch, modules, is_gpu, limits, lowered=lowered, version=version)


def _asts(
    batch: NativeBatch | None,
    modules: Sequence[Any],
    is_gpu: bool,
    limits: GpuLimits | None,
    *,
    version: int,
    lowered: bool = False,
) -> list[CompactAst | ReplayError]:
    """Returns the result of each module; Python reads those that the native code did not."""
    if batch is None:
        results: list[CompactAst | ReplayError] = [ReplayError("not read")] * len(modules)
        left = list(range(len(modules)))
    else:
        results = outcomes(batch)
        left = np.flatnonzero(batch.status == Status.DECLINED).tolist()
    complete = version >= FIRST_WITH_ACROSS_THREADS
    for number in left:
        tree = read_loop_tree(modules[number], is_gpu, lowered=lowered, complete=complete)
        (results[number],) = compact_asts([tree], [limits])
    return [one if isinstance(one, ReplayError) else one.of_version(version) for one in results]


def featurise_batch(
    modules: Sequence[Any],
    target: Target | None,
    *,
    threads: int = 1,
    version: int = LEAF_EXTRA_SCHEMA_VERSION,
) -> NativeBatch | list[CompactAst | ReplayError]:
    """Returns what `featurise_modules` returns, stacked if the native code reads all modules.

    Args:
        modules, target, threads, version: see `featurise_modules`.
    """
    modules, limits = _runnable(modules), module_limits(target)
    is_gpu = target is not None and is_gpu_kind(target.kind.name)
    batch = _read(modules, is_gpu, limits, threads=threads, version=version)
    if batch is None or np.any(batch.status == Status.DECLINED):
        return _asts(batch, modules, is_gpu, limits, version=version)
    return replace(batch, leaf_extra=batch.leaf_extra[:, : LEAF_EXTRA_COUNTS[version]])


def _runnable(modules: Sequence[Any]) -> list[Any]:
    native = native_modules()
    is_free = [True] * len(modules)
    if native is not None:  # faster: creates no Python objects for functions
        is_free = native.have_attribute(modules, LAYOUT_FREE)
    return [runnable(one) if free else one for one, free in zip(modules, is_free, strict=True)]


def _read(
    modules: Sequence[Any],
    is_gpu: bool,
    limits: GpuLimits | None,
    *,
    threads: int,
    version: int,
    lowered: bool = False,
) -> NativeBatch | None:
    native = native_modules()
    if native is None or not modules:
        return None
    return native.featurise(
        modules, is_gpu=is_gpu, limits=limits, may_lower=not lowered,
        complete=version >= FIRST_WITH_ACROSS_THREADS, has_sets=version >= FIRST_WITH_SETS,
        threads=threads,
    )  # fmt: skip


def module_limits(target: Target | None) -> GpuLimits | None:
    """Returns the limits of a kernel for a target; None for a CPU or a target without limits.

    As in Ansor's hardware parameters, the limit of virtual threads is a fourth of a warp.
    """
    if target is None or not is_gpu_kind(target.kind.name):
        return None
    names = ("max_shared_memory_per_block", "max_threads_per_block", "thread_warp_size")
    shared_bytes, threads, warp_size = (target.attrs.get(name) for name in names)
    if shared_bytes is None or threads is None or warp_size is None:
        return None
    return GpuLimits(int(shared_bytes), int(threads), int(warp_size) // _LANES_PER_VTHREAD)


@lru_cache(maxsize=1)
def native_modules() -> NativeModules | None:
    """Returns the native featuriser of modules; None if it is not available."""
    library = modules_library()
    if library is None:
        return None
    try:
        return NativeModules(library, lowering_passes())
    except NativeBuildError as error:
        _log.warning("%s Modules are read in Python, about sixty times slower.", error)
        return None


def read_loop_tree(
    module: Any, is_gpu: bool, *, lowered: bool = False, complete: bool = True
) -> LoopTree | ReplayError:
    """Returns the loop tree of a module, or the reason why it has none; raises nothing.

    Args:
        is_gpu: whether the module is for a GPU, even without thread bindings.
        lowered, complete: see `loop_tree_from_tir`.
    """
    try:
        tree = loop_tree_from_tir(module, lowered=lowered, complete=complete)
    except DataError as error:
        return ReplayError("no loop tree", str(error))
    except RecursionError:
        return ReplayError("expression nested too deeply")
    except Exception as error:  # TVM's checks raise many types
        text = (str(error).strip().splitlines() or [""])[-1]
        return ReplayError("module cannot be lowered", f"{type(error).__name__}: {text[:160]}")
    tree.is_gpu = tree.is_gpu or is_gpu
    return tree


__all__ = ["featurise_modules", "module_limits", "native_modules", "read_loop_tree"]
