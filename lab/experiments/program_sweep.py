"""Checks predictions for generated tensor programs on a CPU and a GPU against bounds."""

from __future__ import annotations

import math
import random
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cdmpp.devices.spec import DeviceSpec
from cdmpp.predict.prediction import Prediction
from cdmpp.pretrained import PRETRAINED
from cdmpp.text import markdown_table, seconds_text
from lab.experiments.program_kinds import KINDS, RUNS_ON
from lab.pages import write_page
from lab.stamp import PROGRAMS, stamp
from tvm_helper.compat import Schedule
from tvm_helper.predict.predictor import Predictor
from tvm_helper.tasks.program_file import NamedProgram
from tvm_helper.tasks.script import read_script
from tvm_helper.tir.symbolic import with_sizes

DEVICES = ("epyc-avx512-1c", "a100-40gb")
#: Approximate elements of the largest buffer: 20 KB to 128 MB of float32.
ELEMENTS = (5000, 3_000_000, 1 << 25)
_UNKNOWN_BYTES_PER_S = 1e10
_LAUNCH_S = 1e-6
RIGHT = ("answered", "marked", "refused")
WRONG = ("below the bound", "outside its interval", "far above the bound", "traceback",
         "refused without need")  # fmt: skip
_LEAD = """{programs:,} generated functions, each with operations and bytes that the generator
states and no schedule saves, asked of a CPU and a GPU. An answer is below the bound where its low
end is below what these take at the peak rates (bytes beyond the caches; a CPU's clock may be 1.6
times the nominal one, its bandwidth 1.5 times). It is far above where it has no reason and is more
than 100 times what fp32 takes on the GPU at its peaks (or on the threads that there are), or 10
times one operation a cycle of the CPU; at least 1 µs, and bytes at the memory bandwidth, 10 GB/s
where that is unknown. Marked: it has a reason, or is unlike all that the model has learned."""


@dataclass(frozen=True)
class Case:
    """A generated program with the work that it needs on any device.

    Attributes:
        name: its kind, sizes and schedule.
        module: an `IRModule` with `main`.
        operations: minimum number of arithmetic operations on `dtype`.
        dtype: the narrowest type of the operands.
        moved: bytes of arguments that are read or written, each counted once.
        threads: maximum number of GPU threads.
        runs_on: kinds of devices that can run it.
    """

    name: str
    module: Any
    operations: float
    dtype: str
    moved: float
    threads: float
    runs_on: tuple[str, ...]


def least_s(case: Case, device: DeviceSpec) -> float:
    """Returns the lower bound of a program in seconds; bytes that fit into caches count as free."""
    is_gpu, fp32 = device.kind == "gpu", device.peak_fp32_flop_per_s or 0.0
    half = max(device.peak_fp16_flop_per_s or 0.0, device.peak_tensor_flop_per_s or 0.0)
    rate = {
        "float16": max(half, fp32) if half else math.inf,  # rate of a CPU's matrix units is unknown
        "int8": max(device.peak_int8_op_per_s or 0.0, 4 * fp32),
    }.get(case.dtype, fp32)
    own = 1 if is_gpu else device.core_count or 1  # caches of the second level
    cached = own * (device.l2_bytes or 0) + (device.l3_bytes or 0)
    beyond = max(case.moved - cached, 0.0)
    memory = beyond / (device.mem_bandwidth_bytes_per_s or math.inf)
    if not is_gpu:
        return max(case.operations / (1.6 * rate), memory / 1.5)
    return max(device.launch_s or _LAUNCH_S, case.operations / rate, memory)


def most_s(case: Case, device: DeviceSpec) -> float:
    """Returns seconds above which a prediction needs a reason: 100 times an fp32 program at a GPU's
    peaks, or of its threads alone; on a CPU 10 times one operation per cycle.
    """
    clock = device.clock_hz or 1e9
    rate = min(device.peak_fp32_flop_per_s or math.inf, 2 * clock * case.threads)
    rate, factor = (rate, 100.0) if device.kind == "gpu" else (clock, 10.0)
    memory = case.moved / (device.mem_bandwidth_bytes_per_s or _UNKNOWN_BYTES_PER_S)
    return factor * max(_LAUNCH_S, case.operations / rate, memory)


def outcome(case: Case, device: DeviceSpec, found: Prediction) -> str:
    """Returns the outcome of a prediction, a value of `RIGHT` or `WRONG`."""
    if found.latency_s is None or found.low_s is None or found.high_s is None:
        is_needed = device.kind not in case.runs_on or "symbolic" in (found.reason or "")
        return "refused" if is_needed else WRONG[4]
    if not found.low_s <= found.latency_s <= found.high_s or found.low_s == found.high_s:
        return WRONG[1]
    if found.low_s < 0.99 * least_s(case, device):
        return WRONG[0]
    if found.latency_s > most_s(case, device) and not found.reasons:
        return WRONG[2]
    return "marked" if found.reasons or found.is_far else "answered"


def cases(seed: int = 0, elements: Sequence[int] = ELEMENTS) -> Iterator[Case]:
    """Yields the programs of a seed; `elements`: approximate sizes of the largest buffer."""
    rng = random.Random(seed)
    for kind in KINDS:
        for about in elements:
            side = max(4, round(about ** (1 / 2)))
            k = side if kind.is_product else min(about, rng.choice((16, 100, 256, 1000, 1024)))
            m = side if kind.is_product else max(1, about // k)
            text = kind.text(m, k)
            module = read_script(text)[0].module
            for style in kind.styles:
                made = module if style.startswith("as written") else scheduled(module, style)
                if style == "as written, n given":
                    made = with_sizes(module, {"n": m})
                yield Case(
                    f"{kind.name}, {m} x {k}, {style}", made, kind.operations(m, k), kind.dtype,
                    kind.moved(m, k), kind.written(m, k) if style == "threads" else math.inf,
                    RUNS_ON[style],
                )  # fmt: skip


def scheduled(module: Any, style: str) -> Any:
    """Returns a program with a simple schedule for each block."""
    schedule = Schedule(module)
    for block in schedule.get_child_blocks(schedule.get_sblock("root")):
        loops = schedule.get_loops(block)
        kinds = [one.iter_type for one in schedule.get(block).iter_vars]
        spatial = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == 0]
        reduced = [loop for loop, kind in zip(loops, kinds, strict=True) if kind != 0]
        if style == "parallel":
            outer, inner = schedule.split(spatial[-1], [None, 8])
            schedule.reorder(*spatial[:-1], outer, *reduced, inner)
            schedule.vectorize(inner)
            schedule.parallel(schedule.fuse(*spatial[:-1], outer))
        elif style == "tiled":
            pairs = [schedule.split(loop, [None, 8]) for loop in spatial]
            schedule.reorder(*(one for one, _ in pairs), *reduced, *(one for _, one in pairs))
        else:
            blocks = schedule.fuse(*spatial)
            if style == "across threads":
                _, threads = schedule.split(reduced[-1], [None, 256])
            else:
                blocks, threads = schedule.split(blocks, [None, 128])
            schedule.bind(blocks, "blockIdx.x")
            schedule.bind(threads, "threadIdx.x")
    return schedule.mod


def experiment(seed: int = 0) -> None:
    """Writes the page."""
    predictor = Predictor("pretrained", DEVICES)
    counts, wrong, reasons, programs = ask(predictor, cases(seed))
    outcomes = [*RIGHT, *WRONG]
    rows = [[name, *(f"{counts[name, one]:,}" for one in outcomes)] for name in DEVICES]
    said = [[reason.replace("|", "/"), f"{count:,}"] for reason, count in reasons.most_common()]
    total = {one: sum(counts[name, one] for name in DEVICES) for one in outcomes}
    text = "\n\n".join([
        "# Generated tensor programs: right, marked or refused", _LEAD.format(programs=programs),
        markdown_table(["device", *outcomes], rows), "## What is wrong",
        markdown_table(["program", "device", "outcome", "said", "bound"], wrong) if wrong
        else "Nothing.",
        "## Reasons of what is marked or refused", markdown_table(["reason", "answers"], said),
    ])  # fmt: skip
    found = stamp("python -m lab run program-sweep", schemas=PROGRAMS, models=[PRETRAINED])
    print(write_page("program-sweep", text, {"programs": programs, "outcomes": total}, found))


def ask(
    predictor: Predictor, programs: Iterable[Case]
) -> tuple[Counter[tuple[str, str]], list[list[str]], Counter[str], int]:
    """Returns counts by device and outcome, rows of wrong outcomes, reasons, number of programs."""
    counts: Counter[tuple[str, str]] = Counter()
    reasons: Counter[str] = Counter()
    wrong: list[list[str]] = []
    asked = 0
    for case in programs:
        asked += 1
        try:
            answers = predictor.programs([NamedProgram(case.name, case.module)])
        except Exception:  # an unexpected error is an outcome
            last = traceback.format_exc().splitlines()[-1]
            counts[DEVICES[0], "traceback"] += 1
            wrong.append([case.name, "", "traceback", last, ""])
            continue
        for device, found in zip(predictor.devices, answers, strict=True):
            what = outcome(case, device, found)
            counts[device.name, what] += 1
            reasons.update(found.reasons[:1])
            if what in WRONG:
                bound = seconds_text(least_s(case, device))
                said = f"{found}; {found.reason or ''}"
                wrong.append([case.name, device.name, what, said, bound])
    return counts, wrong, reasons, asked
