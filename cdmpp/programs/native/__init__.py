"""Records and loop trees to compact ASTs in C++: the only featuriser.

Begin with `build` (where the library is) and `binding` (its functions). It is tested on a Python
reference, `tests/programs/reference`.
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
