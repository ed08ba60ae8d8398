"""Compiles the old TVM's Cython bindings; its wheel has only the slower ctypes ones.

Building a schedule makes thousands of calls from Python into TVM. Compiled bindings halve the time
to instantiate a template; the result is the same.
"""

from __future__ import annotations

import os
import shutil

from cdmpp.errors import UsageError
from cdmpp.files.places import package_folder
from tvm_helper.legacy.environment import LegacyEnvironment, run

#: Package that translates the bindings; installed in the side environment.
REQUIREMENT = "cython==3.0.12"

#: Header for compiling the bindings.
HEADER = package_folder("tvm_helper.legacy") / "c_runtime_api.h"
#: Headers that the bindings include.
_INCLUDED = ("c_runtime_api.h", "c_backend_api.h", "ndarray.h")
_PLACES = (
    "import sysconfig; print(sysconfig.get_config_var('EXT_SUFFIX')); "
    "print(sysconfig.get_paths()['include'])"
)


def compile_bindings(environment: LegacyEnvironment) -> None:
    """Compiles `tvm._ffi._cy3.core` of the side environment's TVM.

    Raises:
        UsageError: the sources are missing, or they cannot be translated or compiled.
    """
    package = environment.tvm_folder / "python" / "tvm" / "_ffi"
    source = package / "_cython" / "core.pyx"
    if not source.is_file():
        raise UsageError(
            f"Cannot build the side environment: got no {source}; expected it in the old TVM's "
            "wheel. Rebuild it: python -m tvm_helper.legacy.setup --force"
        )
    folder = environment.folder / "bindings"
    headers = folder / "tvm" / "runtime"
    headers.mkdir(parents=True, exist_ok=True)
    for name in _INCLUDED:
        shutil.copyfile(HEADER, headers / name)
    translated = folder / "core.cpp"
    python = str(environment.python)
    run(
        [python, "-m", "cython", "--cplus", "-3", str(source), "-o", str(translated)],
        "translate the old TVM's bindings",
    )
    suffix, include = run([python, "-c", _PLACES], "ask Python for its headers").split("\n")[:2]
    temporary = folder / "core.tmp"
    run(
        ["g++", "-std=c++17", "-O2", "-w", "-shared", "-fPIC", f"-I{folder}", f"-I{include}",
         "-o", str(temporary), str(translated)],
        "compile the old TVM's bindings",
    )  # fmt: skip
    os.replace(temporary, package / "_cy3" / f"core{suffix}")
