"""Finds, compiles and loads the native code.

The featuriser is part of the package: `setup.py` compiles it into a wheel, or next to the sources
of an editable install. A checkout with changed sources compiles it on first use. Code that is
always compiled on first use (`tvm_helper.native`) is stored in the user's cache folder if the
package folder is not writable.
"""

from __future__ import annotations

import ctypes
import logging
import os
import stat
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from cdmpp.errors import DataError
from cdmpp.files.atomic import remove_abandoned
from cdmpp.files.places import is_checkout
from cdmpp.programs.native.compiler import (
    FLAGS,
    RECORDS,
    CompilerError,
    compile_library,
    library_name,
)

INTERFACE_VERSION = 3
_log = logging.getLogger("cdmpp")


class NativeBuildError(DataError):
    """Raised if the native code cannot be compiled or loaded."""


@lru_cache(maxsize=1)
def native_library() -> ctypes.CDLL:
    """Returns the library of the featuriser.

    Raises:
        NativeBuildError: the installation lacks it, or the checkout cannot compile it.
    """
    if os.environ.get("CDMPP_NATIVE") == "0":
        _log.warning("CDMPP_NATIVE=0 is ignored: the native code is the only featuriser.")
    shipped = RECORDS.parent.parent / library_name()
    if not shipped.is_file() and not is_checkout():
        raise NativeBuildError(f"{shipped}: missing from this installation. Reinstall cdmpp.")
    return load_library(library_path())


def load_library(path: Path) -> ctypes.CDLL:
    """Loads a compiled library.

    Raises:
        NativeBuildError: the file is not such a library, or has another interface version.
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
    source: Path = RECORDS,
    libraries: Sequence[str] = (),
) -> Path:
    """Returns the path of the compiled library and compiles it if it is missing.

    Args:
        flags: flags of the compiler.
        cache_dirs: candidate folders for the library, the first usable one is chosen; None = the
            package folder in a checkout, then the user's cache. A library that other users can
            write to is ignored.
        source: the file to compile.
        libraries: compiler flags of libraries to link with.

    Raises:
        NativeBuildError: the compiler is missing or fails, or no folder is writable.
    """
    package = source.parent.parent
    name = library_name(source, [*flags, *libraries])
    if cache_dirs is None:
        if (package / name).is_file():
            return package / name
        user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cdmpp" / "native"
        cache_dirs = (package, user) if is_checkout() else (user,)
    for directory in cache_dirs:
        if is_ours(directory) and is_ours(directory / name):
            return directory / name
    for directory in cache_dirs:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            if not is_ours(directory):
                _log.warning(
                    "%s: other users can write to this folder, so native code is not cached there.",
                    directory,
                )
                continue
            remove_abandoned(directory)
            _log.info("compiling the native code: %s", directory / name)
            compile_library(directory / name, source, flags, libraries)
        except OSError:
            continue
        except CompilerError as error:
            raise NativeBuildError(str(error)) from error
        return directory / name
    raise NativeBuildError(
        f"No folder for the compiled native code: none of {', '.join(map(str, cache_dirs))} is "
        "writable by this user only. Set XDG_CACHE_HOME to such a folder."
    )


def is_ours(path: Path) -> bool:
    """Returns whether a file or folder exists and only this user and root can write to it.

    Libraries in such a place are loaded into the process, so anyone who can write to it could run
    code as this user. The user's own group counts as this user.
    """
    try:
        found = path.stat()
    except OSError:
        return False
    by_others = found.st_mode & stat.S_IWOTH or (
        found.st_mode & stat.S_IWGRP and found.st_gid not in (0, os.getegid())
    )
    return found.st_uid in (0, os.geteuid()) and not by_others
