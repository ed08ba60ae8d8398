"""The compact AST: leaf vectors of a program and their positions in the serialised tree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

#: Version of the meaning of the 164 leaf columns; models reject features of other versions.
LEAF_SCHEMA_VERSION = 1
#: Version of the meaning of the additional `leaf_extra` columns (`cdmpp.programs.added_columns`).
LEAF_EXTRA_SCHEMA_VERSION = 5
LEAF_FEATURE_COUNT = 164
#: First version with the leaves of cross-thread reductions.
FIRST_WITH_ACROSS_THREADS = 4
#: First version with the block `sets`.
FIRST_WITH_SETS = 5
#: Version -> number of columns. The columns of a version are the first of the next version, with
#: the same values except for cross-thread reductions (`FIRST_WITH_ACROSS_THREADS`).
LEAF_EXTRA_COUNTS: Mapping[int, int] = MappingProxyType({3: 221, 4: 237, 5: 269})
LEAF_EXTRA_COUNT = LEAF_EXTRA_COUNTS[LEAF_EXTRA_SCHEMA_VERSION]


@dataclass(frozen=True)
class CompactAst:
    """Features of a program for cost models.

    Attributes:
        leaf_features: float32 [leaf, 164], columns as `cdmpp.programs.schema.LEAF_FEATURE_NAMES`.
        leaf_extra: float32 [leaf, E], additional columns with their own schema version, named by
            `cdmpp.programs.added_columns.LEAF_EXTRA_NAMES` (E may be 0).
        leaf_position: int32 [leaf], index of the leaf's number in `tree`.
        tree: int32 [2 * node], pre-order serialisation: a node's number on entry, -1 on exit.
        valid: whether the original toolchain accepts the program.
        reject_reason: why it is rejected; None if valid.
        fallback: name of the fallback that created it; None for the standard path.
    """

    leaf_features: NDArray[np.float32]
    leaf_extra: NDArray[np.float32]
    leaf_position: NDArray[np.int32]
    tree: NDArray[np.int32]
    valid: bool = True
    reject_reason: str | None = None
    fallback: str | None = None

    @property
    def version(self) -> int:
        """Version of `leaf_extra`, derived from its number of columns."""
        return leaf_extra_version(self.leaf_extra.shape[1])

    def of_version(self, version: int) -> CompactAst:
        """Returns the AST with the added columns of the same or an earlier version."""
        count = LEAF_EXTRA_COUNTS[version]
        if count == self.leaf_extra.shape[1]:
            return self
        return replace(self, leaf_extra=self.leaf_extra[:, :count])


def has_added_columns(leaf_extra: NDArray[np.float32]) -> bool:
    """Returns whether leaves have the added columns of any version."""
    return leaf_extra.shape[1] in LEAF_EXTRA_COUNTS.values()


def leaf_extra_version(count: int) -> int:
    """Returns the version with `count` added columns; the newest if there is none."""
    by_count = {columns: version for version, columns in LEAF_EXTRA_COUNTS.items()}
    return by_count.get(count, LEAF_EXTRA_SCHEMA_VERSION)
