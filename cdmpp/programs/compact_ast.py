"""The compact AST: leaf vectors of a program plus their places in the serialised tree."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: Version of the meaning of the 164 leaf columns; a model refuses features of another version.
LEAF_SCHEMA_VERSION = 1
#: Version of the meaning of the additional `leaf_extra` columns (`cdmpp.programs.added_columns`).
LEAF_EXTRA_SCHEMA_VERSION = 3
LEAF_FEATURE_COUNT = 164
LEAF_EXTRA_COUNT = 221


@dataclass(frozen=True)
class CompactAst:
    """What the cost model sees of a program.

    Attributes:
        leaf_features: float32 [leaf, 164], columns as `cdmpp.programs.schema.LEAF_FEATURE_NAMES`.
        leaf_extra: float32 [leaf, E], additional columns with their own schema version, named by
            `cdmpp.programs.added_columns.LEAF_EXTRA_NAMES` (E may be 0).
        leaf_position: int32 [leaf], index of the leaf's number in `tree`.
        tree: int32 [2 * node], pre-order serialisation: a node's number on entering, -1 on leaving.
        valid: False when the original toolchain would reject the program.
        reject_reason: why, or None.
        fallback: name of the fallback that made it; None for the usual way.
    """

    leaf_features: NDArray[np.float32]
    leaf_extra: NDArray[np.float32]
    leaf_position: NDArray[np.int32]
    tree: NDArray[np.int32]
    valid: bool = True
    reject_reason: str | None = None
    fallback: str | None = None
