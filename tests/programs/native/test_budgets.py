"""Records of a few steps that would take minutes or all memory end with a reason, the same natively
and in Python.
"""

from __future__ import annotations

from typing import Any

import pytest

from cdmpp.programs.native import NativeTask, Status, native_library
from tests.programs.ansor.small_dags import matmul_relu
from tests.programs.native.native_fuzz import Seed, difference, native_batch, python_outcome


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        # Every round writes the name of the outer loop twice into that of the next one.
        ([["SP", 2, 0, 64, [2], 1], ["FU", 2, [0, 1]]] * 60, "name is too long: at most 4096"),
        ([["SP", 2, 0, 64, [1] * 100_000, 1]], "name is too long: at most 4096 bytes"),
        ([["CHW", 2, "s" * 5000]], "name is too long: at most 4096 bytes"),
        # Each looks through the names of all stages before it, as often as there are such.
        ([["CHR", 0, "shared", [3]]] * 4000, "too many stages: at most 256"),
        ([["FU", 2, []]] * 4096, "too many iterators: at most 4096"),
    ],
)
def test_short_records_that_grow_end(steps: list[Any], reason: str) -> None:
    seed = Seed(matmul_relu(), steps, False, None)
    expected = python_outcome(seed, steps)
    assert str(expected).startswith(reason)
    library = native_library()
    batch = native_batch(NativeTask(seed.dag, library), seed, [steps])
    assert difference(batch, 0, expected) is None
    assert int(batch.status[0]) == Status.FAILED


@pytest.mark.parametrize(
    "step", [["FFSP", 2, 0, [0] * 100_000, 0, 1], ["FSP", 2, 0, 0, 1]], ids=lambda step: step[0]
)
def test_products_of_lengths_end(step: list[Any]) -> None:
    """A product of a hundred thousand numbers of a thousand digits would take hours."""
    steps = [["SP", 2, 0, 64, [10**1000] * 4, 1], step]
    expected = python_outcome(Seed(matmul_relu(), steps, False, None), steps)
    assert expected == "split length is beyond 64 bits"
