"""Times of embedding lookups on a GPU, from the bytes that its warps move.

One warp serves one (sample, table). The versions, oldest first:

- `plain`: every byte from DRAM at one bandwidth.
- `resident`: a bag hits if all its rows are among those that fit into the cache.
- `curve`: `plain` with a size-dependent bandwidth.
- `cold-start`: unique rows of the batch against the rows that fit.
- `lru`: this package's own. Hits by Che's approximation, for any popularity; corrected traffic; a
  fitted launch time.

Source: the first four restate the formulas of the public repository owensgroup/ml_perf_model (its
first and its later version).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from cdmpp.analytic.embedding.cache_hits import Popularity, TableVisits, uniform_popularity
from cdmpp.analytic.embedding.devices import KernelDevice
from cdmpp.analytic.embedding.shapes import SECTOR_BYTES, EmbeddingShape, Pass
from cdmpp.errors import UsageError

Version = Literal["plain", "resident", "curve", "cold-start", "lru"]
VERSIONS: tuple[Version, ...] = ("plain", "resident", "curve", "cold-start", "lru")
Limit = Literal["dram", "l2", "compute", "launch"]

#: Warps of FBGEMM's forward kernel on a multiprocessor: 64 at an occupancy of 0.71.
FBGEMM_FORWARD_WARPS = 45
_OFFSET_BYTES = SECTOR_BYTES


@dataclass(frozen=True)
class KernelOptions:
    """Kernel and formula of an estimate.

    Attributes:
        version: see the module.
        is_fbgemm: FBGEMM's kernel (45 warps per multiprocessor) instead of one with
            `rows_per_block` warps.
        uses_shared_memory: whether the kernel keeps the indices in shared memory instead of reading
            them again.
        table_offset_bytes: bytes of table offsets that a warp reads in `plain` (64 in the
            original's later versions).
        popularity: popularity of a table's rows, for `lru`; None = uniform.
        dram_share, l2_share: fitted share of the bandwidths that is achieved (`lru`).
        launch_s: fitted time of an empty kernel (`lru`).
    """

    version: Version = "lru"
    is_fbgemm: bool = False
    uses_shared_memory: bool = True
    table_offset_bytes: int = 32
    popularity: Popularity | None = None
    dram_share: float = 1.0
    l2_share: float = 1.0
    launch_s: float = 0.0


@dataclass(frozen=True)
class LookupEstimate:
    """Traffic and time of a kernel.

    Attributes:
        latency_s: seconds.
        limit: what bounds the time.
        dram_bytes, l2_bytes: traffic.
        multiply_adds: arithmetic of the kernel.
        hit_rate: share of row reads that the L2 serves, 0 to 1.
        tables_at_once: number of tables that the running warps access.
        cached_rows: rows of one table that fit into its part of the L2.
    """

    latency_s: float
    limit: Limit
    dram_bytes: float
    l2_bytes: float
    multiply_adds: float
    hit_rate: float
    tables_at_once: int
    cached_rows: int


def estimate(
    shape: EmbeddingShape,
    device: KernelDevice,
    which: Pass = "forward",
    *,
    options: KernelOptions | None = None,
) -> LookupEstimate:
    """Returns traffic and time of one kernel.

    Raises:
        UsageError: this version does not describe the pass or kernel.
    """
    options = options or KernelOptions()
    if which == "backward-dense":
        raise UsageError(
            "embedding: dense gradients are described for CPUs only; use backward-sgd or "
            "backward-adagrad, or --constants of a CPU"
        )
    if options.version in ("plain", "curve"):
        return _uncached(shape, device, which, options)
    if which == "backward-adagrad" and options.version != "lru":
        raise UsageError(
            f"embedding: version {options.version} has no row-wise Adagrad; use plain, curve or lru"
        )
    if options.version == "lru":
        return _lru(shape, device, which, options)
    if options.version == "cold-start" and which == "forward":
        return _cold_start(shape, device, options)
    return _resident(shape, device, which, options)


def warp_bytes(shape: EmbeddingShape, which: Pass, options: KernelOptions) -> int:
    """Returns the bytes that one warp reads and writes, without caches.

    Raises:
        UsageError: the pass is `backward-dense`.
    """
    row, bag, indices = shape.row_sector_bytes, shape.bag_row_bytes, shape.index_sector_bytes
    table = options.table_offset_bytes
    match which:
        case "forward":
            return _OFFSET_BYTES + table + indices + bag + row
        case "backward-sgd" if options.uses_shared_memory:
            return _OFFSET_BYTES + 64 + indices + 2 * bag + row
        case "backward-sgd":
            return 2 * _OFFSET_BYTES + SECTOR_BYTES * shape.lookups + 4 * bag
        case "backward-adagrad":
            return 2 * _OFFSET_BYTES + 2 * indices + 3 * bag + row
        case _:
            raise UsageError(f"embedding: {which} has no GPU kernel")


def multiply_adds(shape: EmbeddingShape, which: Pass) -> int:
    """Returns the multiply-adds of a backward pass; 0 for the forward pass.

    Differs from the original, which ignores the remainder of a width that is not a multiple of 4.
    """
    return 0 if which == "forward" else shape.lookup_count * shape.width


def all_resident_chance(rows: int, cached_rows: int, lookups: int) -> float:
    """Returns the probability that `lookups` different rows of a table are all cached."""
    if cached_rows >= rows:
        return 1.0
    chance = 1.0
    for drawn in range(lookups):
        if cached_rows <= drawn:
            return 0.0
        chance *= (cached_rows - drawn) / (rows - drawn)
    return chance


def cold_start_hit_rate(rows: int, cached_rows: int, requests: int) -> float:
    """Returns the hit rate of uniform requests to an initially empty cache (`cold-start`)."""
    unique = rows - rows * (1.0 - 1.0 / rows) ** requests
    if unique > cached_rows:
        misses = cached_rows + (requests - cached_rows) * (rows - cached_rows) / rows
        return 1.0 - misses / requests
    return 1.0 - unique / requests


def small_row_factor(width: int) -> float:
    """Returns the empirical slow-down factor of short rows in `cold-start`."""
    if width > 64:
        return 1.0
    return 1.1 if width > 32 else 1.55


def _uncached(
    shape: EmbeddingShape, device: KernelDevice, which: Pass, options: KernelOptions
) -> LookupEstimate:
    if options.version == "curve":
        options = replace(options, table_offset_bytes=64)
    traffic = float(shape.batch * shape.tables * warp_bytes(shape, which, options))
    if options.version == "curve":
        dram_s = device.dram_time_s(traffic)
    else:
        dram_s = traffic / device.dram_bytes_per_s
    return _limited(
        {"dram": dram_s, "compute": multiply_adds(shape, which) / device.flop_per_s},
        LookupEstimate(0.0, "dram", traffic, 0.0, multiply_adds(shape, which), 0.0, 1, 0),
    )


def _resident(
    shape: EmbeddingShape, device: KernelDevice, which: Pass, options: KernelOptions
) -> LookupEstimate:
    """Either all rows of a bag or none come from the L2, at flat bandwidths."""
    at_once = _tables_at_once(shape, device, shape.rows_per_block)
    share = min(device.l2_bytes // at_once, shape.rows * shape.row_bytes)
    cached_rows = share // 4 // shape.width
    hit_rate = all_resident_chance(shape.rows, cached_rows, shape.lookups)
    # The backward pass reads and writes the rows.
    rows = shape.batch * shape.bag_row_bytes * (1 if which == "forward" else 2)
    share = min(share, rows)
    indices, row = shape.index_sector_bytes, shape.row_sector_bytes
    offsets = _OFFSET_BYTES + (32 if which == "forward" else 64)
    l2 = shape.tables * (offsets * shape.batch + hit_rate * (rows - share))
    if not options.uses_shared_memory:
        l2 += shape.tables * shape.batch * _index_readings(shape) * indices
    dram = shape.tables * (
        (indices + row) * shape.batch + (1.0 - hit_rate) * (rows - share) + share
    )
    work = multiply_adds(shape, which)
    return _limited(
        {
            "dram": dram / device.dram_bytes_per_s,
            "l2": l2 / device.l2_bytes_per_s,
            "compute": work / device.flop_per_s,
        },
        LookupEstimate(0.0, "dram", dram, l2, work, hit_rate, at_once, cached_rows),
    )


def _cold_start(
    shape: EmbeddingShape, device: KernelDevice, options: KernelOptions
) -> LookupEstimate:
    at_once = _tables_at_once(shape, device, _warps(shape, options))
    requests = shape.batch * shape.lookups
    fitting = math.floor(0.9 * device.l2_bytes / at_once / 4 / shape.width)
    cached_rows = min(fitting, shape.rows, requests)
    hit_rate = cold_start_hit_rate(shape.rows, cached_rows, requests)
    bags = shape.tables * shape.batch
    l2 = bags * hit_rate * shape.bag_row_bytes
    streamed = shape.index_sector_bytes + _OFFSET_BYTES + 64 + shape.row_sector_bytes
    dram = bags * (streamed + (1.0 - hit_rate) * shape.bag_row_bytes)
    factor = small_row_factor(shape.width)
    return _limited(
        {"dram": factor * device.dram_time_s(dram), "l2": factor * l2 / device.l2_bytes_per_s},
        LookupEstimate(0.0, "dram", dram, l2, 0, hit_rate, at_once, cached_rows),
    )


def _warps(shape: EmbeddingShape, options: KernelOptions) -> int:
    return FBGEMM_FORWARD_WARPS if options.is_fbgemm else shape.rows_per_block


def _tables_at_once(shape: EmbeddingShape, device: KernelDevice, warps: int) -> int:
    """Returns the number of tables that the running warps access, `warps` per multiprocessor."""
    return min(-(-device.core_count * warps // shape.batch), shape.tables)


def _lru(
    shape: EmbeddingShape, device: KernelDevice, which: Pass, options: KernelOptions
) -> LookupEstimate:
    """Rows hit as in an LRU cache; all traffic passes the L2, misses and streams also the DRAM."""
    at_once = _tables_at_once(shape, device, _warps(shape, options))
    capacity = 0.9 * device.l2_bytes / at_once
    bag_rows = shape.bag_row_bytes
    options = replace(options, table_offset_bytes=64)
    total = warp_bytes(shape, which, options)
    # In the backward pass one read of the rows can hit; written bytes go to DRAM later.
    streamed = total - bag_rows
    visits = TableVisits(
        options.popularity or uniform_popularity(shape.rows),
        -(-shape.tables // at_once),
        shape.batch * shape.lookups,
        shape.row_sector_bytes,
        (shape.index_sector_bytes + shape.row_sector_bytes) / shape.lookups,
    )
    hit_rate = visits.hit_rate(capacity)
    warps_total = shape.batch * shape.tables
    dram = warps_total * (streamed + (1.0 - hit_rate) * bag_rows)
    l2 = float(warps_total * total)
    work = multiply_adds(shape, which)
    return _limited(
        {
            "dram": device.dram_time_s(dram) / options.dram_share,
            "l2": l2 / device.l2_bytes_per_s / options.l2_share,
            "compute": work / device.flop_per_s,
        },
        LookupEstimate(
            0.0, "dram", dram, l2, work, hit_rate, at_once, int(capacity // shape.row_bytes)
        ),
        launch_s=options.launch_s,
    )


def _limited(
    times_s: dict[Limit, float], found: LookupEstimate, *, launch_s: float = 0.0
) -> LookupEstimate:
    limit = max(times_s, key=lambda name: times_s[name])
    busy_s = times_s[limit]
    return replace(
        found, latency_s=launch_s + busy_s, limit="launch" if launch_s > busy_s else limit
    )


def _index_readings(shape: EmbeddingShape) -> float:
    """Returns how many times a kernel without shared memory reads the indices of a bag."""
    threads = min(shape.width / 4, 1024 / shape.rows_per_block)
    return shape.width / (4 * threads)
