"""Python binding of the native featuriser: converts records to arrays of compact ASTs."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from ctypes import (
    POINTER,
    c_char,
    c_char_p,
    c_float,
    c_int32,
    c_int64,
    c_size_t,
    c_uint8,
    c_void_p,
)
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.errors import DataError
from cdmpp.programs.ansor.dag import Dag
from cdmpp.programs.compact_ast import LEAF_EXTRA_COUNT, LEAF_FEATURE_COUNT
from cdmpp.programs.gpu_limits import GpuLimits
from cdmpp.programs.loops.loop_tree import LoopTree
from cdmpp.programs.native.flatten import flatten_dag, flatten_tree

#: Phases timed by the native code, in the order of its counters.
PHASES = ("parse", "replay", "lower", "simplify", "features")
_ERROR_BYTES = 200


class Status(IntEnum):
    """Result of a record.

    Attributes:
        VALID: it has a compact AST.
        REJECTED: it has a compact AST, but the original toolchain rejects the program.
        FAILED: its steps cannot be replayed.
        DECLINED: it contains something without a native form, such as an integer above 64 bits.
    """

    VALID = 0
    REJECTED = 1
    FAILED = 2
    DECLINED = 3


@dataclass(frozen=True)
class NativeBatch:
    """Compact ASTs of R records, stacked.

    Attributes:
        status: uint8 [R], see `Status`.
        reasons: why a record is rejected, failed or declined; otherwise empty.
        details: details of a failure; often empty.
        leaf_offset: int64 [R + 1]; leaves of record r are rows leaf_offset[r]:leaf_offset[r + 1].
        leaf_features: float32 [L, 164].
        leaf_extra: float32 [L, E].
        leaf_position: int32 [L].
        tree_offset: int64 [R + 1].
        tree: int32 [T], concatenated serialised trees.
        seconds: time of each of `PHASES`, summed over threads.
    """

    status: NDArray[np.uint8]
    reasons: list[str]
    details: list[str]
    leaf_offset: NDArray[np.int64]
    leaf_features: NDArray[np.float32]
    leaf_extra: NDArray[np.float32]
    leaf_position: NDArray[np.int32]
    tree_offset: NDArray[np.int64]
    tree: NDArray[np.int32]
    seconds: dict[str, float]


class _Result(ctypes.Structure):
    _fields_ = (
        ("record_count", c_int64),
        ("leaf_count", c_int64),
        ("tree_size", c_int64),
        ("text_size", c_int64),
        ("features", POINTER(c_float)),
        ("extra", POINTER(c_float)),
        ("positions", POINTER(c_int32)),
        ("tree", POINTER(c_int32)),
        ("leaf_offsets", POINTER(c_int64)),
        ("tree_offsets", POINTER(c_int64)),
        ("status", POINTER(c_uint8)),
        ("text", POINTER(c_char)),
        ("text_offsets", POINTER(c_int64)),
        ("nanoseconds", c_int64 * len(PHASES)),
    )


class NativeTask:
    """The native featuriser of one computation; thread-safe.

    Args:
        dag: the computation.
        library: the compiled library (`cdmpp.programs.native.build.native_library`).

    Raises:
        DataError: the computation cannot be represented natively.
    """

    def __init__(self, dag: Dag, library: ctypes.CDLL) -> None:
        self._task: int | None = None
        _set_types(library)
        self._library = library
        self._free = library.cdmpp_task_free
        flat = flatten_dag(dag)
        data = (c_int64 * len(flat.data)).from_buffer(flat.data)
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        self._task = library.cdmpp_task_new(
            data, len(flat.data), flat.text, len(flat.text), error, _ERROR_BYTES
        )
        if not self._task:
            raise DataError(
                f"Cannot represent a computation ({error.value.decode()}); expected 64-bit "
                "integers and expressions of usual size."
            )

    def __del__(self) -> None:
        if self._task:
            self._free(self._task)

    def featurise_steps(
        self,
        steps: Sequence[bytes],
        *,
        is_gpu: Sequence[bool],
        limits: Sequence[GpuLimits | None],
        threads: int = 1,
    ) -> NativeBatch:
        """Replays, lowers and featurises programs given by their steps as JSON text.

        Args:
            steps: one UTF-8 text per record, `[[code, argument, ...], ...]`.
            is_gpu: whether a program is a GPU kernel, one per record.
            limits: limits of the kernels, one per record; None = unlimited.
            threads: number of threads of this call.
        """
        settings = _settings(is_gpu, limits)
        offsets = np.zeros(len(steps) + 1, dtype=np.int64)
        np.cumsum([len(text) for text in steps], out=offsets[1:])
        return call(
            self._library,
            self._library.cdmpp_featurise,
            self._task,
            b"".join(steps),
            offsets.ctypes.data,
            settings.ctypes.data,
            len(steps),
            max(1, threads),
        )


def featurise_trees(
    trees: Sequence[LoopTree], limits: Sequence[GpuLimits | None], library: ctypes.CDLL
) -> NativeBatch:
    """Featurises loop trees.

    A tree without a native form is declined (`Status.DECLINED`).

    Args:
        trees: the programs.
        limits: limits of the kernels, one per program; None = unlimited.
        library: the compiled library (`cdmpp.programs.native.build.native_library`).
    """
    _set_types(library)
    numbers, text = array("q"), bytearray()
    number_offsets, text_offsets = array("q", [0]), array("q", [0])
    without_form: dict[int, str] = {}
    for number, tree in enumerate(trees):
        try:
            data, names = flatten_tree(tree)
        except DataError as error:  # the native code declines an empty form
            data, names = array("q"), b""
            without_form[number] = str(error)
        numbers.extend(data)
        text += names
        number_offsets.append(len(numbers))
        text_offsets.append(len(text))
    settings = _settings([tree.is_gpu for tree in trees], limits)
    batch = call(
        library,
        library.cdmpp_featurise_trees,
        numbers.buffer_info()[0],
        number_offsets.buffer_info()[0],
        bytes(text),
        text_offsets.buffer_info()[0],
        settings.ctypes.data,
        len(trees),
    )
    for number, reason in without_form.items():
        batch.reasons[number] = reason
    return batch


def call(library: ctypes.CDLL, function: Any, *arguments: Any) -> NativeBatch:
    """Calls a function of the library that returns a batch.

    Raises:
        MemoryError: the native code ran out of memory.
    """
    function.restype = POINTER(_Result)
    library.cdmpp_result_free.argtypes = (POINTER(_Result),)
    library.cdmpp_result_free.restype = None
    result = function(*arguments)
    if not result:
        raise MemoryError("the native featuriser has not enough memory; use smaller batches")
    try:
        return _copied(result.contents)
    finally:
        library.cdmpp_result_free(result)


def _settings(is_gpu: Sequence[bool], limits: Sequence[GpuLimits | None]) -> NDArray[np.int64]:
    """Returns int64 [programs, 5], the layout that `settings_at` in `featurise.cc` reads."""
    rows = [
        (gpu, 0, 0, 0, 0)
        if limit is None
        else (gpu, 1, limit.shared_bytes, limit.threads, limit.vthreads)
        for gpu, limit in zip(is_gpu, limits, strict=True)
    ]
    return np.array(rows, dtype=np.int64).reshape(-1, 5)


def _set_types(library: ctypes.CDLL) -> None:
    library.cdmpp_task_new.argtypes = (
        POINTER(c_int64), c_size_t, c_char_p, c_size_t, c_char_p, c_size_t,
    )  # fmt: skip
    library.cdmpp_task_new.restype = c_void_p
    library.cdmpp_task_free.argtypes = (c_void_p,)
    library.cdmpp_task_free.restype = None
    library.cdmpp_featurise.argtypes = (
        c_void_p, c_char_p, c_void_p, c_void_p, c_size_t, c_size_t,
    )  # fmt: skip
    library.cdmpp_featurise_trees.argtypes = (
        c_void_p, c_void_p, c_char_p, c_void_p, c_void_p, c_size_t,
    )  # fmt: skip


def _copied(result: _Result) -> NativeBatch:
    records, leaves = int(result.record_count), int(result.leaf_count)
    text = ctypes.string_at(result.text, result.text_size)
    bounds = _vector(result.text_offsets, 2 * records + 1).tolist()
    texts = (
        [text[low:high].decode() for low, high in pairwise(bounds)]
        if text
        else [""] * (2 * records)
    )
    features = _vector(result.features, leaves * LEAF_FEATURE_COUNT)
    extra = _vector(result.extra, leaves * LEAF_EXTRA_COUNT)
    return NativeBatch(
        status=_vector(result.status, records),
        reasons=texts[::2],
        details=texts[1::2],
        leaf_offset=_vector(result.leaf_offsets, records + 1),
        leaf_features=features.reshape(leaves, LEAF_FEATURE_COUNT),
        leaf_extra=extra.reshape(leaves, LEAF_EXTRA_COUNT),
        leaf_position=_vector(result.positions, leaves),
        tree_offset=_vector(result.tree_offsets, records + 1),
        tree=_vector(result.tree, int(result.tree_size)),
        seconds={
            phase: nanoseconds / 1e9
            for phase, nanoseconds in zip(PHASES, result.nanoseconds, strict=True)
        },
    )


def _vector(pointer: Any, count: int) -> NDArray[Any]:
    """Returns a copy of an array of the library.

    `numpy.ctypeslib` would create a ctypes type for every length, which is never freed.
    """
    vector = np.empty(count, np.dtype(pointer._type_))
    if count:
        ctypes.memmove(vector.ctypes.data, pointer, vector.nbytes)
    return vector
