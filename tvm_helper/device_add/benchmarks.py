"""Micro-benchmarks of the device of this machine: memory bandwidth and float32 peak.

TVM compiles them for the label's target, and they run with the label's threads, so that the results
hold for programs of the label. They run in a separate process (`run_benchmarks`).
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DeviceError

#: Independent chains of multiply-adds per thread: enough to hide their latency, few enough to fit
#: the vector registers (16 without AVX-512).
_CHAINS = 10
_CHAINS_OF_WIDE = 20
#: A run takes about half a millisecond on a CPU: shorter than a time slice, so that some of many
#: runs are undisturbed on a shared machine.
_STEPS = 100_000
_GPU_STEPS = 100_000
_GPU_BLOCKS, _GPU_THREADS, _GPU_LANES = 4096, 256, 4
_FLOAT_BYTES = 4
_LEAST_ARRAY_BYTES = 64 << 20
_MOST_ARRAY_BYTES = 512 << 20
_ADD_REPEATS, _CHAIN_REPEATS = 60, 600
_PART_FLOATS = 1 << 19
_ROUNDS = 10
#: Plausible ranges; values outside are measurement errors. Peaks of a CPU are per thread.
_BANDWIDTHS = (5e7, 2e13)
_CPU_PEAKS = (5e7, 1e12)
_GPU_PEAKS = (1e9, 1e15)


@dataclass(frozen=True)
class Benchmarks:
    """Results of the micro-benchmarks.

    Attributes:
        bandwidth_bytes_per_s: bandwidth of c = a + b, counting all three arrays.
        peak_flop_per_s: rate of multiply-adds in registers, two operations each.
        array_bytes: size of each array.
        driver: field of `DeviceSpec` -> value of TVM's runtime, for a GPU.
    """

    bandwidth_bytes_per_s: float
    peak_flop_per_s: float
    array_bytes: int
    driver: dict[str, int] = field(default_factory=dict)


def run_benchmarks(
    spec: DeviceSpec, target: Mapping[str, Any], *, timeout_s: float = 120.0
) -> Benchmarks:
    """Runs the micro-benchmarks in a separate process with the label's threads.

    Raises:
        DeviceError: the process fails or takes too long, or a result is not plausible.
    """
    import os

    request = {
        "target": dict(target), "threads": spec.threads or 1, "simd_bits": spec.simd_bits or 128,
        "array_bytes": array_bytes(spec),
    }  # fmt: skip
    command = (sys.executable, "-m", "tvm_helper.device_add.benchmarks", json.dumps(request))
    environment = {
        **os.environ, "TVM_NUM_THREADS": str(spec.threads or 1), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=timeout_s,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise DeviceError(
            f"the micro-benchmarks of {spec.name} took longer than {timeout_s:.0f} s; stop other "
            "programs and rerun the same command"
        ) from None
    if done.returncode != 0:
        text = (done.stderr.strip().splitlines() or [f"ended with code {done.returncode}"])[-1]
        raise DeviceError(
            f"the micro-benchmarks of {spec.name} failed ({text[:200]}); expected a device that "
            f"runs code for {json.dumps(dict(target))}: check --target"
        )
    measured = Benchmarks(**json.loads(done.stdout.strip().splitlines()[-1]))
    check_plausible(measured, spec)
    return measured


def array_bytes(spec: DeviceSpec) -> int:
    """Returns the size of each of the three arrays: 4/3 of the last cache, between 64 and 512 MiB,
    and at most 1/12 of the memory.
    """
    cache = spec.l3_bytes or spec.l2_bytes or 0
    wanted = min(max(_LEAST_ARRAY_BYTES, 4 * cache // 3), _MOST_ARRAY_BYTES)
    if spec.mem_bytes:
        wanted = min(wanted, spec.mem_bytes // 12)
    unit = 1 << 16
    return max(unit, wanted // unit * unit)


def check_plausible(measured: Benchmarks, spec: DeviceSpec) -> None:
    """Checks the results against loose physical bounds.

    Raises:
        DeviceError: a result is out of bounds.
    """
    threads = (spec.threads or 1) if spec.kind == "cpu" else 1
    low, high = _CPU_PEAKS if spec.kind == "cpu" else _GPU_PEAKS
    checks = (
        ("memory bandwidth", measured.bandwidth_bytes_per_s, _BANDWIDTHS, "bytes/s"),
        ("float32 peak", measured.peak_flop_per_s, (low * threads, high * threads), "FLOP/s"),
    )
    for what, value, (least, most), unit in checks:
        if not least <= value <= most:
            raise DeviceError(
                f"{spec.name}: a {what} of {value:.3g} {unit} was measured, expected {least:.0e} "
                f"to {most:.0e}; rerun the same command on an idle machine"
            )


def benchmark(request: Mapping[str, Any]) -> Benchmarks:
    """Builds and runs both benchmarks, with the threads of this process's `TVM_NUM_THREADS`."""
    from tvm_helper.compat import Target, tvm

    target = Target(dict(request["target"]))
    is_cpu = str(target.kind.name) == "llvm"
    count = int(request["array_bytes"]) // _FLOAT_BYTES
    threads = int(request["threads"])
    if is_cpu:
        bandwidth = _cpu_bandwidth(tvm, target, count, threads)
    else:
        shapes: tuple[tuple[int, ...], ...] = ((count,),) * 3
        seconds = _seconds(tvm, _add_on_gpu(count), target, shapes, repeats=_ADD_REPEATS)
        bandwidth = 3.0 * _FLOAT_BYTES * count / seconds
    if is_cpu:
        lanes = max(4, int(request["simd_bits"]) // 32)
        chains = _CHAINS_OF_WIDE if lanes >= 16 else _CHAINS
        shapes = ((lanes,), (threads, chains, lanes))
        peak_module = _chains_on_cpu(threads, chains, lanes)
        flops = 2.0 * threads * chains * lanes * _STEPS
    else:
        total = _GPU_BLOCKS * _GPU_THREADS
        shapes = ((total,), (total, _GPU_LANES))
        peak_module = _chains_on_gpu()
        flops = 2.0 * total * _GPU_LANES * _GPU_STEPS
    peak = flops / _seconds(
        tvm, peak_module, target, shapes, repeats=_CHAIN_REPEATS if is_cpu else _ADD_REPEATS
    )
    driver = {} if is_cpu else _driver_facts(tvm.runtime.device(str(target.kind.name), 0))
    return Benchmarks(bandwidth, peak, count * _FLOAT_BYTES, driver)


def _driver_facts(device: Any) -> dict[str, int]:
    facts = {
        "core_count": device.multi_processor_count, "warp_size": device.warp_size,
        "l2_bytes": device.l2_cache_size_bytes, "mem_bytes": device.total_global_memory,
    }  # fmt: skip
    return {name: int(value) for name, value in facts.items() if value}


def _cpu_bandwidth(tvm: Any, target: Any, count: int, threads: int) -> float:
    """Returns bytes per second of adding the parts of large arrays in turn.

    A part takes a fraction of a millisecond, so the median part is undisturbed on a shared machine.
    Before a part runs again, the other parts have evicted it from the caches.
    """
    import numpy as np

    part = _PART_FLOATS * threads
    parts = max(1, count // part)
    device = tvm.runtime.cpu(0)
    add = tvm.compile(_add_on_cpu(part, threads), target=target).jit()["main"]
    arrays = [
        [tvm.runtime.tensor(np.full(part, 0.5, np.float32), device) for _ in range(3)]
        for _ in range(parts)
    ]
    seconds = []
    for _ in range(_ROUNDS):
        for one in arrays:
            started = time.perf_counter()
            add(*one)
            seconds.append(time.perf_counter() - started)
    return 3.0 * _FLOAT_BYTES * part / statistics.median(seconds[parts:])


def _seconds(
    tvm: Any, module: Any, target: Any, shapes: Sequence[tuple[int, ...]], *, repeats: int
) -> float:
    """Returns the minimum of many timings: disturbances only make a timing longer."""
    import numpy as np

    kind = str(target.kind.name)
    device = tvm.runtime.cpu(0) if kind == "llvm" else tvm.runtime.device(kind, 0)
    arguments = [tvm.runtime.tensor(np.full(shape, 0.5, np.float32), device) for shape in shapes]
    built = tvm.compile(module, target=target)
    timed = built.jit().time_evaluator("main", device, number=1, repeat=repeats)
    timed(*arguments)  # warm-up of clocks and threads
    return float(min(timed(*arguments).results))


def _add_on_cpu(count: int, threads: int) -> Any:
    schedule, (loop,) = _schedule(_add(count))
    outer, _, inner = schedule.split(loop, [threads, None, 16])
    schedule.parallel(outer)
    schedule.vectorize(inner)
    return schedule.mod


def _add_on_gpu(count: int) -> Any:
    schedule, (loop,) = _schedule(_add(count))
    block, thread, inner = schedule.split(loop, [None, _GPU_THREADS, 4])
    schedule.bind(block, "blockIdx.x")
    schedule.bind(thread, "threadIdx.x")
    schedule.vectorize(inner)
    return schedule.mod


def _add(count: int) -> Any:
    from tvm_helper.compat import te

    a = te.placeholder((count,), name="a")
    b = te.placeholder((count,), name="b")
    return te.create_prim_func([a, b, te.compute((count,), lambda i: a[i] + b[i], name="chains")])


def _schedule(function: Any) -> tuple[Any, list[Any]]:
    from tvm_helper.compat import Schedule, tvm

    schedule = Schedule(tvm.IRModule({"main": function}))
    return schedule, list(schedule.get_loops(schedule.get_sblock("chains")))


def _multiply_add() -> Any:
    """Returns the reduction s -> s * x + x: one multiply-add per step, finite for |x| < 1."""
    from tvm_helper.compat import te, tirx

    return te.comm_reducer(
        lambda s, x: s * x + x, lambda dtype: tirx.const(1.0, dtype), name="multiply_add"
    )


def _chains_on_cpu(threads: int, chains: int, lanes: int) -> Any:
    from tvm_helper.compat import te

    x = te.placeholder((lanes,), name="x")
    k = te.reduce_axis((0, _STEPS), name="k")
    fold = _multiply_add()
    shape = (threads, chains, lanes)
    out = te.compute(shape, lambda t, u, v: fold(x[v], axis=k), name="chains")
    schedule, (thread, chain, lane, step) = _schedule(te.create_prim_func([x, out]))
    block = schedule.get_sblock("chains")
    schedule.reorder(thread, step, chain, lane)
    written = schedule.cache_write(block, 0, "local")
    schedule.reverse_compute_at(written, thread)
    for one in (block, written):
        *_, outer, inner = schedule.get_loops(one)
        schedule.unroll(outer)
        schedule.vectorize(inner)
    schedule.parallel(thread)
    schedule.decompose_reduction(block, step)
    return schedule.mod


def _chains_on_gpu() -> Any:
    from tvm_helper.compat import te

    total = _GPU_BLOCKS * _GPU_THREADS
    x = te.placeholder((total,), name="x")
    k = te.reduce_axis((0, _GPU_STEPS), name="k")
    fold = _multiply_add()
    out = te.compute((total, _GPU_LANES), lambda t, u: fold(x[t], axis=k), name="chains")
    schedule, (thread, lane, step) = _schedule(te.create_prim_func([x, out]))
    block = schedule.get_sblock("chains")
    grid, local = schedule.split(thread, [None, _GPU_THREADS])
    schedule.reorder(grid, local, step, lane)
    written = schedule.cache_write(block, 0, "local")
    schedule.reverse_compute_at(written, local)
    for one in (block, written):
        *_, inner = schedule.get_loops(one)
        schedule.unroll(inner)
    schedule.bind(grid, "blockIdx.x")
    schedule.bind(local, "threadIdx.x")
    schedule.decompose_reduction(block, step)
    return schedule.mod


def main() -> None:
    """Runs `benchmark` on the request in the first argument (JSON); prints the result as JSON."""
    from dataclasses import asdict

    print(json.dumps(asdict(benchmark(json.loads(sys.argv[1])))))


if __name__ == "__main__":
    main()
