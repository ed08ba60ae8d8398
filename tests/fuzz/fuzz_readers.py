"""Throws mutated record lines, task pickles and computations at the readers.

    python -m tests.fuzz.fuzz_readers --lines 100000 --pickles 1000

Anything but a value or a `DataError` is a crash; a case that takes longer than the bound is a hang.
Ends with 1 when there was either, or when a pickle reached a global that is not on the list.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.paths import ROOT

if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from cdmpp.datasets.autotvm.logs import autotvm_program_id, parse_autotvm_line
from cdmpp.datasets.metaschedule.databases import Workload, parse_tuning_record
from cdmpp.datasets.read_report import ReadReport
from cdmpp.datasets.tenset.flops import flop_count
from cdmpp.datasets.tenset.json_graph import JsonGraph
from cdmpp.datasets.tenset.operator_name import operator_name
from cdmpp.datasets.tenset.record_file import read_records
from cdmpp.datasets.tenset.record_line import RecordLineError, parse_record
from cdmpp.datasets.tenset.task_index import TaskIndex, load_tasks
from cdmpp.errors import DataError
from cdmpp.files.restricted_pickle import load_restricted
from cdmpp.records import MeasureRecord, canonical_json, program_id
from tests.fuzz.mutate import (
    mutate_bytes,
    mutate_line,
    mutate_pickle,
    mutate_value,
)

SHIPPED = ROOT / "data" / "tenset-cpu"
#: Events that a pickle must never cause (see "Audit events table" of the Python manual).
FORBIDDEN_EVENTS = (
    "pickle.find_class", "os.", "subprocess.", "shutil.", "socket.", "ctypes.", "exec", "compile",
    "import", "code.__new__", "builtins.input",
)  # fmt: skip
#: Why a line whose program is fine can be refused.
_RESULT_REASONS = (
    "malformed result", "no costs", "cost is not finite", "cost is zero or negative",
)  # fmt: skip
#: Looking into the folder of tasks.
_HARMLESS_EVENTS = ("os.listdir", "os.scandir")

AUTOTVM_LINE = """
{"input": ["cuda -keys=cuda,gpu -model=x", "dense.cuda", [["TENSOR", [8, 64], "float32"],
["TENSOR", [32, 64], "float32"], null, "float32"], {}], "config": {"index": 7, "code_hash": null,
"entity": [["tile_y", "sp", [-1, 2, 4]], ["tile_k", "sp", [-1, 2]], ["unroll", "ot", 8],
["order", "re", [0, 1]], ["ann", "an", ["none", "vec"]]]},
"result": [[6.5e-05, 7e-05], 0, 1.5, 1610301343.5], "version": 0.2, "tvm_version": "0.8"}
"""
METASCHEDULE_LINE = """
[0, [[[["GetSBlock", [], ["matmul", "main"], ["b0"]], ["GetLoops", ["b0"], [], ["l1", "l2"]],
["SamplePerfectTile", ["l1"], [2, 16], ["v4", "v5"]], ["Split", ["l1", "v4", "v5"], [1, 0],
["l8", "l9"]], ["Parallel", ["l8"], [], []]], [[2, [16, 4]]]], [0.001, 0.0011],
{"keys": ["cpu"], "kind": "llvm", "mcpu": "core-avx2", "max_threads_per_block": 64,
"max_shared_memory_per_block": 49152, "tag": ""}, [["TENSOR", "float32", [64, 32]]]]]
"""


class HangError(Exception):
    """A case took longer than the bound."""


@dataclass
class Outcome:
    """What became of the cases of one kind.

    Attributes:
        accepted: cases that were read.
        rejected: reason -> cases that were refused.
        crashes: error -> cases; `example` keeps the first of each.
        hangs: cases that took longer than the bound.
        slowest_s: the slowest case.
        events: forbidden event -> how often it was seen.
    """

    accepted: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    crashes: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    hangs: int = 0
    slowest_s: float = 0.0
    events: Counter[str] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        """Number of cases."""
        return self.accepted + sum(self.rejected.values()) + sum(self.crashes.values()) + self.hangs

    @property
    def is_clean(self) -> bool:
        """Whether nothing crashed, hung or reached out."""
        return not (self.crashes or self.hangs or self.events)

    def run(self, bound_s: float, case: bytes, action: Callable[[], str | None]) -> None:
        """Runs one case; `action` returns None when it was read, else the reason it was refused."""
        began = time.perf_counter()
        try:
            with time_bound(bound_s):
                reason = action()
        except HangError:
            self.hangs += 1
            self.examples.setdefault("hang", repr(case[:300]))
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            name = f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}"
            self.crashes[name] += 1
            self.examples.setdefault(name, f"{error!r:.200} {case[:300]!r}")
        else:
            if reason is None:
                self.accepted += 1
            else:
                self.rejected[reason] += 1
        self.slowest_s = max(self.slowest_s, time.perf_counter() - began)

    def to_json(self) -> dict[str, Any]:
        """Returns the counts as JSON values."""
        return {
            "cases": self.total,
            "accepted": self.accepted,
            "rejected": dict(self.rejected.most_common()),
            "crashes": dict(self.crashes.most_common()),
            "examples": self.examples,
            "hangs": self.hangs,
            "slowest_s": round(self.slowest_s, 4),
            "forbidden_events": dict(self.events),
        }


@contextlib.contextmanager
def time_bound(seconds: float) -> Iterator[None]:
    """Raises `HangError` when the body takes longer."""

    def stop(*_: object) -> None:
        raise HangError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def seed_lines(files: list[Path], *, per_file: int) -> list[str]:
    """Returns the first lines of record files."""
    lines: list[str] = []
    for path in files:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
        lines += text.splitlines()[:per_file]
    return lines


def fuzz_lines(
    lines: list[str], folder: Path, *, count: int, seed: int, bound_s: float = 5.0
) -> Outcome:
    """Reads `count` mutated lines, each as a file of its own, and names the programs in them.

    A file with several lines after mutation is refused when any of its lines is; every line must
    be accounted for. Each file is read twice, with the fast reader of plain lines and without; the
    two must say the same.
    """
    rng = random.Random(seed)
    outcome = Outcome()
    path = folder / "case.json"

    def read(case: bytes) -> str | None:
        path.write_bytes(case)
        report, slow_report = ReadReport(), ReadReport()
        records = list(read_records(path, report, device="fuzz"))
        slowly = list(read_records(path, slow_report, device="fuzz", parse=parse_every_line))
        assert repr(records) == repr(slowly), "the two readers differ"
        assert report == slow_report, (report.to_json(), slow_report.to_json())
        for record in records:
            assert record.schedule == canonical_json(list(record.steps))
            identity = program_id(
                "tenset", record.workload_key, list(record.steps), record.target_kind
            )
            assert len(identity) == 64
            assert record.is_ok or record.error_code
            json.dumps(record.workload_key).encode()
            record.workload_key.encode("utf-8")
        counted = report.records + report.skipped_total + report.comments
        read_lines = case.count(b"\n") + (not case.endswith(b"\n")) if case else 0
        assert counted == max(1, read_lines), (counted, read_lines, report.to_json())
        if not report.skipped_total:
            return None
        return report.skipped.most_common(1)[0][0]

    for _ in range(count):
        case = mutate_line(rng, rng.choice(lines))
        outcome.run(bound_s, case, lambda case=case: read(case))  # type: ignore[misc]
    return outcome


def parse_every_line(text: str, *, device: str = "unknown", line: int = 0) -> MeasureRecord:
    """Reads a line with the reader that knows every case: no other one is asked first."""
    return parse_record(text, device=device, line=line)


def fuzz_native_lines(
    lines: list[str], tasks: TaskIndex, *, count: int, seed: int, bound_s: float = 60.0
) -> Outcome:
    """Gives `count` mutated lines to the native featuriser, 100 of one task at a time.

    A line that it takes must be one that the Python reader takes, and its program must come out as
    from the steps that Python read.
    """
    from tvm_helper.featurise import native_batch, outcomes
    from tvm_helper.native import NativeTask, Status, native_library
    from tvm_helper.records.dag import parse_dag

    library = native_library()
    assert library is not None, "there is no native code to test"
    rng = random.Random(seed)
    outcome = Outcome()
    keys = [(r.workload_key, r.target_kind) for r in map(parse_record, lines)]
    groups: dict[tuple[str, str], list[str]] = {}
    for key, line in zip(keys, lines, strict=True):
        if tasks.find(*key) is not None:
            groups.setdefault(key, []).append(line)
    natives: dict[tuple[str, str], NativeTask] = {}

    def run(key: tuple[str, str], cases: list[bytes]) -> str | None:
        task = tasks.find(*key)
        assert task is not None
        if key not in natives:
            natives[key] = NativeTask(parse_dag(task.dag_json), library)
        batch = natives[key].featurise_lines(cases)
        results = zip(cases, batch.status.tolist(), outcomes(batch), strict=True)
        for number, (case, status, result) in enumerate(results):
            if result is None:
                outcome.rejected["left to Python"] += 1
                continue
            try:
                record = parse_record(case.decode())
            except RecordLineError as error:
                # Costs are not looked at natively.
                if error.reason not in _RESULT_REASONS:
                    raise
                outcome.rejected[f"costs, which are not looked at: {error.reason}"] += 1
                continue
            (again,) = outcomes(native_batch(natives[key], [record]))
            if again is not None:
                assert repr(again) == repr(result), "lines and steps differ"
            if status == Status.FAILED:
                outcome.rejected[f"program: {batch.reasons[number]}"] += 1
            else:
                outcome.accepted += 1
        return None

    for _ in range(0, count, 100):
        key = rng.choice(list(groups))
        cases = [mutate_line(rng, rng.choice(groups[key])).replace(b"\n", b" ") for _ in range(100)]
        outcome.run(bound_s, cases[0], lambda k=key, c=cases: run(k, c))  # type: ignore[misc]
        outcome.accepted -= 1  # the batch itself is no case
    return outcome


def fuzz_other_lines(count: int, *, seed: int, bound_s: float = 5.0) -> Outcome:
    """Parses `count` mutated lines of AutoTVM logs and of MetaSchedule databases."""
    rng = random.Random(seed)
    outcome = Outcome()

    def read(is_autotvm: bool, case: bytes) -> str | None:
        text = case.decode("utf-8", "replace")
        try:
            if is_autotvm:
                record = parse_autotvm_line(text, device="fuzz")
                identity = autotvm_program_id(record)
            else:
                found = parse_tuning_record(text, [Workload('["1"]', 0)], device="fuzz")
                record, identity = found.record, found.program_id
        except RecordLineError as error:
            return error.reason
        assert len(identity) == 64
        (record.workload_key + record.target + record.target_kind).encode()
        return None

    for _ in range(count):
        is_autotvm = rng.random() < 0.5
        value = json.loads(AUTOTVM_LINE if is_autotvm else METASCHEDULE_LINE)
        for _ in range(rng.randint(1, 3)):
            value = mutate_value(rng, value)
        case = json.dumps(value).encode("utf-8", "surrogatepass")
        if rng.random() < 0.3:
            case = mutate_bytes(rng, case)
        outcome.run(bound_s, case, lambda a=is_autotvm, c=case: read(a, c))  # type: ignore[misc]
    return outcome


def fuzz_pickles(
    seeds: list[bytes], folder: Path, *, count: int, seed: int, bound_s: float = 20.0
) -> Outcome:
    """Loads `count` mutated task pickles, alone and as a folder of tasks."""
    rng = random.Random(seed)
    outcome = Outcome()
    network_info = folder / "network_info"
    network_info.mkdir(exist_ok=True)
    path = network_info / "((fuzz,[(1,2)]),llvm).task.pkl"
    trace = folder / "ran"
    command = f"touch {trace}".encode()
    evils = (
        b"cos\nsystem\n(S'" + command + b"'\ntR",
        b"\x8c\x02os\x8c\x06system\x93\x8c" + bytes([len(command)]) + command + b"\x85R",
        b"cbuiltins\neval\n(S'1'\ntR",
        b"csubprocess\nPopen\n(S'" + command + b"'\ntR",
        b"\x82\x01",
        b"Pxyz\n",
        b"q\xffr\xff\xff\xff\x7f",
    )
    listening = False

    def hear(event: str, _: tuple[Any, ...]) -> None:
        if listening and event.startswith(FORBIDDEN_EVENTS) and event not in _HARMLESS_EVENTS:
            outcome.events[event] += 1

    load_tasks(SHIPPED / "network_info")  # everything that is imported lazily has been
    sys.addaudithook(hear)

    def read() -> str | None:
        nonlocal listening
        listening = True
        try:
            load_restricted(path)
            load_tasks(network_info)
        except DataError as error:
            return _reason(str(error), path)
        finally:
            listening = False
        return None

    for _ in range(count):
        case = mutate_pickle(rng, rng.choice(seeds), rng.choice(evils))
        path.write_bytes(case)
        outcome.run(bound_s, case, read)
        if trace.exists():
            outcome.crashes["a command was run"] += 1
            trace.unlink()
    return outcome


def _reason(text: str, path: Path) -> str:
    """Returns the part of an error text that does not depend on the case."""
    text = text.replace(str(path), "").lstrip(": ")
    for known in ("refused, the pickle names the global", "not a readable task pickle"):
        if text.startswith(known):
            return known
    return " ".join("".join(" " if c.isdigit() else c for c in text).split())[:60]


def fuzz_graphs(tasks: TaskIndex, *, count: int, seed: int, bound_s: float = 20.0) -> Outcome:
    """Reads `count` mutated computations (the JSON graphs inside of the pickles)."""
    from tvm_helper.records.dag import parse_dag

    rng = random.Random(seed)
    outcome = Outcome()
    graphs = sorted((task.dag_json for task in tasks.tasks.values()), key=len)[:40]

    def read(text: str) -> str | None:
        reasons = []
        for name, action in (
            ("operator name", lambda: operator_name(JsonGraph(text))),
            ("flop count", lambda: flop_count(JsonGraph(text))),
            ("replay", lambda: parse_dag(text)),
        ):
            try:
                action()
            except DataError:
                reasons.append(name)
        return ", ".join(reasons) or None

    for _ in range(count):
        value = json.loads(rng.choice(graphs))
        for _ in range(rng.randint(1, 4)):
            value = mutate_value(rng, value)
        text = json.dumps(value)
        outcome.run(bound_s, text.encode(), lambda text=text: read(text))  # type: ignore[misc]
    return outcome


def fuzz_extraction(lines: list[str], folder: Path, *, count: int, seed: int) -> Outcome:
    """Extracts files of 100 mutated lines with the product's featuriser; every record is kept."""
    from cdmpp.datasets.extraction.extract import extract
    from tvm_helper.featurise import featurise_records

    rng = random.Random(seed)
    outcome = Outcome()
    dataset = folder / "dataset"
    records = dataset / "measure_records" / "fuzz"
    records.mkdir(parents=True)

    def run() -> str | None:
        report = extract(
            dataset,
            folder / "out",
            None,
            featurise_records,
            jobs=1,
            network_info=SHIPPED / "network_info",
        )
        assert report.measurements == report.read.records
        bugs = {r: n for r, n in report.rejected.items() if r.startswith("internal error")}
        assert not bugs, bugs
        for reason, number in report.rejected.items():
            outcome.rejected[f"program: {reason}"] += number
        for reason, number in report.read.skipped.items():
            outcome.rejected[f"line: {reason}"] += number
        outcome.accepted += report.valid - 1
        return None

    for _ in range(0, count, 100):
        cases = [mutate_line(rng, rng.choice(lines)).replace(b"\n", b" ") for _ in range(100)]
        (records / "case.json").write_bytes(b"\n".join(cases))
        outcome.run(600.0, b"", run)
    return outcome


def small_pickles() -> list[bytes]:
    """Returns the shipped task pickles below 300 KB."""
    folder = SHIPPED / "network_info"
    pickles = [gzip.decompress(path.read_bytes()) for path in sorted(folder.glob("*.task.pkl.gz"))]
    return [data for data in pickles if len(data) < 300_000]


def page(counts: dict[str, dict[str, Any]], command: str) -> str:
    """Returns the counts of all kinds as a Markdown page."""
    lines = [
        "# Fuzzing",
        "",
        f"`{command}`; a crash is anything but a value or a `DataError`, a hang a case above its "
        "time bound.",
        "`lines` are read twice, by the fast and by the full reader, which have to say the same; "
        "`native lines` that the",
        "native code takes have to be lines that Python takes and to give what their steps give; "
        "`extraction` goes from",
        "files of 100 lines to Parquet.",
        "",
        "| kind | cases | accepted | rejected | crashes | hangs | forbidden events | slowest s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for kind, value in counts.items():
        lines.append(
            f"| {kind} | {value['cases']:,} | {value['accepted']:,} | "
            f"{sum(value['rejected'].values()):,} | {sum(value['crashes'].values())} | "
            f"{value['hangs']} | {sum(value['forbidden_events'].values())} | "
            f"{value['slowest_s']:.2f} |"
        )
    for kind, value in counts.items():
        lines += ["", f"## {kind}", "", "| reason | cases |", "|---|---|"]
        lines += [f"| {reason} | {count:,} |" for reason, count in value["rejected"].items()]
    return "\n".join([*lines, ""])


def main() -> int:
    """Runs all kinds and prints their counts as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--native-lines", type=int, default=100_000, help="into the native code")
    parser.add_argument("--other-lines", type=int, default=20_000, help="AutoTVM, MetaSchedule")
    parser.add_argument("--pickles", type=int, default=1_000)
    parser.add_argument("--graphs", type=int, default=2_000)
    parser.add_argument("--extracted", type=int, default=2_000, help="lines that are featurised")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--page", type=Path, help="a Markdown file for the counts")
    parser.add_argument("--records", type=Path, nargs="*", help="more record files to mutate")
    args = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
    folders = sorted((SHIPPED / "measure_records").iterdir())
    files = [path for folder in folders for path in sorted(folder.iterdir())[:20]]
    lines = seed_lines(files + (args.records or []), per_file=10)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        results = {
            "lines": fuzz_lines(lines, folder, count=args.lines, seed=args.seed),
            "native lines": fuzz_native_lines(
                lines, load_tasks(SHIPPED / "network_info"), count=args.native_lines, seed=args.seed
            ),
            "other lines": fuzz_other_lines(args.other_lines, seed=args.seed),
            "pickles": fuzz_pickles(small_pickles(), folder, count=args.pickles, seed=args.seed),
            "graphs": fuzz_graphs(
                load_tasks(SHIPPED / "network_info"), count=args.graphs, seed=args.seed
            ),
            "extraction": fuzz_extraction(lines, folder, count=args.extracted, seed=args.seed),
        }
    counts = {kind: result.to_json() for kind, result in results.items()}
    print(json.dumps(counts, indent=1))
    if args.page:
        command = " ".join(["python", "tests/fuzz/fuzz_readers.py", *sys.argv[1:]])
        args.page.write_text(page(counts, command), encoding="utf-8")
    return 0 if all(result.is_clean for result in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
