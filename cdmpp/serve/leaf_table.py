"""Leaf tables on the wire: compact ASTs of many programs as one JSON object, arrays in base64.

All arrays are validated: tables that a model cannot read are rejected with a message.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.errors import DataError
from cdmpp.programs.added_columns import ACROSS_THREADS_COLUMN
from cdmpp.programs.compact_ast import (
    FIRST_WITH_ACROSS_THREADS,
    LEAF_EXTRA_COUNTS,
    LEAF_EXTRA_SCHEMA_VERSION,
    LEAF_FEATURE_COUNT,
    LEAF_SCHEMA_VERSION,
    CompactAst,
)

#: Maximum stores per program: the cost of a model grows with their square.
MOST_LEAVES = 1024
#: Bound of all columns, which are logarithmic: sign(x) log2(|x| + 1).
_LARGEST = 1e4


def encode_asts(asts: Sequence[CompactAst]) -> dict[str, Any]:
    """Returns compact ASTs as JSON values: the schema, `leaf_count` and `tree_length` of each, and
    their concatenated arrays, little-endian in base64.
    """
    parts = [np.zeros((0, LEAF_FEATURE_COUNT), np.float32)], [np.zeros((0, 0), np.float32)]
    features = [one.leaf_features for one in asts] or parts[0]
    extra = [one.leaf_extra for one in asts] or parts[1]
    empty = [np.zeros(0, np.int32)]
    version = asts[0].version if asts else LEAF_EXTRA_SCHEMA_VERSION
    return {
        "schema": {"leaf": LEAF_SCHEMA_VERSION, "leaf_extra": version},
        "leaf_count": [len(one.leaf_features) for one in asts],
        "tree_length": [len(one.tree) for one in asts],
        "leaf_features": _text(np.concatenate(features), "<f4"),
        "leaf_extra": _text(np.concatenate(extra), "<f4"),
        "leaf_position": _text(np.concatenate(empty + [one.leaf_position for one in asts]), "<i4"),
        "tree": _text(np.concatenate(empty + [one.tree for one in asts]), "<i4"),
    }


def decode_asts(value: Mapping[str, Any], wanted: int | None = None) -> list[CompactAst]:
    """Returns the compact ASTs of an `encode_asts` object.

    Args:
        wanted: version of the extra leaf columns; None = that of the tables.

    Raises:
        DataError: another schema, inconsistent sizes, or impossible values.
    """
    version = value["schema"].get("leaf_extra")
    known = {"leaf": LEAF_SCHEMA_VERSION, "leaf_extra": version}
    if value["schema"] != known or version not in LEAF_EXTRA_COUNTS:
        raise DataError(
            f"leaf tables of schema {value['schema']}, expected leaf {LEAF_SCHEMA_VERSION} and "
            f"leaf_extra {' or '.join(map(str, LEAF_EXTRA_COUNTS))}; install the same version of "
            "cdmpp on both sides"
        )
    columns, wanted = LEAF_EXTRA_COUNTS[version], wanted or version
    leaf_count, tree_length = list(value["leaf_count"]), list(value["tree_length"])
    if len(leaf_count) != len(tree_length) or min([*leaf_count, *tree_length], default=1) < 1:
        raise DataError("leaf_count and tree_length differ in length, or have an entry below 1")
    if max(leaf_count, default=0) > MOST_LEAVES:
        raise DataError(f"a program of {max(leaf_count)} stores; expected at most {MOST_LEAVES}")
    leaves, nodes = sum(leaf_count), sum(tree_length)
    features = _array(value, "leaf_features", "<f4", leaves * LEAF_FEATURE_COUNT)
    extra = _array(value, "leaf_extra", "<f4", leaves * columns)
    position = _array(value, "leaf_position", "<i4", leaves)
    tree = _array(value, "tree", "<i4", nodes)
    if not np.all(np.abs(features) <= _LARGEST) or np.any(np.abs(extra) > _LARGEST):
        raise DataError("leaf columns that are not finite, or beyond any program's")
    features = features.reshape(leaves, LEAF_FEATURE_COUNT)
    extra = extra.reshape(leaves, columns)
    differs = wanted < FIRST_WITH_ACROSS_THREADS and np.any(extra[:, ACROSS_THREADS_COLUMN] > 0)
    if wanted > version or differs:
        raise DataError(
            f"leaf tables of leaf_extra {version}, the model reads {wanted}; featurise the "
            f"programs with featurise_modules(..., version={wanted})"
        )
    if leaf_count:
        _check_trees(tree, position, np.array(tree_length), np.array(leaf_count))
    row, node, asts = 0, 0, []
    for count, length in zip(leaf_count, tree_length, strict=True):
        own = slice(row, row + count)
        asts.append(
            CompactAst(
                features[own],
                extra[own, : LEAF_EXTRA_COUNTS[wanted]],
                position[own],
                tree[node : node + length],
            )
        )
        row, node = row + count, node + length
    return asts


def _check_trees(
    tree: NDArray[np.int32],
    position: NDArray[np.int32],
    tree_length: NDArray[np.int64],
    leaf_count: NDArray[np.int64],
) -> None:
    """Checks that the nodes of every tree are entered in order and left again, and that leaves are
    nodes. It checks all trees at once, because there are many small ones.

    Raises:
        DataError: a tree is invalid.
    """
    stop = np.cumsum(tree_length)
    start = stop - tree_length
    is_entry = tree != -1
    depth = np.cumsum(np.where(is_entry, 1, -1))
    entries = np.cumsum(is_entry)
    before = np.repeat(entries[start] - is_entry[start], tree_length)
    is_outside = (position < 0) | (position >= np.repeat(tree_length, leaf_count))
    place = np.where(is_outside, 0, position) + np.repeat(start, leaf_count)
    if (
        np.any(tree[is_entry] != (entries - 1 - before)[is_entry])
        or np.any(depth[stop - 1] != 0)
        or depth.min() < 0
        or np.any(is_outside)
        or np.any(np.diff(place) <= 0)
        or not np.all(is_entry[place])
    ):
        raise DataError("a tree with nodes out of order, or with leaves that are not its nodes")


def _text(array: NDArray[Any], dtype: str) -> str:
    return base64.b64encode(np.ascontiguousarray(array, dtype).tobytes()).decode("ascii")


def _array(value: Mapping[str, Any], name: str, dtype: str, count: int) -> NDArray[Any]:
    try:
        data = base64.b64decode(value[name], validate=True)
    except (binascii.Error, ValueError):
        raise DataError(f"{name} is not base64") from None
    if len(data) != 4 * count:
        raise DataError(f"{name} has {len(data)} bytes, expected {4 * count}")
    return np.frombuffer(data, dtype)
