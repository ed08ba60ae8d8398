"""Leaf tables on the wire: what comes back is what was sent, and nonsense is refused."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cdmpp.errors import DataError
from cdmpp.serve.leaf_table import MOST_LEAVES, decode_asts, encode_asts
from tests.serve.serving import programs


def test_programs_come_back_to_the_bit():
    sent = programs(5)
    for one, other in zip(sent, decode_asts(encode_asts(sent)), strict=True):
        for name in ("leaf_features", "leaf_extra", "leaf_position", "tree"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def test_no_programs_are_none():
    assert decode_asts(encode_asts([])) == []


def _changed(name: str, dtype: str, place: int, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(tables: dict[str, Any]) -> None:
        array = np.frombuffer(base64.b64decode(tables[name]), dtype).copy()
        array[place] = value
        tables[name] = base64.b64encode(array.tobytes()).decode()

    return change


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda tables: tables.update(schema={"leaf": 0}), "schema"),
        (lambda tables: tables.update(leaf_features="!"), "base64"),
        (lambda tables: tables.update(tree=tables["tree"][:-4]), "bytes, expected"),
        (lambda tables: tables.update(leaf_count=[1, -1]), "below 1"),
        (lambda tables: tables.update(leaf_count=[MOST_LEAVES + 1, 1]), "stores"),
        (lambda tables: tables.update(leaf_count=[1]), "differ in length"),
        (_changed("leaf_features", "<f4", 3, np.nan), "not finite"),
        (_changed("leaf_features", "<f4", 3, 1e30), "not finite"),
        (_changed("leaf_extra", "<f4", 0, np.inf), "not finite"),
        (_changed("tree", "<i4", 0, -1), "nodes out of order"),
        (_changed("tree", "<i4", 1, 9), "nodes out of order"),
        (_changed("leaf_position", "<i4", 0, 1 << 30), "nodes out of order"),
        (_changed("leaf_position", "<i4", 0, -2), "nodes out of order"),
    ],
)
def test_nonsense_is_refused(change, text):
    tables = encode_asts(programs(2))
    change(tables)
    with pytest.raises(DataError, match=text):
        decode_asts(tables)
