"""Cache lines and pages that a box of a buffer covers, and the cache sets that they fall into."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tests.programs.reference.accesses import CACHE_LINE_BYTES

PAGE_BYTES = 4096
#: Sets of a first-level and of a second-level cache.
NEAR_SETS, FAR_SETS = 64, 1024
#: Lines that are counted, those of a set that are within it, and numbers of sets.
MOST_COUNTED, WAYS, COUNTED_SETS = 2048, 8, (64, 2048)


@dataclass(frozen=True)
class SetLoad:
    """Lines of a box in the sets of a cache.

    Attributes:
        fullest: in the fullest set.
        beyond: beyond `WAYS` in any set.
    """

    fullest: float
    beyond: float


@dataclass(frozen=True)
class Cover:
    """What a box covers of a buffer that lies row by row.

    Attributes:
        line_bytes: bytes of the lines.
        near_bytes: the same, times the share of `NEAR_SETS` sets that the lines leave unused: what
            a cache of so many sets must hold for all of the lines to stay.
        far_bytes: the same for `FAR_SETS` sets.
        pages: pages of `PAGE_BYTES`.
        loads: of the sets of caches with `COUNTED_SETS`.
    """

    line_bytes: float
    near_bytes: float
    far_bytes: float
    pages: float
    loads: tuple[SetLoad, ...]


def cover(region: Sequence[int], extents: Sequence[int], element_bytes: int) -> Cover:
    """Returns the lines and pages of a box, as if it began at the begin of both.

    Rows that are less than a line (a page) apart are one piece.

    Args:
        region: extents of the box.
        extents: of the buffer, as many.
        element_bytes: of one element.
    """
    piece = page_piece = step = element_bytes
    pieces = page_pieces = 1
    steps: list[tuple[int, int]] = []
    for width, extent in zip(reversed(region), reversed(extents), strict=True):
        if width > 1:
            if pieces == 1 and step <= _whole(piece, CACHE_LINE_BYTES):
                piece += (width - 1) * step
            else:
                pieces *= width
                steps.append((step, width))
            if page_pieces == 1 and step <= _whole(page_piece, PAGE_BYTES):
                page_piece += (width - 1) * step
            else:
                page_pieces *= width
        step *= extent
    lines_of_piece = -(-piece // CACHE_LINE_BYTES)
    lines = pieces * lines_of_piece
    line_bytes = float(lines * CACHE_LINE_BYTES)
    pages = float(page_pieces * -(-page_piece // PAGE_BYTES))
    loads = tuple(_load(lines, lines_of_piece, steps, sets) for sets in COUNTED_SETS)
    if not steps:
        return Cover(line_bytes, line_bytes, line_bytes, pages, loads)
    near, far = (
        line_bytes * (min(lines, sets) / _used_sets(lines_of_piece, steps, sets))
        for sets in (NEAR_SETS, FAR_SETS)
    )
    return Cover(line_bytes, near, far, pages, loads)


def added(covers: Sequence[Cover]) -> Cover:
    """Returns what several boxes cover together, counted as if they were apart."""
    line_bytes = near_bytes = far_bytes = pages = 0.0
    for one in covers:  # `sum` rounds in another way than the native twin
        line_bytes += one.line_bytes
        near_bytes += one.near_bytes
        far_bytes += one.far_bytes
        pages += one.pages
    loads = [
        SetLoad(max(one.fullest for one in of_sets), sum(one.beyond for one in of_sets))
        for of_sets in zip(*(one.loads for one in covers), strict=True)
    ]
    return Cover(line_bytes, near_bytes, far_bytes, pages, tuple(loads))


def _load(lines: int, lines_of_piece: int, steps: Sequence[tuple[int, int]], sets: int) -> SetLoad:
    """Returns the load of a cache's sets: counted for up to `MOST_COUNTED` lines, the others in
    proportion. Long pieces fill all sets alike.

    Args:
        lines: of all pieces.
        steps, sets: see `_used_sets`.
    """
    if not steps or lines_of_piece > MOST_COUNTED:
        return SetLoad(float(-(-lines // sets)), float(max(lines - WAYS * sets, 0)))
    pieces = min(lines // lines_of_piece, MOST_COUNTED // lines_of_piece)
    in_set: Counter[int] = Counter()
    for number in range(pieces):
        address = 0
        for step, count in steps:
            number, place = divmod(number, count)
            address += place * step
        first = address // CACHE_LINE_BYTES
        in_set.update(line % sets for line in range(first, first + lines_of_piece))
    all_lines = lines / (pieces * lines_of_piece)
    beyond = sum(max(count - WAYS, 0) for count in in_set.values())
    return SetLoad(all_lines * max(in_set.values()), all_lines * beyond)


def _whole(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def _used_sets(lines: int, steps: Sequence[tuple[int, int]], sets: int) -> int:
    """Returns how many sets hold a line of pieces of `lines` lines each.

    Args:
        lines: of a piece.
        steps: (bytes from one piece to the next, how many), innermost first.
        sets: of the cache, a power of two.
    """
    full = (1 << sets) - 1
    used = (1 << min(lines, sets)) - 1
    for step, count in steps:
        done = 1
        while done < count and used != full:
            more = min(done, count - done)
            turn = more * step // CACHE_LINE_BYTES % sets
            used |= (used << turn | used >> (sets - turn)) & full
            done += more
    return used.bit_count()
