"""Lines, sets and pages of boxes, by hand and against every address one by one."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdmpp.programs.added_columns import LEAF_EXTRA_NAMES
from cdmpp.programs.loops.expr import Buffer, int_var, load
from cdmpp.programs.loops.loop_tree import Loop, LoopTree, Store
from tests.programs.reference.cache_lines import (
    COUNTED_SETS,
    FAR_SETS,
    MOST_COUNTED,
    NEAR_SETS,
    WAYS,
    Cover,
    SetLoad,
    added,
    cover,
)
from tests.programs.reference.tree import compact_ast


@pytest.mark.parametrize(
    ("region", "extents", "lines", "near_lines", "pages"),
    [
        ((), (), 1, 1, 1),
        ((1,), (100,), 1, 1, 1),
        ((16,), (100,), 1, 1, 1),
        ((17,), (100,), 2, 2, 1),
        ((8, 16), (8, 16), 8, 8, 1),  # rows without a gap
        ((8, 4), (8, 16), 8, 8, 1),  # rows less than a line apart
        ((8, 4), (8, 32), 8, 8, 1),  # a row in every second line, of as many sets as needed
        ((8, 4), (8, 1024), 8, 8 * 8, 8),  # rows a page apart: all lines in one set
        ((128, 4), (128, 1024), 128, 128 * 64, 128),
        ((2, 8, 4), (2, 8, 1024), 16, 16 * 16, 16),
        ((4, 4), (4, 1040), 4, 4, 4),  # a line more than a page: other sets
        ((0, 16), (8, 16), 1, 1, 1),  # an empty box
    ],
)
def test_by_hand(
    region: tuple[int, ...], extents: tuple[int, ...], lines: int, near_lines: int, pages: int
) -> None:
    found = cover(region, extents, 4)
    assert found.line_bytes == lines * 64
    assert found.near_bytes == near_lines * 64
    assert found.pages == pages


_dimensions = st.lists(
    st.tuples(st.integers(1, 9), st.integers(0, 7)).map(lambda one: (one[0], sum(one))),
    min_size=1, max_size=3,
)  # fmt: skip


@given(_dimensions, st.integers(1, 40), st.integers(0, 12))
def test_against_every_address(
    dimensions: list[tuple[int, int]], width: int, more_lines: int
) -> None:
    """Rows of whole lines: then no piece begins within a line."""
    row_lines = -(-width // 16) + more_lines
    region = (*(size for size, _ in dimensions), width)
    extents = (*(extent for _, extent in dimensions), row_lines * 16)
    addresses = []
    for index in itertools.product(*(range(size) for size in region)):
        address = 0
        for position, extent in zip(index, extents, strict=True):
            address = address * extent + position
        addresses.append(address * 4)
    lines = {address // 64 for address in addresses}
    found = cover(region, extents, 4)
    assert found.line_bytes == 64 * len(lines)
    for bytes_needed, sets in ((found.near_bytes, NEAR_SETS), (found.far_bytes, FAR_SETS)):
        used = len({line % sets for line in lines})
        assert bytes_needed == 64 * len(lines) * (min(len(lines), sets) / used)
    for counted, sets in zip(found.loads, COUNTED_SETS, strict=True):
        in_set = Counter(line % sets for line in lines)
        beyond = sum(max(count - WAYS, 0) for count in in_set.values())
        if len(lines) <= MOST_COUNTED:
            assert counted == SetLoad(max(in_set.values()), beyond)
    if len(lines) == lines_between(lines):
        assert found.near_bytes == found.line_bytes


def lines_between(lines: set[int]) -> int:
    return max(lines) - min(lines) + 1


def test_boxes_add_up() -> None:
    first = Cover(64, 128, 64, 1, (SetLoad(3, 0), SetLoad(1, 0)))
    second = Cover(128, 128, 256, 2, (SetLoad(2, 5), SetLoad(4, 7)))
    expected = Cover(192, 256, 320, 3, (SetLoad(3, 5), SetLoad(4, 7)))
    assert added([first, second]) == expected


@pytest.mark.parametrize(
    ("rows", "row_floats", "near", "far"),
    [
        (8, 1024, SetLoad(8, 0), SetLoad(1, 0)),  # a page apart: a set of 64, as many lines as ways
        (512, 1024, SetLoad(512, 504), SetLoad(16, 256)),  # 32 sets of 2,048
        (512, 1040, SetLoad(8, 0), SetLoad(1, 0)),  # a line more: every set
        (500, 72, SetLoad(8, 0), SetLoad(2, 0)),  # every fourth or fifth line
        (4096, 1024, SetLoad(4096, 4080), SetLoad(128, 3584)),  # 2,048 counted, twice
    ],
)
def test_loads_of_sets_by_hand(rows: int, row_floats: int, near: SetLoad, far: SetLoad) -> None:
    found = cover((rows, 1), (rows, row_floats), 4)
    assert found.loads == (near, far)


def test_whole_buffers_fill_all_sets_alike() -> None:
    assert cover((64, 16), (64, 16), 4).loads == (SetLoad(1, 0), SetLoad(1, 0))
    assert cover((4096, 1024), (4096, 1024), 4).loads == (
        SetLoad(4096, 262_144 - 512), SetLoad(128, 262_144 - 16_384),
    )  # fmt: skip


def test_columns_of_a_walk_over_columns() -> None:
    """`out[i] = matrix[i, j]` with j outside: four bytes of a line at a time. The 256 lines of a
    column are in four sets of 64, or in 64 of 1,024."""
    matrix = Buffer("matrix", "float32", (256, 256))
    out = Buffer("out", "float32", (256,))
    i, j = int_var("i"), int_var("j")
    store = Store(out, (i,), load(matrix, (i, j)))
    inner = Loop("i", 0, 256, "serial", [store])
    tree = LoopTree((matrix, out), [Loop("j", 0, 256, "serial", [inner])])
    (row,) = compact_ast(tree).leaf_extra
    columns = dict(zip(LEAF_EXTRA_NAMES, row.tolist(), strict=True))

    def column(name: str) -> float:
        return round(2 ** columns[f"lines.{name}"] - 1)

    column_bytes, out_bytes = 256 * 64, 256 * 4
    assert column("N0.bytes") == pytest.approx(column_bytes + out_bytes, rel=1e-4)
    assert column("N1.bytes") == pytest.approx(256 * 256 * 4 + out_bytes, rel=1e-4)
    each = 256 * 256 * (64 + 64)  # nothing is held: a line an access
    per_column = 256 * (column_bytes + out_bytes)
    assert column("traffic_16k") == pytest.approx(each, rel=1e-4)
    assert column("traffic_64k") == pytest.approx(per_column, rel=1e-4)
    assert column("conflict_64k") == pytest.approx(each, rel=1e-4)
    assert column("conflict_256k") == pytest.approx(per_column, rel=1e-4)
    assert column("conflict_1024k") == pytest.approx(256 * 256 * 4 + out_bytes, rel=1e-4)
    assert column("pages_64") == pytest.approx(256 * 256 * 2, rel=1e-4)  # 65 do not fit
    assert column("pages_2048") == pytest.approx(64 + 1, rel=1e-4)
    loads = [round(2 ** columns[f"sets.N0.{name}"] - 1) for name in (
        "fullest_64", "beyond_64", "fullest_2048", "beyond_2048",
    )]  # fmt: skip
    assert loads == [64, 256 - 4 * 8, 2, 0]
