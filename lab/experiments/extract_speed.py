"""Times extraction from record lines to Parquet.

Three kinds of data: llvm convolutions (shipped records, each also with other unroll pragmas, so
that a task has some 160 programs; full Tenset has thousands), and the shipped tenset-cpu and
ansor-gpu. Each is extracted on one core and on two, in processes of their own; the phases are
measured on one core in passes of their own.
"""

from __future__ import annotations

import gc
import gzip
import json
import os
import re
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lab.pages import sections, write_page
from lab.paths import ROOT
from lab.shell import in_process
from lab.stamp import PROGRAMS, stamp

SHIPPED = ROOT / "data" / "tenset-cpu"
ANSOR_GPU = ROOT / "data" / "ansor-gpu"
CONVOLUTION_DEVICE = "xeon-avx512-2c"
_PRAGMA = re.compile(r"auto_unroll_max_step\$\d+")
_BATCH = 64
#: Records of a device of the full Tenset.
FULL_RECORDS = 200 * 4000


def make_convolutions(out: Path, *, variants: int) -> None:
    """Writes the convolution records of one device, `variants` times with other pragmas."""
    from cdmpp.datasets.tenset.folder import ReadReport, load_tasks, read_records
    from cdmpp.datasets.tenset.operator_name import operator_name
    from cdmpp.programs.ansor.json_graph import JsonGraph

    folder = out / "measure_records" / CONVOLUTION_DEVICE
    folder.mkdir(parents=True)
    (out / "network_info").symlink_to(SHIPPED / "network_info")
    tasks = load_tasks(SHIPPED / "network_info")
    for path in sorted((SHIPPED / "measure_records" / CONVOLUTION_DEVICE).iterdir()):
        record = next(read_records(path, ReadReport()))
        task = tasks.find(record.workload_key, record.target_kind)
        if task is None or not operator_name(JsonGraph(task.dag_json)).startswith("conv2d"):
            continue
        lines = gzip.decompress(path.read_bytes()).decode().splitlines()
        with_pragma = [line for line in lines if _PRAGMA.search(line)]
        for variant in range(1, variants):
            unroll = f"auto_unroll_max_step${1024 + variant}"
            lines += [_PRAGMA.sub(unroll, line) for line in with_pragma]
        text = "\n".join(lines) + "\n"
        (folder / path.name).write_bytes(gzip.compress(text.encode(), 6))


def extract_here(source: str, folder: str, jobs: int) -> dict[str, Any]:
    """Extracts on `jobs` cores and returns counts, seconds and peak memory."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:jobs])
    dataset, out = Path(source), Path(folder)
    from cdmpp.datasets.extraction.extract import extract
    from cdmpp.datasets.tenset.source import TensetRecords
    from cdmpp.programs.featurise import featurise_records

    began = time.perf_counter()
    report = extract(TensetRecords(dataset, None, featurise_records), out, jobs=jobs)
    wall = time.perf_counter() - began
    who = resource.RUSAGE_SELF if jobs == 1 else resource.RUSAGE_CHILDREN
    usage = resource.getrusage(who)
    return {
        "records": report.read.records,
        "programs": report.programs,
        "featurised": report.featurised,
        "valid": report.valid,
        "outcomes": record_outcomes(out),
        "wall_s": wall,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "peak_mb": usage.ru_maxrss / 1024,
        "written_mb": sum(path.stat().st_size for path in out.glob("*.parquet")) / 1e6,
    }


def record_outcomes(extracted: Path) -> dict[str, dict[str, int]]:
    """Returns device -> what became of its records -> their number.

    `valid`; `flagged: REASON` = featurised, and the original toolchain rejects the program;
    `failed: REASON` = no features.
    """
    from cdmpp.datasets.extraction.extracted import read_table
    from cdmpp.datasets.extraction.program_rows import reason_group

    outcome_of: dict[str, str] = {}
    columns = ["program_id", "reject_reason", "leaf_position"]
    for table in read_table(extracted, "programs", columns):
        for row in table.to_pylist():
            reason = row["reject_reason"]
            kind = "flagged" if row["leaf_position"] else "failed"
            outcome = "valid" if reason is None else f"{kind}: {reason_group(reason)}"
            outcome_of[row["program_id"]] = outcome
    counts: dict[str, Counter[str]] = {}
    for table in read_table(extracted, "measurements", ["program_id", "device"]):
        for row in table.to_pylist():
            counts.setdefault(row["device"], Counter())[outcome_of[row["program_id"]]] += 1
    return {device: dict(count.most_common()) for device, count in sorted(counts.items())}


class Phases:
    """CPU seconds by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def time(self, name: str, work: Callable[..., Any], *arguments: Any) -> Any:
        """Calls `work` and adds what it took."""
        began = time.process_time()
        result = work(*arguments)
        self.seconds[name] = self.seconds.get(name, 0.0) + time.process_time() - began
        return result


def phases_here(source: str, folder: str) -> dict[str, Any]:
    """Does the parts of an extraction one after the other, file by file, and times each."""
    dataset, out = Path(source), Path(folder)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    import pyarrow.parquet  # noqa: F401

    from cdmpp.datasets.tenset.folder import ReadReport, find_device_files, find_devices
    from cdmpp.datasets.tenset.record_file import read_records
    from cdmpp.datasets.tenset.source import TensetRecords

    gc.set_threshold(100_000)  # as while a shard is built
    phases = Phases()
    tenset = TensetRecords(dataset)
    phases.time("tasks", tenset.tasks)
    files = [
        (label, p) for label in find_devices(dataset) for p in find_device_files(dataset, label)
    ]
    seen: set[str] = set()
    records = programs = 0
    inside = dict.fromkeys(("replay", "lower", "walk"), 0.0)
    writer = _Writer(out)
    for label, path in files:
        phases.time("gunzip", _bytes_of, path)
        found = phases.time("read and parse", list, read_records(path, ReadReport(), device=label))
        identities = phases.time("program ids", _identities, found)
        measured = phases.time("rows", _measurement_rows, found, identities)
        phases.time("write", writer.measurements.add, measured)
        new: dict[str, Any] = {}
        for identity, record in zip(identities, found, strict=True):
            if identity not in seen:
                seen.add(identity)
                new[identity] = record
        records += len(found)
        programs += len(new)
        for batch in _batches(new):
            _featurise(tenset, batch, phases, writer, inside)
    phases.time("write", writer.close)
    native = phases.seconds.pop("native")
    total = sum(inside.values())
    for name, seconds in inside.items():
        phases.seconds[name] = native * seconds / total
    rows = phases.seconds.pop("featurised rows") + phases.seconds.pop("rows")
    phases.seconds["calls and rows"] = rows - native
    gunzip = phases.seconds.pop("gunzip")
    phases.seconds["read and parse"] -= gunzip
    phases.seconds["gunzip"] = gunzip
    return {
        "records": records,
        "programs": programs,
        "seconds": phases.seconds,
    }


class _Writer:
    def __init__(self, out: Path) -> None:
        from cdmpp.datasets.extraction.schema import measurements_schema, programs_schema
        from cdmpp.datasets.extraction.shard import MEASUREMENT_ROWS, PROGRAM_ROWS, TableWriter

        out.mkdir(parents=True, exist_ok=True)
        self.programs = TableWriter(out / "programs.parquet", programs_schema(), PROGRAM_ROWS)
        self.measurements = TableWriter(
            out / "measurements.parquet", measurements_schema(), MEASUREMENT_ROWS
        )

    def close(self) -> None:
        self.programs.__exit__(None)
        self.measurements.__exit__(None)


def _bytes_of(path: Path) -> int:
    data = path.read_bytes()
    return len(gzip.decompress(data) if path.suffix == ".gz" else data)


def _identities(records: list[Any]) -> list[str]:
    from cdmpp.records import program_id_of_text

    return [
        program_id_of_text("tenset", r.workload_key, r.schedule, r.target_kind) for r in records
    ]


def _measurement_rows(records: list[Any], identities: list[str]) -> list[dict[str, Any]]:
    from cdmpp.datasets.extraction.program_rows import measurement_row

    return [measurement_row(i, record) for i, record in zip(identities, records, strict=True)]


def _batches(new: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields programs of one task, as many at a time as an extraction takes."""
    tasks: dict[tuple[str, str], dict[str, Any]] = {}
    for identity, record in new.items():
        tasks.setdefault((record.workload_key, record.target_kind), {})[identity] = record
    for group in tasks.values():
        names = list(group)
        for start in range(0, len(names), _BATCH):
            yield {name: group[name] for name in names[start : start + _BATCH]}


def _featurise(
    source: Any, batch: dict[str, Any], phases: Phases, writer: _Writer, inside: dict[str, float]
) -> None:
    """Featurises and writes a batch, and adds the native code's own clocks to `inside`."""
    from cdmpp.datasets.extraction.program_rows import program_rows
    from cdmpp.programs.featurise import native_batch, prepared_task

    records = list(batch.values())
    key = (records[0].workload_key, records[0].target_kind)
    task = source.tasks().find(*key)
    if task is not None:
        native = phases.time("task set-up", lambda: prepared_task(task.dag_json))[1]
        done = phases.time("native", lambda: native_batch(native, records))
        inside["replay"] += done.seconds["parse"] + done.seconds["replay"]
        inside["lower"] += done.seconds["lower"] + done.seconds["simplify"]
        inside["walk"] += done.seconds["features"]
    rows = phases.time(
        "featurised rows",
        lambda: program_rows(batch, source.featurise(key, records)),
    )
    phases.time("write", lambda: writer.programs.add(rows))


def measure(name: str, dataset: Path, folder: Path) -> dict[str, Any]:
    """Extracts a dataset on one core and on two, and splits the work into its phases."""
    value: dict[str, Any] = {"dataset": name}
    for jobs in (1, 2):
        out = folder / f"{name}-{jobs}"
        value[f"jobs_{jobs}"] = in_process(f"{__name__}:extract_here", dataset, out, jobs)
        shutil.rmtree(out)
    value["phases"] = in_process(f"{__name__}:phases_here", dataset, folder / f"{name}-phases")
    return value


def memory(folder: Path) -> dict[str, Any]:
    """Returns the peak memory at the shipped records of one device and at ten times as many."""
    from tests.datasets.extraction.memory_probe import measure as probe

    one, ten = (
        probe(axis="programs", scale=n, files=400, device=CONVOLUTION_DEVICE, is_real=True)
        for n in (1, 10)
    )
    return {"1x": one, "10x": ten, "ratio": ten["peak_bytes"] / one["peak_bytes"]}


def experiment(variants: int = 20) -> None:
    """Times all extractions, and writes the page and ansor-gpu: what became of those records.

    Args:
        variants: of each convolution record.
    """
    result: dict[str, Any] = {"load_before": os.getloadavg()[0], "datasets": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        convolutions = folder / "convolutions"
        make_convolutions(convolutions, variants=variants)
        places = {"llvm conv2d": convolutions, "tenset-cpu": SHIPPED, "ansor-gpu": ANSOR_GPU}
        for label, place in places.items():
            result["datasets"].append(measure(label, place, folder))
            print(label, json.dumps(result["datasets"][-1]), file=sys.stderr, flush=True)
        result["memory"] = memory(folder)
    rows = {row["dataset"]: row for row in result["datasets"]}
    speeds = [rows["llvm conv2d"][f"jobs_{n}"] for n in (1, 2)]
    minutes = [FULL_RECORDS / (run["records"] / run["wall_s"]) / 60 for run in speeds]
    result["full_tenset_device"] = {
        "from": "llvm conv2d", "minutes_1_core": minutes[0], "minutes_2_cores": minutes[1],
    }  # fmt: skip
    found = stamp("python -m lab run extract-speed", schemas=PROGRAMS)
    print(write_page("extract-speed", report_text(result, found), result, found))
    print(write_page("ansor-gpu", outcomes_text(rows["ansor-gpu"], found), {}, found))


def report_text(result: dict[str, Any], stamp: dict[str, Any]) -> str:
    """Returns the Markdown page of a result."""
    speeds = [
        "| dataset | records | programs | with features | cores | wall s | CPU s | records/s | "
        "records per CPU s | peak MB |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in result["datasets"]:
        for jobs in (1, 2):
            run = row[f"jobs_{jobs}"]
            speeds.append(
                f"| {row['dataset']} | {run['records']:,} | {run['programs']:,} | "
                f"{run['featurised']:,} | {jobs} | {run['wall_s']:.1f} | {run['cpu_s']:.1f} | "
                f"{run['records'] / run['wall_s']:,.0f} | {run['records'] / run['cpu_s']:,.0f} | "
                f"{run['peak_mb']:.0f} |"
            )
    phases = [
        "| dataset | gunzip | read, parse, check | program id | replay | lower | walk | calls and "
        "rows | write | sum | floor | tasks s | task set-up s |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in result["datasets"]:
        found = row["phases"]
        each = {name: 1e6 * s / found["records"] for name, s in found["seconds"].items()}
        names = (
            "gunzip", "read and parse", "program ids", "replay", "lower", "walk",
            "calls and rows", "write",
        )  # fmt: skip
        cells = [each[name] for name in names]
        phases.append(
            f"| {row['dataset']} | "
            + " | ".join(f"{cell:.1f}" for cell in [*cells, sum(cells)])
            + f" | {each['gunzip'] + each['write']:.1f} | {found['seconds']['tasks']:.2f} | "
            f"{found['seconds'].get('task set-up', 0.0):.2f} |"
        )
    memory, full = result["memory"], result["full_tenset_device"]
    return sections(
        "extract-speed", processor=stamp["machine"]["processor"],
        cores=str(stamp["machine"]["cores"]), load=f"{result['load_before']:.1f}",
        speeds="\n".join(speeds), phases="\n".join(phases),
        minutes_1=f"{full['minutes_1_core']:.1f}", minutes_2=f"{full['minutes_2_cores']:.1f}",
        mb_1=f"{memory['1x']['peak_bytes'] / 1e6:.0f}",
        mb_10=f"{memory['10x']['peak_bytes'] / 1e6:.0f}", ratio=f"{memory['ratio']:.2f}",
    )  # fmt: skip


def outcomes_text(row: dict[str, Any], stamp: dict[str, Any]) -> str:
    """Returns the Markdown page about what became of a dataset's records."""
    run, two = row["jobs_1"], row["jobs_2"]
    by_device: dict[str, dict[str, int]] = run["outcomes"]
    featurised = sum(
        count
        for outcomes in by_device.values()
        for name, count in outcomes.items()
        if not name.startswith("failed")
    )
    lines = [
        f"# Records of {row['dataset']}",
        "",
        f"{featurised:,} of {run['records']:,} records are featurised, "
        f"{featurised / run['records']:.2%} ({run['programs']:,} programs, {run['valid']:,} of "
        "them valid).",
        f"One core: {run['wall_s']:.1f} s, {run['peak_mb']:.0f} MB; two cores: {two['wall_s']:.1f} "
        f"s, {two['peak_mb']:.0f} MB (the largest process).",
        f"Command: `{stamp['command']}`, {stamp['machine']['processor']}.",
        "",
        "| device | what became of the record | records |",
        "|---|---|---|",
    ]
    lines += [
        f"| {device} | {name} | {count:,} |"
        for device, outcomes in by_device.items()
        for name, count in outcomes.items()
    ]
    lines += [
        "",
        "Flagged records are in the dataset with `valid` = false and the reason that the original "
        "compiler's check",
        "gives (the hardware parameters of the task); they were measured all the same, and are "
        "samples.",
        "",
    ]
    return "\n".join(lines)
