"""Files of users with tensor programs: plain TVMScript, or Python that creates PrimFuncs."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

from cdmpp.errors import DataError, UsageError
from cdmpp.programs.older_script import OLDER_NOTE, RENAMES, definitions, is_older, renamed
from tvm_helper.tasks.script import located, read_plain_script
from tvm_helper.tir.named_program import NamedProgram, is_scheduled, programs_of
from tvm_helper.tir.symbolic import symbolic_sizes, with_sizes

__all__ = ["NamedProgram", "is_scheduled", "programs_of", "read_programs", "sized"]


def read_programs(path: Path) -> list[NamedProgram]:
    """Returns the programs of a file, in order.

    Plain TVMScript is parsed, with the names of older TVMs replaced by current ones. Any other file
    is executed as Python. A program that TVM cannot parse has a `fault`.

    Raises:
        DataError: the file cannot be read or run, or defines no program that can be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = "no such file" if not path.is_file() else f"cannot be read ({error})"
        raise DataError(f"{path}: {why}; expected Python with a TVMScript PrimFunc") from None
    if is_older(text):
        found = _read_older(renamed(text), path)
    else:
        try:
            found = read_plain_script(text, path.name)
        except DataError:  # the file has other code
            found = _run(path)
    if all(one.fault for one in found):
        raise DataError(f"{path.parent / found[0].fault}; no program of the file can be read")
    return found


def _read_older(text: str, path: Path) -> list[NamedProgram]:
    """Returns the programs of an older script whose names were replaced.

    Other code of the file needs the older TVM and is not run.

    Raises:
        DataError: the script defines no program.
    """
    try:
        return [replace(one, note=OLDER_NOTE) for one in read_plain_script(text, path.name)]
    except DataError as error:
        parts = definitions(text)
        if not parts:
            raise DataError(f"{path}: {error}") from None
    found: list[NamedProgram] = []
    for name, part in parts:
        try:
            found += read_plain_script(part, path.name)
        except DataError as error:
            found.append(NamedProgram(name, None, f"{path.name}: {name}: {error}"))
    note = f"older TVMScript, of which only functions of tensor programs are read; {RENAMES}"
    return [replace(one, note=note) for one in found]


def sized(programs: list[NamedProgram], sizes: Mapping[str, int]) -> list[NamedProgram]:
    """Returns the programs with numbers instead of symbolic sizes.

    Raises:
        UsageError: no program has a size of a given name, or it is less than 1.
    """
    known = {name for one in programs if not one.fault for name in symbolic_sizes(one.module)}
    for name, size in sizes.items():
        if size < 1:
            raise UsageError(f"--set {name}={size}: expected a size of at least 1")
        if name not in known:
            raise UsageError(
                f"--set {name}={size}: no program has that symbolic size; expected "
                f"{', '.join(sorted(known)) or 'none, as all sizes are numbers'}"
            )
    return [
        one if one.fault else replace(one, module=with_sizes(one.module, sizes)) for one in programs
    ]


def _run(path: Path) -> list[NamedProgram]:
    """Runs a Python file and returns the programs among its global variables."""
    # TVMScript reads the source of functions, so the module must be in `sys.modules`.
    name = f"_cdmpp_program_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise DataError(f"{path}: is not a Python file; expected a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with redirect_stdout(sys.stderr):  # keeps its output out of the command's output
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # raised by the user's code
        raise DataError(
            f"{_place(error, path)}; expected Python that runs, with TVMScript of this TVM: "
            "from tvm.script import tirx as T, @T.prim_func(s_tir=True)"
        ) from None
    finally:
        del sys.modules[name]
    found = programs_of(vars(module))
    if not found:
        raise DataError(
            f"{path}: defines no tensor program; expected a top-level PrimFunc or IRModule"
        )
    return found


def _place(error: BaseException, path: Path) -> str:
    """Returns `FILE:LINE: error`."""
    said = located(error, str(path))
    if not said.startswith(f"{path}: "):
        return said
    line = error.lineno if isinstance(error, SyntaxError) else None
    for frame in traceback.extract_tb(error.__traceback__):
        if Path(frame.filename) == path:
            line = frame.lineno
    return said if line is None else said.replace(f"{path}: ", f"{path}:{line}: ", 1)
