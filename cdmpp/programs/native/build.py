"""Compiles the native code on first use and keeps the library for the next process.

A checkout keeps the library beside the sources; an installed package, or a checkout that is
read-only, in the user's cache folder. Its name is a hash of the sources, the compiler's version and
its flags. `CXX` names the compiler (g++ when unset); `CDMPP_NATIVE=0` turns the native code off. A
library that others could have written is not loaded.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import shlex
import stat
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

from cdmpp.errors import DataError
from cdmpp.files.atomic import remove_abandoned
from cdmpp.files.places import is_checkout, package_folder

_FOLDER = package_folder("cdmpp.programs.native")
SOURCE_DIR = _FOLDER / "src"
FLAGS = (
    "-std=c++17", "-O3", "-DNDEBUG", "-fPIC", "-shared", "-pthread", "-ffp-contract=off", "-Wall",
    "-Wextra",
)  # fmt: skip
INTERFACE_VERSION = 2
_COMPILE_TIMEOUT_S = 600
_log = logging.getLogger("cdmpp")


class NativeBuildError(DataError):
    """The native code cannot be compiled or loaded here."""


@lru_cache(maxsize=1)
def native_library() -> ctypes.CDLL | None:
    """Returns the library, None where it is turned off or there is no compiler.

    Logs one warning a process where it cannot be had.
    """
    if os.environ.get("CDMPP_NATIVE", "1") == "0":
        return None
    try:
        return load_library(library_path())
    except NativeBuildError as error:
        _log.warning("%s Programs are featurised in Python, some thirty times slower.", error)
        return None


def load_library(path: Path) -> ctypes.CDLL:
    """Loads a compiled library.

    Raises:
        NativeBuildError: the file is no such library, or one of another version.
    """
    try:
        library = ctypes.CDLL(str(path))
        version = library.cdmpp_interface_version()
    except (OSError, AttributeError) as error:
        raise NativeBuildError(f"{path}: cannot be loaded ({error}); delete it.") from error
    if version != INTERFACE_VERSION:
        raise NativeBuildError(
            f"{path}: got interface version {version}, expected {INTERFACE_VERSION}; delete it."
        )
    return library


def library_path(
    flags: Sequence[str] = FLAGS,
    *,
    cache_dirs: Sequence[Path] | None = None,
    source: Path | None = None,
    libraries: Sequence[str] = (),
) -> Path:
    """Returns the compiled library; compiles it when it is not there yet.

    Args:
        flags: of the compiler.
        cache_dirs: folders for the library, the first that can be used is.
        source: the file to compile, which may include headers of `SOURCE_DIR`; None = the
            featuriser of records.
        libraries: further flags of the compiler, which name libraries to link with.

    Raises:
        NativeBuildError: there is no compiler, it fails, or no folder can be written.
    """
    compiler = shlex.split(os.environ.get("CXX") or "g++")
    source = source or SOURCE_DIR / "featurise.cc"
    folders = {SOURCE_DIR, source.parent}
    name = f"{source.stem}-{_fingerprint(compiler, [*flags, *libraries], folders)}.so"
    dirs = default_cache_dirs() if cache_dirs is None else cache_dirs
    for directory in dirs:
        if is_ours(directory) and is_ours(directory / name):
            return directory / name
    for directory in dirs:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            if not is_ours(directory):
                _log.warning("%s: others can write there; it keeps no native code.", directory)
                continue
            remove_abandoned(directory)
            # Every process writes a file of its own; whoever is last puts the same in its place.
            own = f".{os.getpid()}.tmp"
            handle, temporary = tempfile.mkstemp(prefix=f"{name}.", suffix=own, dir=directory)
        except OSError:
            continue
        os.close(handle)
        try:
            command = [*compiler, *flags, f"-I{SOURCE_DIR}", "-o", temporary, str(source)]
            _compile([*command, *libraries])
            os.replace(temporary, directory / name)
        finally:
            Path(temporary).unlink(missing_ok=True)
        return directory / name
    raise NativeBuildError(
        f"No folder for the compiled native code: none of {', '.join(map(str, dirs))} can be "
        "written by this user alone. Set XDG_CACHE_HOME to a folder that can."
    )


def is_ours(path: Path) -> bool:
    """Returns whether a file or folder is there and nobody but this user and root can change it.

    What lies in such a place is loaded into the process, so that whoever can write it runs as
    this user. A group counts as this user where it is the user's own.
    """
    try:
        found = path.stat()
    except OSError:
        return False
    by_others = found.st_mode & stat.S_IWOTH or (
        found.st_mode & stat.S_IWGRP and found.st_gid not in (0, os.getegid())
    )
    return found.st_uid in (0, os.geteuid()) and not by_others


def default_cache_dirs() -> tuple[Path, ...]:
    """Returns where the library may be kept, best first."""
    user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cdmpp" / "native"
    return (_FOLDER / "cache", user) if is_checkout() else (user,)


def _fingerprint(compiler: list[str], flags: Sequence[str], folders: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    found = [path for folder in folders for path in folder.iterdir()]
    for source in sorted(path for path in found if path.suffix in (".hpp", ".cc")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    digest.update(_run([*compiler, "--version"]).encode())
    digest.update("\0".join([*compiler, *flags]).encode())
    return digest.hexdigest()[:20]


def _compile(command: list[str]) -> None:
    _log.info("compiling the native code: %s", shlex.join(command))
    _run(command)


def _run(command: list[str]) -> str:
    """Returns what a command prints."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=_COMPILE_TIMEOUT_S
        )
    except subprocess.CalledProcessError as error:
        lines = [line for line in str(error.stderr).splitlines() if "error" in line][:3]
        raise NativeBuildError(
            f"The native code cannot be compiled: `{command[0]}` failed ({'; '.join(lines)}). "
            "Set CXX to a C++17 compiler such as g++."
        ) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NativeBuildError(
            f"The native code cannot be compiled: `{command[0]}` does not run ({error}). "
            "Install g++ or set CXX to a C++17 compiler."
        ) from error
    return done.stdout
