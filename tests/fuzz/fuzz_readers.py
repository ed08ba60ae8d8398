"""Throws mutated record lines, task pickles and computations at the readers.

Anything but a value or a `DataError` is a crash; a case that takes longer than the bound is a hang.
"""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

from cdmpp.datasets.autotvm.logs import autotvm_program_id, parse_autotvm_line
from cdmpp.datasets.extraction.extract import extract
from cdmpp.datasets.metaschedule.databases import Workload, parse_tuning_record
from cdmpp.datasets.read_report import ReadReport
from cdmpp.datasets.tenset.flops import flop_count
from cdmpp.datasets.tenset.operator_name import operator_name
from cdmpp.datasets.tenset.record_file import read_records
from cdmpp.datasets.tenset.record_line import parse_record
from cdmpp.datasets.tenset.source import TensetRecords
from cdmpp.datasets.tenset.task_index import TaskIndex, load_tasks
from cdmpp.errors import DataError
from cdmpp.files.restricted_pickle import load_restricted
from cdmpp.programs.ansor.json_graph import JsonGraph
from cdmpp.records import MeasureRecord, canonical_json, program_id
from tests.fuzz.bombs import PICKLE_BOMBS
from tests.fuzz.mutate import mutate_bytes, mutate_line, mutate_pickle, mutate_value
from tests.fuzz.outcome import Outcome, audited
from tests.paths import ROOT

SHIPPED = ROOT / "data" / "tenset-cpu"
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


def seed_lines(files: list[Path], *, per_file: int) -> list[str]:
    """Returns the first lines of record files."""
    lines: list[str] = []
    for path in files:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
        lines += text.splitlines()[:per_file]
    return lines


def shipped_lines() -> list[str]:
    """Returns some lines of every shipped device."""
    folders = sorted((SHIPPED / "measure_records").iterdir())
    files = [path for folder in folders for path in sorted(folder.iterdir())[:20]]
    return seed_lines(files, per_file=10)


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


def fuzz_other_lines(count: int, *, seed: int, bound_s: float = 5.0) -> Outcome:
    """Parses `count` mutated lines of AutoTVM logs and of MetaSchedule databases."""
    rng = random.Random(seed)
    outcome = Outcome()

    def read(is_autotvm: bool, case: bytes) -> str | None:
        text = case.decode("utf-8", "replace")
        if is_autotvm:
            record = parse_autotvm_line(text, device="fuzz")
            identity = autotvm_program_id(record)
        else:
            found = parse_tuning_record(text, [Workload('["1"]', 0)], device="fuzz")
            record, identity = found.record, found.program_id
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
    """Loads `count` mutated task pickles and bombs, alone and as a folder of tasks."""
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
    load_tasks(SHIPPED / "network_info")  # everything that is imported lazily has been
    with audited(outcome) as listen:

        def read() -> None:
            listen(True)
            try:
                load_restricted(path)
                load_tasks(network_info)
            finally:
                listen(False)

        for number in range(count):
            if number % 10 == 9:
                case = PICKLE_BOMBS[number // 10 % len(PICKLE_BOMBS)]
            else:
                case = mutate_pickle(rng, rng.choice(seeds), rng.choice(evils))
            path.write_bytes(case)
            outcome.run(bound_s, case, read)
            if trace.exists():
                outcome.crashed("a command was run", repr(case[:300]))
                trace.unlink()
    return outcome


def fuzz_graphs(tasks: TaskIndex, *, count: int, seed: int, bound_s: float = 20.0) -> Outcome:
    """Reads `count` mutated computations (the JSON graphs inside of the pickles)."""
    from cdmpp.programs.ansor.dag import parse_dag

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
    from cdmpp.programs.featurise import featurise_records

    rng = random.Random(seed)
    outcome = Outcome()
    dataset = folder / "dataset"
    records = dataset / "measure_records" / "fuzz"
    records.mkdir(parents=True)

    def run() -> str | None:
        report = extract(
            TensetRecords(dataset, None, featurise_records, network_info=SHIPPED / "network_info"),
            folder / "out",
            jobs=1,
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
