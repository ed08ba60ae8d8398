"""Names and blocks of the additional leaf columns (`CompactAst.leaf_extra`).

They extend the original's 164 columns of a leaf vector. Each block can be left out for ablations
(`EXTRA_BLOCKS`). docs/reference/features.md describes the columns.
"""

from __future__ import annotations

from cdmpp.programs.compact_ast import LEAF_EXTRA_COUNT, LEAF_EXTRA_SCHEMA_VERSION
from cdmpp.programs.schema import ACCESS_SLOT_COUNT

__all__ = [
    "ACROSS_THREADS_COLUMN", "CAPACITIES", "EXTRA_BLOCKS", "LEAF_EXTRA_COUNT", "LEAF_EXTRA_NAMES",
    "LEAF_EXTRA_SCHEMA_VERSION", "MEMORIES", "NEAR_CAPACITY", "NEST_KINDS",
    "NEST_LEVEL_COUNT", "PAGE_ENTRIES", "SET_COUNTS", "TRAFFIC_COLUMNS",
]  # fmt: skip

#: Kinds of memory, in the order of their columns.
MEMORIES = ("global", "shared", "local")
#: Number of enclosing loops with columns, innermost first.
NEST_LEVEL_COUNT = 8
#: Kinds of loops, in the order of their columns.
NEST_KINDS = ("serial", "parallel", "vectorized", "unrolled", "vthread", "block", "thread")
#: Cache capacities with a traffic column, in bytes, 1 KiB to 256 MiB.
CAPACITIES = tuple(1 << bits for bits in range(10, 29, 2))
#: The largest capacity with the number of sets of an L1 cache.
NEAR_CAPACITY = 1 << 16
#: Numbers of TLB entries with a column.
PAGE_ENTRIES = (64, 2048)
#: Sets of an L1 and of an L2 cache whose lines are counted.
SET_COUNTS = (64, 2048)

_SLOTS = ("store", *(f"B{slot}" for slot in range(ACCESS_SLOT_COUNT)))

_COLUMNS: dict[str, tuple[str, ...]] = {
    "scope": tuple(f"{slot}.{memory}" for slot in _SLOTS for memory in MEMORIES),
    "dtype": (*(f"{slot}.bytes" for slot in _SLOTS), "store.is_float"),
    "alloc": tuple(f"{slot}.{name}" for slot in _SLOTS for name in ("bytes", "is_parameter")),
    "condition": ("depth", "terms", "selects", "guards"),
    "thread_stride": (
        "lanes",
        *(
            f"{slot}.{name}"
            for slot in _SLOTS
            for name in (
                "stride", "is_broadcast", "is_contiguous", "is_strided", "is_irregular", "sectors",
                "bank_conflicts",
            )
        ),
    ),
    "occupancy": (
        "threads", "warps", "warp_fill", "blocks", "all_threads", "vthreads", "shared_bytes",
        "local_bytes", "parallel_iterations", "float_ops", "float_ops_per_thread", "leaves",
    ),
    "loop_nest": tuple(
        f"N{level}.{name}"
        for level in range(NEST_LEVEL_COUNT)
        for name in ("extent", *(f"is_{kind}" for kind in NEST_KINDS), "is_reduction")
    ),
    "program": ("float_ops", "leaves", "depth", "kernels", "input_bytes"),
    "footprint": (
        *(f"N{level}.bytes" for level in range(NEST_LEVEL_COUNT)),
        *(f"traffic_{capacity >> 10}k" for capacity in CAPACITIES),
    ),
    "lines": (
        *(f"N{level}.bytes" for level in range(NEST_LEVEL_COUNT)),
        *(f"traffic_{capacity >> 10}k" for capacity in CAPACITIES),
        *(f"conflict_{capacity >> 10}k" for capacity in CAPACITIES),
        *(f"pages_{entries}" for entries in PAGE_ENTRIES),
    ),
    "execution": ("iterations", "across_threads"),
    "integer": (
        *(
            f"int{bits}.{operation}"
            for bits in (8, 16, 32, 64)
            for operation in ("addsub", "mul", "other")
        ),
        "intrinsics", "program_ops",
    ),
    "sets": tuple(
        f"N{level}.{name}_{sets}"
        for level in range(NEST_LEVEL_COUNT)
        for sets in SET_COUNTS
        for name in ("fullest", "beyond")
    ),
}  # fmt: skip


def _blocks() -> dict[str, slice]:
    blocks: dict[str, slice] = {}
    first = 0
    for block, names in _COLUMNS.items():
        blocks[block] = slice(first, first + len(names))
        first += len(names)
    return blocks


#: Columns of every block, in the order of the blocks.
EXTRA_BLOCKS: dict[str, slice] = _blocks()
_FOOTPRINT = EXTRA_BLOCKS["footprint"]
#: Traffic columns of `CAPACITIES`, a part of the block `footprint`.
TRAFFIC_COLUMNS = slice(_FOOTPRINT.stop - len(CAPACITIES), _FOOTPRINT.stop)
#: Column that marks leaves which combine values of threads; version 3 lacks these leaves.
ACROSS_THREADS_COLUMN = EXTRA_BLOCKS["execution"].start + 1
#: Column names of `CompactAst.leaf_extra`, in order.
LEAF_EXTRA_NAMES: tuple[str, ...] = tuple(
    f"{block}.{name}" for block, names in _COLUMNS.items() for name in names
)
assert len(LEAF_EXTRA_NAMES) == LEAF_EXTRA_COUNT
