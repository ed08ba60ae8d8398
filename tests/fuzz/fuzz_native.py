"""Mutated programs in the native code: equal to Python's verdicts, and under sanitizers.

`python -m tests.fuzz.fuzz_native LIBRARY COUNT SEED` only runs the native part and prints what
became of the programs: for a library that is compiled with sanitizers.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from cdmpp.datasets.tenset.record_line import RecordLineError, parse_record
from cdmpp.datasets.tenset.task_index import TaskIndex, load_tasks
from cdmpp.errors import ReplayError
from cdmpp.programs.ansor.dag import Dag, parse_dag
from cdmpp.programs.compact_ast import CompactAst
from cdmpp.programs.featurise import native_batch as batch_of_records
from cdmpp.programs.native import NativeTask, Status, native_library
from cdmpp.programs.native.build import load_library
from cdmpp.records import MeasureRecord
from tests.fuzz.fuzz_readers import SHIPPED, shipped_lines
from tests.fuzz.mutate import mutate_bytes, mutate_line
from tests.fuzz.outcome import Outcome
from tests.paths import ROOT
from tests.programs.native.native_fuzz import (
    difference,
    fixture_seeds,
    mutations_of,
    native_batch,
    sanitized_environment,
)
from tests.programs.reference.featurise import featurise_record

_BATCH = 100


class _Tasks:
    """The record lines of known tasks, and the computation of each."""

    def __init__(self, lines: list[str], tasks: TaskIndex) -> None:
        self.lines: dict[tuple[str, str], list[str]] = {}
        self._tasks = tasks
        self._dags: dict[tuple[str, str], Dag] = {}
        for line in lines:
            record = parse_record(line)
            key = record.workload_key, record.target_kind
            if tasks.find(*key) is not None:
                self.lines.setdefault(key, []).append(line)

    def dag(self, key: tuple[str, str]) -> Dag:
        if key not in self._dags:
            task = self._tasks.find(*key)
            assert task is not None
            self._dags[key] = parse_dag(task.dag_json)
        return self._dags[key]

    def cases(self, rng: random.Random, key: tuple[str, str]) -> list[bytes]:
        """Returns mutated lines of one task."""
        lines = self.lines[key]
        return [mutate_line(rng, rng.choice(lines)).replace(b"\n", b" ") for _ in range(_BATCH)]


def fuzz_native_lines(
    lines: list[str], tasks: TaskIndex, *, count: int, seed: int, bound_s: float = 120.0
) -> Outcome:
    """Gives the programs of `count` mutated lines to the native featuriser, 100 of one task at a
    time, and each to the Python reference.

    The native verdict, reason, tree and columns must be those of the reference (leaf columns to
    1e-6, all else to the bit).
    """
    library = native_library()
    rng = random.Random(seed)
    outcome = Outcome()
    known = _Tasks(lines, tasks)
    natives: dict[tuple[str, str], NativeTask] = {}

    def one(key: tuple[str, str], case: bytes) -> str | None:
        try:
            record = parse_record(case.decode())
        except (RecordLineError, UnicodeDecodeError) as error:
            return f"no record: {error.reason}"
        batch = batch_of_records(natives[key], [record])
        expected = _verdict(known.dag(key), record)
        different = difference(batch, 0, expected)
        assert different is None, different
        return f"program: {expected.partition(':')[0]}" if isinstance(expected, str) else None

    for _ in range(0, count, _BATCH):
        key = rng.choice(list(known.lines))
        if key not in natives:
            natives[key] = NativeTask(known.dag(key), library)
        for case in known.cases(rng, key):
            outcome.run(bound_s, case, lambda k=key, c=case: one(k, c))  # type: ignore[misc]
    return outcome


def _verdict(dag: Dag, record: MeasureRecord) -> CompactAst | str:
    """Returns what the Python reference says of a record; what it raises is a crash."""
    found = featurise_record(dag, record)
    return str(found) if isinstance(found, ReplayError) else found


def fuzz_sanitized(folder: Path, *, count: int, seed: int) -> Outcome:
    """Gives damaged texts and mutated steps to the native code under sanitizers of addresses and
    undefined behaviour, in a process of its own.

    Args:
        folder: keeps the library.
    """
    library, environment = sanitized_environment(folder)
    command = [sys.executable, "-m", "tests.fuzz.fuzz_native", str(library), str(count), str(seed)]
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    outcome = Outcome()
    if done.returncode:
        outcome.crashed(f"ended with code {done.returncode}", done.stderr[-1500:])
        return outcome
    for status, number in json.loads(done.stdout).items():
        if status in ("VALID", "REJECTED"):
            outcome.accepted += number
        else:
            outcome.rejected[status.lower()] += number
    return outcome


def _run_natively(library: Path, count: int, seed: int) -> Counter[str]:
    """Returns how often the native code said what: half of the cases are texts with changed bytes,
    half are changed steps.
    """
    loaded = load_library(library)
    rng = random.Random(seed)
    statuses: Counter[str] = Counter()
    known = _Tasks(shipped_lines(), load_tasks(SHIPPED / "network_info"))
    few: dict[str, Any] = {"is_gpu": [False] * _BATCH, "limits": [None] * _BATCH}
    for _ in range(0, count // 2, _BATCH):
        key = rng.choice(list(known.lines))
        steps = [list(parse_record(line).steps) for line in known.lines[key]]
        texts = [mutate_bytes(rng, json.dumps(rng.choice(steps)).encode()) for _ in range(_BATCH)]
        batch = NativeTask(known.dag(key), loaded).featurise_steps(texts, **few, threads=2)
        statuses.update(Status(int(status)).name for status in batch.status)
    for one, programs in mutations_of(fixture_seeds(), count - count // 2, seed=seed):
        batch = native_batch(NativeTask(one.dag, loaded), one, programs)
        statuses.update(Status(int(status)).name for status in batch.status)
    return statuses


if __name__ == "__main__":
    print(json.dumps(_run_natively(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
