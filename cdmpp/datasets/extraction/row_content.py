"""Digests of a program's inputs to a model, from rows of `programs`."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

#: Columns of `programs` that `row_contents` needs.
CONTENT_COLUMNS = ("leaf_features", "leaf_extra", "tree")


def row_contents(table: Any) -> list[bytes]:
    """Returns an 8-byte digest of the features and the tree of every row of a pyarrow table."""
    parts = []
    for name in CONTENT_COLUMNS:
        column = table[name].combine_chunks()
        values = column.flatten().to_numpy(zero_copy_only=False)
        lengths = column.value_lengths().to_numpy(zero_copy_only=False)
        parts.append((values, np.concatenate([[0], np.cumsum(lengths)])))
    contents = []
    for row in range(len(table)):
        digest = hashlib.blake2b(digest_size=8)
        for values, offset in parts:
            digest.update(values[offset[row] : offset[row + 1]].tobytes())
        contents.append(digest.digest())
    return contents
