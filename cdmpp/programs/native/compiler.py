"""Compiles C++ to a library, under a name that says of which sources. Imports nothing of ours:
`setup.py` runs this file by its path.
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

#: The sources of the record featuriser; others may include their headers.
SOURCE_DIR = Path(__file__).parent / "src"
RECORDS = SOURCE_DIR / "featurise.cc"
FLAGS = (
    "-std=c++17", "-O3", "-DNDEBUG", "-fPIC", "-shared", "-pthread", "-ffp-contract=off", "-Wall",
    "-Wextra",
)  # fmt: skip
_TIMEOUT_S = 600


class CompilerError(Exception):
    """The sources cannot be compiled here; the text says what is missing and what to do."""


def library_name(source: Path = RECORDS, flags: Sequence[str] = FLAGS) -> str:
    """Returns the library's file name: the source's, and a hash of all sources, flags and the
    platform.
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
    """Compiles a source file with `CXX` (g++ when unset). The library appears whole or not at all.

    Args:
        target: the library.
        source: the file to compile.
        flags: of the compiler.
        libraries: flags that name the libraries to link with.

    Raises:
        CompilerError: there is no compiler, or it fails.
        OSError: the target's folder cannot be written.
    """
    compiler = shlex.split(os.environ.get("CXX") or "g++")
    # Every process writes a file of its own; whoever is last puts the same in its place.
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
