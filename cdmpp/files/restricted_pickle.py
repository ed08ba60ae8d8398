"""Reads pickles of published data without running any code that they name.

The pickles of a Tenset folder hold plain Python values and objects of eight globals. An inert stub
replaces each of these globals; every other global, persistent id or extension code is rejected.
Other datasets have their own `PickleFormat`.
"""

from __future__ import annotations

import gzip
import io
import pickle
import pickletools
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdmpp.errors import DataError

#: Largest (decompressed) pickle that is read.
MAX_PICKLE_BYTES = 4 << 30
_GZIP_MAGIC = b"\x1f\x8b"
#: Opcodes that refer to objects outside of the pickle other than named globals.
_REFUSED_OPCODES = frozenset(
    {"PERSID", "BINPERSID", "EXT1", "EXT2", "EXT4", "NEXT_BUFFER", "READONLY_BUFFER"}
)
#: Opcodes that build a hashable container.
_HASHED = frozenset({"TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "FROZENSET"})
#: Maximum number of nested parts of a tuple; a shared part counts each time it occurs.
_MOST_PARTS = 10_000_000
_LOAD_ERRORS = (
    pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, LookupError,
    OverflowError, MemoryError, RecursionError,
)  # fmt: skip


class StubObject:
    """Inert replacement of a TVM object: holds the pickled state and does nothing.

    Attributes:
        state: the pickled state, e.g. `{"handle": JSON text}`; None if there was none.
    """

    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def get(self, name: str) -> Any:
        """Returns entry `name` of a dict state, or None."""
        return self.state.get(name) if isinstance(self.state, dict) else None


class ObjectStub(StubObject):
    """`tvm.runtime.object.Object`."""

    __slots__ = ()


class SearchTaskStub(StubObject):
    """`tvm.auto_scheduler.search_task.SearchTask`."""

    __slots__ = ()


class HardwareParamsStub(StubObject):
    """`tvm.auto_scheduler.search_task.HardwareParams`."""

    __slots__ = ()


class ComputeDagStub(StubObject):
    """`tvm.auto_scheduler.compute_dag.ComputeDAG`."""

    __slots__ = ()


class TargetStub(StubObject):
    """`tvm.target.target.Target`."""

    __slots__ = ()


class ArrayStub(StubObject):
    """`tvm.ir.container.Array`."""

    __slots__ = ()


class StringStub(str):
    """`tvm.runtime.container.String`: a str; its object state is dropped."""

    __slots__ = ()

    def __new__(cls, text: str = "") -> StringStub:
        """Accepts only text: no decoding of bytes, no `str()` of other objects."""
        if not isinstance(text, str):
            raise pickle.UnpicklingError("a String of something that is not text")
        return super().__new__(cls, text)

    def __setstate__(self, state: Any) -> None:
        """Ignores the state."""


class _NewObject:
    """`tvm.runtime.object._new_object`: creates an empty object of a stub class only."""

    __slots__ = ()

    def __call__(self, cls: object) -> StubObject:
        if not (isinstance(cls, type) and issubclass(cls, StubObject)):
            raise pickle.UnpicklingError("_new_object of something that is not a TVM class")
        return cls()

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("state given to a function")


_GLOBALS: dict[tuple[str, str], Any] = {
    ("tvm.runtime.object", "_new_object"): _NewObject(),
    ("tvm.runtime.object", "Object"): ObjectStub,
    ("tvm.auto_scheduler.search_task", "SearchTask"): SearchTaskStub,
    ("tvm.auto_scheduler.search_task", "HardwareParams"): HardwareParamsStub,
    ("tvm.auto_scheduler.compute_dag", "ComputeDAG"): ComputeDagStub,
    ("tvm.target.target", "Target"): TargetStub,
    ("tvm.runtime.container", "String"): StringStub,
    ("tvm.ir.container", "Array"): ArrayStub,
}


@dataclass(frozen=True)
class PickleFormat:
    """Allowed globals in pickles of a dataset, and the words of its errors.

    Attributes:
        allowed: (module, name) -> inert replacement of the global.
        kind: content of a pickle, e.g. `task`.
        file: description of a file, e.g. `a Tenset task file`.
        names: description of its globals, e.g. `TVM's task classes`.
        expected: expected file names, for the error about another file.
        origin: where to fetch the file again.
        limit: maximum (decompressed) size of a pickle, in bytes.
    """

    allowed: Mapping[tuple[str, str], Any]
    kind: str
    file: str
    names: str
    expected: str
    origin: str
    limit: int = MAX_PICKLE_BYTES


TENSET_PICKLES = PickleFormat(
    _GLOBALS, "task", "a Tenset task file", "TVM's task classes",
    "a Tenset all_tasks.pkl or *.task.pkl", "Tenset",
)  # fmt: skip


class _RefusedGlobalError(Exception):
    """The name of a global that is not allowed, escaped: it may contain any character."""


class _RestrictedUnpickler(pickle.Unpickler):
    def __init__(self, data: bytes, allowed: Mapping[tuple[str, str], Any]) -> None:
        super().__init__(io.BytesIO(data))
        self._allowed = allowed

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self._allowed[module, name]
        except KeyError:
            raise _RefusedGlobalError(ascii(f"{module}.{name}")[1:-1]) from None

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("persistent id")


def load_restricted(path: Path, file_format: PickleFormat = TENSET_PICKLES) -> Any:
    """Returns the value pickled in a file, plain or gzipped.

    Raises:
        DataError: the file cannot be read, is empty, truncated or not a pickle, or names a global
            that is not allowed.
    """
    return loads_restricted(_read_bytes(path, file_format), str(path), file_format)


def loads_restricted(data: bytes, where: str, file_format: PickleFormat = TENSET_PICKLES) -> Any:
    """Returns the value pickled in `data`.

    Args:
        data: the pickle.
        where: name of the pickle in errors.
        file_format: its allowed globals.

    Raises:
        DataError: as `load_restricted`.
    """
    if not data:
        raise DataError(
            f"{where}: the pickle is empty; fetch the file again from {file_format.origin}"
        )
    try:
        _check_opcodes(data)
        return _RestrictedUnpickler(data, file_format.allowed).load()
    except _RefusedGlobalError as error:
        raise DataError(
            f"{where}: rejected: the pickle names the global {error}; {file_format.file} names "
            f"only {file_format.names}. Do not trust this file; fetch it again from "
            f"{file_format.origin}"
        ) from None
    except _LOAD_ERRORS as error:
        detail = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(
            f"{where}: not a readable {file_format.kind} pickle ({detail[:120]}); expected "
            f"{file_format.expected}, fetch the file again"
        ) from None


def _read_bytes(path: Path, file_format: PickleFormat) -> bytes:
    """Returns the decompressed content, at most the format's limit."""
    try:
        with path.open("rb") as raw:
            zipped = raw.read(2) == _GZIP_MAGIC
        with gzip.open(path, "rb") if zipped else path.open("rb") as stream:
            data: bytes = stream.read(file_format.limit + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: damaged gzip file ({error}); fetch it again") from None
    except OSError as error:
        raise DataError(f"{path}: cannot read ({error.strerror or error})") from None
    if len(data) > file_format.limit:
        raise DataError(f"{path}: larger than {file_format.limit} bytes, not {file_format.file}")
    return data


def _check_opcodes(data: bytes) -> None:
    """Checks the opcodes of a pickle without running it.

    Rejects outside references, huge memo indices, and tuples that contain each other so often that
    hashing them never ends. The memo is an array that grows to the largest index, so nine bytes
    could allocate gigabytes.
    """
    stack = _Stack()
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name in _REFUSED_OPCODES:
            raise pickle.UnpicklingError(f"operation {opcode.name} is not allowed")
        is_put = opcode.name in ("PUT", "BINPUT", "LONG_BINPUT")
        if is_put and argument is not None and argument > len(data):
            raise pickle.UnpicklingError(f"memo index {argument} in {len(data)} bytes")
        stack.do(opcode, argument)


class _Stack:
    """The stack of a pickle, with the size of each value: the number of objects in a walk over it.

    A value that is not a tuple or frozenset has size 1.
    """

    def __init__(self) -> None:
        self._sizes: list[int] = []
        self._marks: list[int] = []
        self._memo: dict[Any, int] = {}

    def do(self, opcode: pickletools.OpcodeInfo, argument: Any) -> None:
        """Applies one opcode.

        Raises:
            pickle.UnpicklingError: a tuple has more than `_MOST_PARTS` parts.
        """
        name, sizes = opcode.name, self._sizes
        if name == "MARK":
            self._marks.append(len(sizes))
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            sizes.append(self._memo.get(argument, 1))
        elif name in ("BINPUT", "LONG_BINPUT", "PUT", "MEMOIZE"):
            self._memo[len(self._memo) if name == "MEMOIZE" else argument] = sizes[-1]
        elif name == "DUP":
            sizes.append(sizes[-1])
        elif name == "POP" and self._marks and self._marks[-1] == len(sizes):
            self._marks.pop()
        else:
            size = 1 + sum(self._taken(opcode))
            has_parts = name in _HASHED
            if has_parts and size > _MOST_PARTS:
                raise pickle.UnpicklingError(f"a tuple of more than {_MOST_PARTS} parts")
            sizes.extend([size if has_parts else 1] * len(opcode.stack_after))

    def _taken(self, opcode: pickletools.OpcodeInfo) -> list[int]:
        """Pops the operands of an opcode from the stack and returns them."""
        before = opcode.stack_before
        start = len(self._sizes) - len(before)
        if pickletools.markobject in before:
            start = self._marks.pop() - before.index(pickletools.markobject)
        taken = self._sizes[max(start, 0) :]
        del self._sizes[max(start, 0) :]
        return taken
