"""Mutated records through the native featuriser, compared with the Python reference.

As a script it only runs the native part (for a library compiled with sanitizers):
    python -m tests.programs.native.native_fuzz LIBRARY COUNT [GOLDEN_FILE NETWORK_INFO]...
"""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.datasets.tenset.record_line import parse_record
from cdmpp.datasets.tenset.task_index import load_tasks
from cdmpp.errors import ReplayError
from cdmpp.programs.added_columns import LEAF_EXTRA_NAMES
from cdmpp.programs.ansor.dag import Dag, parse_dag
from cdmpp.programs.compact_ast import CompactAst
from cdmpp.programs.featurise import is_gpu_kind
from cdmpp.programs.gpu_limits import GpuLimits, gpu_limits
from cdmpp.programs.native import NativeBatch, NativeTask, Status
from cdmpp.programs.native.build import library_path, load_library
from tests.fuzz.mutate import mutate_bytes
from tests.programs.ansor.fixture_records import fixture_records
from tests.programs.reference.lower import lower_record
from tests.programs.reference.rejection import gpu_violation
from tests.programs.reference.tree import compact_ast

_CODES = ("AN", "FU", "PR", "RE", "SP", "FSP", "FFSP", "SA", "CA", "CI", "CR", "CHR", "CHW", "RF")
_SCOPES = ("local", "shared", "global", "warp", "odd.scope", "")
_ODD = (None, True, False, 1.5, "1", "", [], [[]], {"a": 1}, -(2**40), 2**62, 2**80)


@dataclass(frozen=True)
class Seed:
    """A real program to be mutated."""

    dag: Dag
    steps: list[Any]
    is_gpu: bool
    limits: GpuLimits | None


def fixture_seeds() -> list[Seed]:
    """Returns the CPU programs of the test data."""
    return [Seed(record.dag, record.steps, False, None) for record in fixture_records()]


def golden_seeds(path: Path, network_info: Path, *, every: int) -> list[Seed]:
    """Returns every n-th program of a golden file."""
    index = load_tasks(network_info)
    dags: dict[str, Dag] = {}
    seeds = []
    for number, text in enumerate(golden_records(path)):
        if number % every:
            continue
        record = parse_record(text)
        task = index.find(record.workload_key, record.target_kind)
        assert task is not None
        if record.workload_key not in dags:
            dags[record.workload_key] = parse_dag(task.dag_json)
        limits = gpu_limits(record.hardware_params)
        dag, is_gpu = dags[record.workload_key], is_gpu_kind(record.target_kind)
        seeds.append(Seed(dag, list(record.steps), is_gpu, limits))
    return seeds


def golden_records(path: Path) -> Iterator[str]:
    """Yields the record lines of a golden file."""
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        for line in stream:
            value = json.loads(line)
            if "record" in value:
                yield str(value["record"])


def mutated(steps: list[Any], rng: random.Random) -> list[Any]:
    """Returns a copy of steps with a few random changes; most of them leave types alone."""
    steps = json.loads(json.dumps(steps))
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        rng.choice(_MUTATIONS)(steps, rng)
    return steps


def _change_number(steps: list[Any], rng: random.Random) -> None:
    step = rng.choice(steps) if steps else []
    places = [(step, i) for i, item in enumerate(step) if isinstance(item, int)]
    lists = [item for item in step if isinstance(item, list)]
    places += [(item, i) for item in lists for i in range(len(item))]
    if places:
        where, i = rng.choice(places)
        old = where[i] if isinstance(where[i], int) else 0
        values = (old + 1, old - 1, 0, 1, 2 * old, rng.randrange(12), rng.randrange(600), 10**12)
        where[i] = rng.choice(values)


def _change_list(steps: list[Any], rng: random.Random) -> None:
    lists = [item for step in steps for item in step if isinstance(item, list)]
    if not lists:
        return
    chosen = rng.choice(lists)
    change = rng.randrange(4)
    if change == 0:
        rng.shuffle(chosen)
    elif change == 1 and chosen:
        chosen.pop(rng.randrange(len(chosen)))
    elif change == 2:
        chosen.append(rng.randrange(8))
    else:
        chosen.clear()


def _change_order(steps: list[Any], rng: random.Random) -> None:
    if not steps:
        return
    change, i, j = rng.randrange(3), rng.randrange(len(steps)), rng.randrange(len(steps))
    if change == 0:
        steps.pop(i)
    elif change == 1:
        steps.insert(j, json.loads(json.dumps(steps[i])))
    else:
        steps[i], steps[j] = steps[j], steps[i]


def _add_step(steps: list[Any], rng: random.Random) -> None:
    stage, index = rng.randrange(12), rng.randrange(10)
    numbers = [rng.randrange(1, 9) for _ in range(rng.randrange(4))]
    step: dict[str, list[Any]] = {
        "AN": [rng.randrange(11)],
        "FU": [list(range(index, index + rng.randrange(5)))],
        "PR": [rng.choice(("auto_unroll_max_step$16", "auto_unroll_max_step", "other$1"))],
        "RE": [rng.sample(range(6), 6)],
        "SP": [64, numbers, rng.randrange(2)],
        "FSP": [rng.randrange(20), rng.randrange(5)],
        "FFSP": [[rng.randrange(20), rng.randrange(20)], rng.randrange(4), rng.randrange(2)],
        "SA": [16, 1], "CA": [rng.randrange(12), rng.randrange(10)], "CI": [], "CR": [],
        "CHR": [rng.choice(_SCOPES), numbers], "CHW": [rng.choice(_SCOPES)],
        "RF": [rng.randrange(5)],
    }  # fmt: skip
    code = rng.choice(_CODES)
    with_iterator = ("AN", "PR", "SP", "FSP", "FFSP", "SA", "RF")
    head = [code, stage, index] if code in with_iterator else [code, stage]
    steps.insert(rng.randrange(len(steps) + 1), [*head, *step[code]])


def _change_annotation(steps: list[Any], rng: random.Random) -> None:
    chosen = [step for step in steps if step[0] == "AN" and len(step) > 3]
    if chosen:
        rng.choice(chosen)[3] = rng.randrange(12)


def _change_text(steps: list[Any], rng: random.Random) -> None:
    places = [(step, i) for step in steps for i, item in enumerate(step) if isinstance(item, str)]
    if places:
        step, i = rng.choice(places)
        step[i] = rng.choice((*_CODES, *_SCOPES, "auto_unroll_max_step$64", "ZZ", "a'b", "\u00e9"))


def _change_type(steps: list[Any], rng: random.Random) -> None:
    step = rng.choice(steps) if steps else []
    if len(step) > 1:
        step[rng.randrange(1, len(step))] = rng.choice(_ODD)


def _cut(steps: list[Any], rng: random.Random) -> None:
    step = rng.choice(steps) if steps else []
    if len(step) > 1:
        step.pop()


_MUTATIONS: tuple[Callable[[list[Any], random.Random], None], ...] = (
    _change_number, _change_number, _change_number, _change_list, _change_order, _change_order,
    _add_step, _add_step, _change_annotation, _change_text, _change_type, _cut,
)  # fmt: skip


def python_outcome(seed: Seed, steps: list[Any]) -> CompactAst | str | None:
    """Returns the compact AST with the reason to reject it, an error text, or None after a crash.

    The reference lets some impossible schedules end in a built-in error.
    """
    try:
        tree = lower_record(seed.dag, steps, is_gpu=seed.is_gpu)
        ast = compact_ast(tree)
    except ReplayError as error:
        return str(error)
    except (ArithmeticError, AssertionError, LookupError, RecursionError, TypeError, ValueError):
        return None
    reason = ast.reject_reason
    if reason is None and seed.is_gpu and seed.limits is not None:
        reason = gpu_violation(tree, seed.limits)
    return CompactAst(
        ast.leaf_features, ast.leaf_extra, ast.leaf_position, ast.tree, reason is None, reason
    )


def difference(batch: NativeBatch, number: int, expected: CompactAst | str | None) -> str | None:
    """Returns how record `number` of a batch differs from the reference; None when it does not."""
    status, reason = Status(int(batch.status[number])), batch.reasons[number]
    if status == Status.DECLINED:
        return None
    if status == Status.FAILED:
        text = f"{reason}: {batch.details[number]}" if batch.details[number] else reason
        return None if text == expected else f"failure {text!r}, expected {expected!r:.200}"
    if not isinstance(expected, CompactAst):
        return f"{status.name}, expected {expected!r}"
    leaves = slice(batch.leaf_offset[number], batch.leaf_offset[number + 1])
    nodes = slice(batch.tree_offset[number], batch.tree_offset[number + 1])
    if (expected.reject_reason or "") != reason:
        return f"reason {reason!r}, expected {expected.reject_reason!r}"
    if not np.array_equal(batch.tree[nodes], expected.tree):
        return "tree"
    if not np.array_equal(batch.leaf_position[leaves], expected.leaf_position):
        return "leaf positions"
    features = batch.leaf_features[leaves]
    if not np.allclose(features, expected.leaf_features, rtol=1e-6, atol=0):
        far = ~np.isclose(features, expected.leaf_features, rtol=1e-6, atol=0)
        return f"leaf columns {sorted(set(np.argwhere(far)[:, 1].tolist()))}"
    differs = batch.leaf_extra[leaves].view(np.int32) != expected.leaf_extra.view(np.int32)
    if differs.any():
        return f"extra {[LEAF_EXTRA_NAMES[i] for i in np.flatnonzero(differs.any(axis=0))]}"
    return None


def mutations_of(
    seeds: Sequence[Seed], count: int, *, seed: int
) -> Iterator[tuple[Seed, list[list[Any]]]]:
    """Yields (program, its mutated steps), `count` mutations in all, evenly spread."""
    rng = random.Random(seed)
    for number, chosen in enumerate(seeds):
        share = count // len(seeds) + (number < count % len(seeds))
        yield chosen, [mutated(chosen.steps, rng) for _ in range(share)]


def native_batch(task: NativeTask, seed: Seed, programs: list[list[Any]]) -> NativeBatch:
    """Featurises mutated programs."""
    texts = [json.dumps(steps).encode() for steps in programs]
    count = len(texts)
    return task.featurise_steps(texts, is_gpu=[seed.is_gpu] * count, limits=[seed.limits] * count)


def sanitized_environment(folder: Path) -> tuple[Path, dict[str, str]]:
    """Returns the native library with address and undefined-behaviour sanitizers, and the variables
    of a process that loads it.

    Args:
        folder: keeps the library.

    Raises:
        NativeBuildError: there are no sanitizers here.
    """
    sanitize = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
    flags = ["-std=c++17", "-O1", "-g1", "-fPIC", "-shared", "-pthread", *sanitize]
    library = library_path(flags, cache_dirs=[folder])
    runtime = [
        subprocess.run(
            ["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in ("libasan.so", "libubsan.so", "libstdc++.so.6")
    ]
    variables = {"LD_PRELOAD": " ".join(runtime), "ASAN_OPTIONS": "detect_leaks=0"}
    return library, {**os.environ, **variables}


def main(arguments: Sequence[str]) -> None:
    """Runs mutated programs and damaged texts through a library and prints what became of them."""
    library, count = load_library(Path(arguments[0])), int(arguments[1])
    seeds = fixture_seeds()
    for golden, info in zip(arguments[2::2], arguments[3::2], strict=True):
        seeds += golden_seeds(Path(golden), Path(info), every=40)
    statuses: Counter[str] = Counter()
    rng = random.Random(1)
    for seed, programs in mutations_of(seeds, count, seed=1):
        task = NativeTask(seed.dag, library)
        batch = native_batch(task, seed, programs)
        statuses.update(Status(int(status)).name for status in batch.status)
        text = json.dumps(seed.steps).encode()
        texts = [mutate_bytes(rng, text) for _ in range(1 + count // 200)]
        few = [False] * len(texts), [None] * len(texts)
        damaged = task.featurise_steps(texts, is_gpu=few[0], limits=few[1], threads=2)
        statuses.update(f"damaged {Status(int(status)).name}" for status in damaged.status)
    print(json.dumps(dict(statuses)))


if __name__ == "__main__":
    main(sys.argv[1:])
