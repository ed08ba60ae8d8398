"""The native fast path: records to compact ASTs in C++, equal to the Python reference."""

from cdmpp.programs.native.binding import (
    PHASES,
    NativeBatch,
    NativeTask,
    Status,
    featurise_trees,
)
from cdmpp.programs.native.build import NativeBuildError, native_library

__all__ = [
    "PHASES",
    "NativeBatch",
    "NativeBuildError",
    "NativeTask",
    "Status",
    "featurise_trees",
    "native_library",
]
