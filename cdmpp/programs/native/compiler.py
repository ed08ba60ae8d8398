"""Compiles C++ sources to a shared library named by their hash.

`setup.py` runs this file by its path, so it imports nothing of cdmpp.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

#: Sources of the featuriser; other code may include their headers.
SOURCE_DIR = Path(__file__).parent / "src"
RECORDS = SOURCE_DIR / "featurise.cc"
FLAGS = (
    "-std=c++17", "-O3", "-DNDEBUG", "-fPIC", "-shared", "-pthread", "-ffp-contract=off", "-Wall",
    "-Wextra",
)  # fmt: skip
_TIMEOUT_S = 600


class CompilerError(Exception):
    """Raised if the sources cannot be compiled; the message names the cause and the fix."""


def library_name(source: Path = RECORDS, flags: Sequence[str] = FLAGS) -> str:
    """Returns the library's file name: that of the source and a hash.

    The hash covers all sources, the flags and the platform.
    """
    digest = hashlib.sha256("\0".join([sysconfig.get_platform(), *flags]).encode())
    found = [path for folder in {SOURCE_DIR, source.parent} for path in folder.iterdir()]
    for path in sorted(path for path in found if path.suffix in (".hpp", ".cc")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return f"{source.stem}-{digest.hexdigest()[:20]}.so"


def compile_library(
    target: Path,
    source: Path = RECORDS,
    flags: Sequence[str] = FLAGS,
    libraries: Sequence[str] = (),
) -> None:
    """Compiles a source file with `CXX` (g++ if unset) and writes the library atomically.

    Args:
        target: path of the library.
        source: the file to compile.
        flags: flags of the compiler.
        libraries: compiler flags of libraries to link with.

    Raises:
        CompilerError: the compiler is missing or fails.
        OSError: the target's folder cannot be written.
    """
    compiler = shlex.split(os.environ.get("CXX") or "g++")
    # Every process writes its own temporary file; the last one replaces equal content.
    own = f".{os.getpid()}.tmp"
    handle, temporary = tempfile.mkstemp(prefix=f"{target.name}.", suffix=own, dir=target.parent)
    os.close(handle)
    try:
        _run([*compiler, *flags, f"-I{SOURCE_DIR}", "-o", temporary, str(source), *libraries])
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=_TIMEOUT_S)
    except subprocess.CalledProcessError as error:
        lines = [line for line in str(error.stderr).splitlines() if "error" in line][:3]
        raise CompilerError(
            f"The native code cannot be compiled: `{command[0]}` failed ({'; '.join(lines)}). "
            "Set CXX to a C++17 compiler such as g++."
        ) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompilerError(
            f"The native code cannot be compiled: `{command[0]}` does not run ({error}). "
            "Install g++ or set CXX to a C++17 compiler."
        ) from error
