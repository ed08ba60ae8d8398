"""The one place that knows which TVM is in use: version check, start-up fixes, names that moved.

Importing this module checks the installed versions and then imports TVM. Everything in `tvm_helper`
that needs TVM imports it from here.
"""

from __future__ import annotations

import inspect
import linecache
import sys
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module, metadata
from importlib.util import find_spec, module_from_spec

from cdmpp.errors import UsageError

#: The versions that work together. Later builds of tvm-ffi crash this TVM when it saves JSON.
REQUIRED_VERSIONS: Mapping[str, str] = types.MappingProxyType(
    {"apache-tvm": "0.27.0.post1", "apache-tvm-ffi": "0.1.14.post1"}
)


def installed_versions() -> dict[str, str | None]:
    """Returns the installed version of every required distribution; None where it is missing."""
    found: dict[str, str | None] = {}
    for name in REQUIRED_VERSIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def check_versions(found: Mapping[str, str | None]) -> None:
    """Checks versions of apache-tvm and apache-tvm-ffi against those that work together.

    Raises:
        UsageError: one of them is missing or another version.
    """
    wrong = {name: found.get(name) for name, need in REQUIRED_VERSIONS.items()
             if found.get(name) != need}  # fmt: skip
    if wrong:
        got = ", ".join(f"{name} {version or 'not installed'}" for name, version in wrong.items())
        pins = " ".join(f"{name}=={version}" for name, version in REQUIRED_VERSIONS.items())
        raise UsageError(f"Cannot use TVM: got {got}; expected {pins}. Run: pip install {pins}")


@contextmanager
def _without_torch() -> Iterator[None]:
    """Within it there is no torch to be imported, if it is not loaded yet.

    tvm-ffi loads torch wherever it is installed, to pass tensors to and fro, which nothing here
    does: a worker that builds and runs programs would start in 3 s in place of 1.2.
    """
    if "torch" in sys.modules:
        yield
        return
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["torch"]


check_versions(installed_versions())

with _without_torch():
    import tvm
    from tvm import s_tir, te, tirx
from tvm.ir import Call, TensorLoad  # noqa: E402
from tvm.s_tir import Schedule, ScheduleError  # noqa: E402
from tvm.target import Target  # noqa: E402

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
        num_cores: number of threads that programs are made for; None = unspecified.
    """
    options: dict[str, str | int] = {"kind": "llvm", "mcpu": mcpu}
    if num_cores is not None:
        options["num-cores"] = num_cores
    return Target(options)


def import_tensor_intrinsics(target_kind: str | None = None) -> None:
    """Imports TVM's tensor intrinsics quickly: all, or for `llvm` those of CPUs, a fifth of them.

    TVM asks `inspect.stack()` for the call stack once for each of about 250 intrinsics, which reads
    source files all over and takes half a minute; a frame walk without context lines takes seconds.
    """
    package = sys.modules.get(_INTRINSICS)
    if package is None:
        spec = find_spec(_INTRINSICS)
        assert spec is not None
        package = s_tir.tensor_intrin = sys.modules[_INTRINSICS] = module_from_spec(spec)
    if package.__spec__ is None or package.__spec__.loader is None or hasattr(package, "cuda"):
        return  # a stub, or all is here
    with _cheap_inspect_stack():
        if target_kind == "llvm":
            for name in _CPU_INTRINSICS:
                import_module(f"{_INTRINSICS}.{name}")
        else:
            package.__spec__.loader.exec_module(package)


def stub_tensor_intrinsics() -> None:
    """Puts an empty module in the place of TVM's tensor intrinsics.

    For worker processes that build programs without intrinsics. Does nothing when they are loaded.
    """
    if _INTRINSICS not in sys.modules:
        module = types.ModuleType(_INTRINSICS)
        sys.modules[_INTRINSICS] = module
        s_tir.tensor_intrin = module


@contextmanager
def _cheap_inspect_stack() -> Iterator[None]:
    def stack(context: int = 1) -> list[inspect.FrameInfo]:
        del context
        frame: types.FrameType | None = sys._getframe(1)
        found = []
        while frame is not None:
            code = frame.f_code
            line = linecache.getline(code.co_filename, frame.f_lineno)
            lines, index = ([line], 0) if line else (None, None)
            found.append(
                inspect.FrameInfo(
                    frame, code.co_filename, frame.f_lineno, code.co_name, lines, index
                )
            )
            frame = frame.f_back
        return found

    original = inspect.stack
    inspect.stack = stack
    try:
        yield
    finally:
        inspect.stack = original


__all__ = [
    "REQUIRED_VERSIONS", "Call", "Schedule", "ScheduleError", "Sequential", "Target", "TensorLoad",
    "block_passes", "check_versions", "import_tensor_intrinsics", "installed_versions",
    "llvm_target", "s_tir", "stub_tensor_intrinsics", "te", "tir_passes", "tirx", "tvm",
]  # fmt: skip
