"""Times `torch.nn.functional.embedding_bag` on a GPU, for `cdmpp analytic embedding evaluate`.

Needs only torch. Writes one file per pass and access, `embedding-PASS-zipfS.csv`, with the columns
of `evaluate --data`: `kernel_runtime` is the median over calls of the kernels' microseconds in
torch.profiler; `all_runtime` includes every kernel of a call. Several tables are one large table,
so that one kernel serves them, as in FBGEMM. Caches are warm: other indices of the same access are
read before the timed ones.

    python -m lab.gpu_session.embedding_bag --out DIR
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import embedding_bag

#: Name of such kernels in the product.
_NAME = "batched_embedding"
_COLUMNS = (
    "kernel_name", "batch_size", "num_embeddings", "num_tables", "bag_size", "embedding_dim",
    "rows_per_block", "zipf", "kernel_runtime", "all_runtime", "calls",
)  # fmt: skip
_CALLS = 10
_SPREAD = 2_654_435_761
#: Maximum rows x width: the kernel computes offsets in the type of the indices.
_MOST_VALUES = 2**31 - 1
_MARK = "spin_kernel"


@dataclass(frozen=True)
class Point:
    """One lookup: `batch` bags of `lookups` rows from each of `tables` tables."""

    batch: int
    rows: int
    tables: int
    lookups: int
    width: int
    zipf: float
    is_backward: bool


def main() -> None:
    """Measures the grid and writes the files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--small", action="store_true", help="a few points, to try it out")
    parser.add_argument("--budget", type=float, default=25.0, help="seconds")
    args = parser.parse_args()
    began = time.perf_counter()
    rows: list[dict[str, Any]] = []
    for size, points in itertools.groupby(
        _points(args.small), lambda p: (p.rows, p.tables, p.width)
    ):
        if time.perf_counter() - began > args.budget:
            print(f"stopped before {size}: {args.budget} s are over", flush=True)
            break
        try:
            rows += _measure(list(points), args.device)
        except RuntimeError as error:
            print(f"{size}: {error}", flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    for which, zipf in itertools.product(("forward", "backward-sgd"), (0.0, 1.05)):
        own = [row for row in rows if (row["pass"], row["zipf"]) == (which, zipf)]
        with (args.out / f"embedding-{which}-zipf{zipf:g}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, _COLUMNS, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(own)
        print(f"{which} zipf {zipf:g}: {len(own)} points")
    print(f"{time.perf_counter() - began:.1f} s")


def _points(is_small: bool) -> Iterator[Point]:
    """Yields the grid, grouped by table, in a mixed order of sizes."""
    tables = [
        (rows, count, width)
        for rows, width, count in itertools.product(
            (10_000, 100_000, 1_000_000, 10_000_000), (32, 64, 128, 256), (1, 8)
        )
        if rows * count * width <= _MOST_VALUES
    ]
    # A fixed mix of sizes, so that a run that is cut short covers all sizes.
    order = sorted(range(len(tables)), key=lambda i: (i * 7919) % len(tables))
    for rows, count, width in [tables[i] for i in order][: 2 if is_small else None]:
        for zipf, batch, lookups in itertools.product((0.0, 1.05), (512, 4096), (1, 10, 50)):
            yield Point(batch, rows, count, lookups, width, zipf, False)
        for zipf, lookups in itertools.product((0.0, 1.05), (1, 20)):
            yield Point(2048, rows, count, lookups, width, zipf, True)


def _measure(points: list[Point], device: str) -> list[dict[str, Any]]:
    """Returns the rows of all points of one table."""
    first = points[0]
    table = torch.rand(first.rows * first.tables, first.width, device=device)
    timed: list[tuple[Point, list[float], list[float]]] = []
    if device == "cpu":
        for point in points:
            call = _call(table, point)
            for number in range(_CALLS):
                call(number)
            times = []
            for number in range(_CALLS, 2 * _CALLS):
                start = time.perf_counter()
                call(number)
                times.append((time.perf_counter() - start) * 1e6)
            timed.append((point, times, times))
    else:
        timed = list(_on_gpu(table, points))
    return [
        {
            "kernel_name": _NAME, "batch_size": p.batch, "num_embeddings": p.rows,
            "num_tables": p.tables, "bag_size": p.lookups, "embedding_dim": p.width,
            "rows_per_block": max(1, 256 // p.width), "zipf": p.zipf,
            "kernel_runtime": round(statistics.median(every if p.is_backward else main), 4),
            "all_runtime": round(statistics.median(every), 4), "calls": len(every),
            "pass": "backward-sgd" if p.is_backward else "forward",
        }
        for p, main, every in timed
        if every and (main or p.is_backward)
    ]  # fmt: skip


def _on_gpu(
    table: torch.Tensor, points: list[Point]
) -> Iterator[tuple[Point, list[float], list[float]]]:
    """Yields a point, microseconds of the lookup's kernel, and microseconds of all kernels."""
    from torch.autograd import DeviceType  # type: ignore[attr-defined]
    from torch.profiler import ProfilerActivity, profile

    done = []
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for point in points:
            try:
                call = _call(table, point)
                for number in range(_CALLS):
                    call(number)
                for number in range(_CALLS, 2 * _CALLS):
                    torch.cuda._sleep(100)  # type: ignore[no-untyped-call]
                    call(number)
            except RuntimeError as error:
                print(f"{point}: {error}", flush=True)
                continue
            torch.cuda._sleep(100)  # type: ignore[no-untyped-call]
            done.append(point)
            torch.cuda.synchronize()
    assert profiler.profiler is not None
    kernels = sorted(
        (e.start_ns(), e.name(), e.duration_ns() * 1e-3)
        for e in profiler.profiler.kineto_results.events()
        if e.device_type() == DeviceType.CUDA
    )
    marks = [index for index, (_, name, _) in enumerate(kernels) if _MARK in name]
    if len(marks) != len(done) * (_CALLS + 1):
        names = sorted({name for _, name, _ in kernels})
        raise RuntimeError(f"{len(marks)} marks of {len(done)} points in the profile: {names}")
    for number, point in enumerate(done):
        own = marks[number * (_CALLS + 1) : (number + 1) * (_CALLS + 1)]
        calls = [kernels[begin + 1 : end] for begin, end in itertools.pairwise(own)]
        yield (
            point,
            [sum(us for _, name, us in call if "EmbeddingBag" in name) for call in calls],
            [sum(us for _, _, us in call) for call in calls],
        )


def _call(table: torch.Tensor, point: Point) -> Callable[[int], None]:
    """Returns a function that runs call number N."""
    bags = point.batch * point.tables
    # Backward passes require 64-bit indices; the model assumes 32-bit indices for forward passes.
    kind = torch.int64 if point.is_backward else torch.int32
    drawn = _draw(2 * _CALLS * bags * point.lookups, point, table.device)
    drawn = drawn.view(2 * _CALLS, point.tables, -1)
    first = torch.arange(point.tables, device=table.device) * point.rows
    indices = (drawn + first[None, :, None]).reshape(2 * _CALLS, -1).to(kind)
    offsets = torch.arange(0, bags * point.lookups, point.lookups, dtype=kind, device=table.device)
    if not point.is_backward:

        def forward(number: int) -> None:
            with torch.inference_mode():
                embedding_bag(indices[number], table, offsets, mode="sum")

        return forward
    weight = table.detach().requires_grad_()
    gradient = torch.full((bags, point.width), 1e-3, device=table.device)
    outputs = [embedding_bag(row, weight, offsets, mode="sum", sparse=True) for row in indices]

    def backward(number: int) -> None:
        (found,) = torch.autograd.grad(outputs[number], weight, gradient, retain_graph=True)
        with torch.no_grad():
            table.add_(found, alpha=-1e-6)

    return backward


def _draw(count: int, point: Point, device: torch.device) -> torch.Tensor:
    """Returns int64 [count] rows of one table; popular rows are spread over it."""
    if point.zipf == 0.0:
        return torch.randint(0, point.rows, (count,), device=device)
    weight = torch.arange(1, point.rows + 1, dtype=torch.float64, device=device) ** -point.zipf
    cumulative = torch.cumsum(weight, 0)
    random = torch.rand(count, dtype=torch.float64, device=device) * cumulative[-1]
    rank = torch.searchsorted(cumulative, random, right=True).clamp_(max=point.rows - 1)
    step = _SPREAD % point.rows or 1
    while math.gcd(step, point.rows) != 1:
        step += 1
    return (rank * step) % point.rows


if __name__ == "__main__":
    main()
