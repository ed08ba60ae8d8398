"""Finds and loads the native code.

The record featuriser is part of the package: `setup.py` compiles it into a wheel, and beside the
sources of an editable install. Where the sources of a checkout have changed since, it is compiled
on use. Code that is always compiled on first use (`tvm_helper.native`) is kept in the user's cache
folder where the package's own cannot be written.
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
    """The native code cannot be compiled or loaded here."""


@lru_cache(maxsize=1)
def native_library() -> ctypes.CDLL:
    """Returns the library that featurises records and loop trees.

    Raises:
        NativeBuildError: an installation lacks it, or a checkout cannot compile it.
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
    source: Path = RECORDS,
    libraries: Sequence[str] = (),
) -> Path:
    """Returns the compiled library; compiles it when it is not there yet.

    Args:
        flags: of the compiler.
        cache_dirs: folders for the library, the first that can be used is; None = the package's
            own in a checkout, then the user's. A library that others could have written there is
            not used.
        source: the file to compile.
        libraries: flags of the compiler that name libraries to link with.

    Raises:
        NativeBuildError: there is no compiler, it fails, or no folder can be written.
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
    """Returns whether a file or folder is there and nobody but this user and root can change it.

    What is stored in such a place is loaded into the process, so that whoever can write it runs as
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
