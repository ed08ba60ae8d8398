"""The TVM in use: version check, start-up fixes and names that moved between releases.

Importing this module checks the installed versions and then imports TVM. The other modules of
`tvm_helper` import TVM from here.
"""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Mapping
from importlib import import_module, metadata
from importlib.util import find_spec, module_from_spec

from cdmpp.errors import UsageError
from cdmpp.processes.collector import without_collector
from tvm_helper.quick_import import (
    cheap_inspect_stack,
    quick_import,
)

#: Set by `python -m lab run tvm-releases`, which tries other versions.
ANY_VERSION = "CDMPP_ANY_TVM"
#: Versions that work together. Later builds of tvm-ffi crash this TVM when it saves JSON.
REQUIRED_VERSIONS: Mapping[str, str] = types.MappingProxyType(
    {"apache-tvm": "0.27.0.post1", "apache-tvm-ffi": "0.1.14.post1"}
)


def installed_versions() -> dict[str, str | None]:
    """Returns the installed version of each required distribution; None if it is missing."""
    found: dict[str, str | None] = {}
    for name in REQUIRED_VERSIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def check_versions(found: Mapping[str, str | None]) -> None:
    """Checks versions of apache-tvm and apache-tvm-ffi against `REQUIRED_VERSIONS`.

    Raises:
        UsageError: a distribution is missing or has another version.
    """
    wrong = {name: found.get(name) for name, need in REQUIRED_VERSIONS.items()
             if found.get(name) != need}  # fmt: skip
    if wrong:
        got = ", ".join(f"{name} {version or 'not installed'}" for name, version in wrong.items())
        pins = " ".join(f"{name}=={version}" for name, version in REQUIRED_VERSIONS.items())
        raise UsageError(f"Cannot use TVM: got {got}; expected {pins}. Run: pip install {pins}")


if ANY_VERSION not in os.environ:
    check_versions(installed_versions())

with quick_import():
    import tvm
    from tvm import relax, s_tir, te, tirx, topi
from tvm.ir import Call, TensorLoad  # noqa: E402
from tvm.ir.utils import derived_object  # noqa: E402
from tvm.s_tir import Schedule, ScheduleError, meta_schedule  # noqa: E402
from tvm.s_tir.meta_schedule.utils import shash2hex  # noqa: E402
from tvm.target import Target  # noqa: E402

#: TVM's functions behind the methods of `Schedule`, without their checks of Python types.
schedule_functions = s_tir.schedule._ffi_api
#: Module with the block-level passes (LowerInitBlock, CompactBufferAllocation, ...).
block_passes = s_tir.transform
#: Module with the passes on plain TIR (StmtSimplify, FlattenBuffer, ...).
tir_passes = tirx.transform
Sequential = tvm.transform.Sequential

_INTRINSICS = "tvm.s_tir.tensor_intrin"
_CPU_INTRINSICS = ("x86", "arm_cpu", "riscv_cpu")


def llvm_target(*, mcpu: str = "core-avx2", num_cores: int | None = None) -> Target:
    """Returns a CPU target.

    Args:
        mcpu: LLVM's processor name, e.g. `core-avx2` or `skylake-avx512`.
        num_cores: number of threads of the programs; None = unspecified.
    """
    options: dict[str, str | int] = {"kind": "llvm", "mcpu": mcpu}
    if num_cores is not None:
        options["num-cores"] = num_cores
    return Target(options)


def import_tensor_intrinsics(target_kind: str | None = None) -> None:
    """Imports TVM's tensor intrinsics quickly: all, or for `llvm` only the fifth that is for CPUs.

    TVM calls `inspect.stack()` for each of about 250 intrinsics, which reads many source files and
    takes half a minute; a frame walk without context lines takes seconds.
    """
    package = sys.modules.get(_INTRINSICS)
    if package is None:
        spec = find_spec(_INTRINSICS)
        assert spec is not None
        package = s_tir.tensor_intrin = sys.modules[_INTRINSICS] = module_from_spec(spec)
    if package.__spec__ is None or package.__spec__.loader is None or hasattr(package, "cuda"):
        return  # a stub, or already imported
    with cheap_inspect_stack(), without_collector():
        if target_kind == "llvm":
            for name in _CPU_INTRINSICS:
                import_module(f"{_INTRINSICS}.{name}")
        else:
            package.__spec__.loader.exec_module(package)


def stub_tensor_intrinsics() -> None:
    """Replaces TVM's tensor intrinsics by an empty module, unless they are already imported.

    For worker processes that build programs without intrinsics.
    """
    if _INTRINSICS not in sys.modules:
        module = types.ModuleType(_INTRINSICS)
        sys.modules[_INTRINSICS] = module
        s_tir.tensor_intrin = module


__all__ = [
    "REQUIRED_VERSIONS", "Call", "Schedule", "ScheduleError", "Sequential", "Target", "TensorLoad",
    "block_passes", "check_versions", "derived_object", "import_tensor_intrinsics",
    "installed_versions", "llvm_target", "meta_schedule", "relax", "s_tir", "shash2hex",
    "stub_tensor_intrinsics", "te", "tir_passes", "tirx", "topi", "tvm",
]  # fmt: skip
