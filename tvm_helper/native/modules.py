"""Native featuriser of TVM modules: a separate library, linked with tvm_ffi."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cdmpp.files.places import package_folder
from cdmpp.programs.gpu_limits import GpuLimits
from cdmpp.programs.native.binding import NativeBatch, call
from cdmpp.programs.native.build import NativeBuildError, library_path, load_library
from cdmpp.programs.native.compiler import FLAGS

#: Phases that the native code times, in the order of its counters.
MODULE_PHASES = ("walk", "passes", "canonical", "features")
_SOURCE = package_folder("tvm_helper.native") / "src" / "tir_featurise.cc"
_ERROR_BYTES = 200
_log = logging.getLogger("cdmpp")


class NestPlan(NamedTuple):
    """Plan to parallelise and vectorise the loops around a block.

    If `parallel` and `vectorized` both equal `loops`, all loops are fused, and split into a
    parallel and a vector loop.

    Attributes:
        loops: number of loops.
        parallel: number of outermost loops to fuse into a parallel loop; -1 = no parallel loop.
        vectorized: number of innermost loops to fuse into a vector loop; -1 = no vector loop.
        is_spatial: whether the block has no reduction axis.
    """

    loops: int
    parallel: int
    vectorized: int
    is_spatial: bool


class NativeModules:
    """Featurises modules. Calls from several threads are safe.

    Args:
        library: the compiled library.
        lowering: TVM's pass that lowers blocks to plain loops.

    Raises:
        NativeBuildError: the library does not support the nodes of this TVM.
    """

    def __init__(self, library: ctypes.CDLL, lowering: Any) -> None:
        self._featuriser: int | None = None
        self._library = library
        self._free = library.cdmpp_modules_free
        self._free.argtypes = (ctypes.c_void_p,)
        self._free.restype = None
        library.cdmpp_modules_new.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t)
        library.cdmpp_modules_new.restype = ctypes.c_void_p
        self._plan = library.cdmpp_modules_plan_nest
        self._plan.argtypes = (
            ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64, ctypes.c_int64,
            ctypes.c_void_p,
        )  # fmt: skip
        self._run = library.cdmpp_modules_featurise
        self._run.argtypes = (
            ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t,
        )  # fmt: skip
        self._have = library.cdmpp_modules_have
        self._have.argtypes = (
            ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_void_p,
        )  # fmt: skip
        self._have.restype = None
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        self._featuriser = library.cdmpp_modules_new(lowering.__chandle__(), error, _ERROR_BYTES)
        if not self._featuriser:
            raise NativeBuildError(
                f"The native code does not support this TVM ({error.value.decode()}); expected "
                "the versions of `pip install 'cdmpp[tvm]'`."
            )

    def __del__(self) -> None:
        if self._featuriser:
            self._free(self._featuriser)

    def featurise(
        self,
        modules: Sequence[Any],
        *,
        is_gpu: bool,
        limits: GpuLimits | None,
        may_lower: bool = True,
        complete: bool = True,
        has_sets: bool = True,
        threads: int = 1,
    ) -> NativeBatch:
        """Featurises modules without holding the interpreter lock.

        Args:
            modules: `IRModule`s with a function `main`, scheduled or lowered.
            is_gpu: whether the target is a GPU; a program with thread bindings always counts as
                one for a GPU.
            limits: limits of a kernel; None = unlimited.
            may_lower: whether to run TVM's passes on a module that needs them.
            complete: see `tvm_helper.tir.loop_tree.loop_tree_from_tir`.
            has_sets: whether to count lines in cache sets, which takes time; else they are 0.
            threads: number of native threads.
        """
        handles = _handles(modules)
        has_limits = limits is not None
        bounds = (limits.shared_bytes, limits.threads, limits.vthreads) if limits else (0, 0, 0)
        settings = np.array(
            [is_gpu, may_lower, complete, has_sets, has_limits, *bounds], dtype=np.int64
        )
        batch = call(
            self._library, self._run, self._featuriser, handles, len(modules),
            settings.ctypes.data, max(1, threads),
        )  # fmt: skip
        seconds = dict(zip(MODULE_PHASES, batch.seconds.values(), strict=False))
        return replace(batch, seconds=seconds)

    def have_attribute(self, modules: Sequence[Any], name: str) -> list[bool]:
        """Returns for each module whether one of its `PrimFunc`s has an attribute `name`."""
        found = (ctypes.c_bool * len(modules))()
        self._have(self._featuriser, _handles(modules), len(modules), name.encode(), found)
        return list(found)

    def plan_nest(
        self, module: Any, place: int, *, most_parallel: int, most_vectorized: int
    ) -> NestPlan | None:
        """Returns the plan of MetaSchedule's `RewriteParallelVectorizeUnroll` for a block; None if
        only TVM can compute it.

        Args:
            module: scheduled `IRModule` with a function `main`.
            place: index of the block among those directly below the root, in program order.
            most_parallel: extent of the parallel loop above which no further loop is fused.
            most_vectorized: maximum extent of a vector loop.
        """
        found = (ctypes.c_int64 * 4)()
        is_known = self._plan(
            self._featuriser, module.__chandle__(), place, most_parallel, most_vectorized, found
        )
        return NestPlan(found[0], found[1], found[2], bool(found[3])) if is_known else None


def _handles(modules: Sequence[Any]) -> Any:
    return (ctypes.c_void_p * len(modules))(*[module.__chandle__() for module in modules])


@lru_cache(maxsize=1)
def modules_library() -> ctypes.CDLL | None:
    """Returns the library, compiled on first use; None if it cannot be built or loaded.

    Logs one warning per process in that case. Imports `tvm_ffi`, so that the library finds it by
    its name.
    """
    from tvm_ffi import __version__, libinfo

    lib = Path(libinfo.find_libtvm_ffi()).parent
    flags = [*FLAGS, f'-DCDMPP_TVM_FFI="{__version__}"']
    flags += [f"-isystem{path}" for path in libinfo.include_paths()]
    try:
        path = library_path(flags, source=_SOURCE, libraries=(f"-L{lib}", "-ltvm_ffi"))
        return load_library(path)
    except NativeBuildError as error:
        _log.warning("%s Modules are read in Python, about sixty times slower.", error)
        return None
