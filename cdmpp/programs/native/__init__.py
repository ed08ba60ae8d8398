"""The C++ featuriser: converts records and loop trees to compact ASTs.

Start with `build` (compiles and loads the library) and `binding` (its functions). It is tested
against a Python reference, `tests/programs/reference`.
"""

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
