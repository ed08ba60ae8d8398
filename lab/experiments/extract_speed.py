"""Times extraction from record lines to Parquet.

Three datasets: llvm convolutions (shipped records, repeated with other unroll pragmas, so that a
task has about 160 programs; full Tenset has thousands), tenset-cpu and ansor-gpu. Each is extracted
on one core and on two, in separate processes.
"""

from __future__ import annotations

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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cdmpp.text import markdown_table
from lab.pages import sections, write_page
from lab.paths import ROOT
from lab.shell import in_process
from lab.stamp import PROGRAMS, stamp

SHIPPED = ROOT / "data" / "tenset-cpu"
ANSOR_GPU = ROOT / "data" / "ansor-gpu"
CONVOLUTION_DEVICE = "xeon-avx512-2c"
_PRAGMA = re.compile(r"auto_unroll_max_step\$\d+")


def make_convolutions(out: Path, *, variants: int) -> None:
    """Writes the convolution records of a device in `variants` versions with other pragmas."""
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
    """Extracts on `jobs` cores; returns counts, seconds and peak memory."""
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
    """Returns device -> outcome of a record -> number of records.

    `valid`; `flagged: REASON`: featurised, but the original toolchain rejects the program;
    `failed: REASON`: no features.
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


def experiment(variants: int = 20) -> None:
    """Times all extractions; writes the page and the page of outcomes of ansor-gpu's records.

    Args:
        variants: versions of each convolution record.
    """
    rows: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        convolutions = folder / "convolutions"
        make_convolutions(convolutions, variants=variants)
        places = {"llvm conv2d": convolutions, "tenset-cpu": SHIPPED, "ansor-gpu": ANSOR_GPU}
        for label, place in places.items():
            rows[label] = {}
            for jobs in (1, 2):
                out = folder / f"{label}-{jobs}"
                run = in_process(f"{__name__}:extract_here", place, out, jobs)
                rows[label][f"jobs_{jobs}"] = run
                shutil.rmtree(out)
            print(label, json.dumps(rows[label]), file=sys.stderr, flush=True)
    found = stamp("python -m lab run extract-speed", schemas=PROGRAMS)
    print(write_page("extract-speed", report_text(rows), {"datasets": rows}, found))
    print(write_page("ansor-gpu", outcomes_text("ansor-gpu", rows["ansor-gpu"], found), {}, found))


def report_text(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the Markdown page from dataset -> `jobs_1` and `jobs_2` -> measurements."""
    heads = [
        "dataset", "records", "programs", "with features", "cores", "wall s", "CPU s", "records/s",
        "records per CPU s", "peak MB",
    ]  # fmt: skip
    speeds = [
        [
            name, f"{run['records']:,}", f"{run['programs']:,}", f"{run['featurised']:,}",
            str(jobs), f"{run['wall_s']:.1f}", f"{run['cpu_s']:.1f}",
            f"{run['records'] / run['wall_s']:,.0f}", f"{run['records'] / run['cpu_s']:,.0f}",
            f"{run['peak_mb']:.0f}",
        ]
        for name, runs in rows.items()
        for jobs in (1, 2)
        for run in [runs[f"jobs_{jobs}"]]
    ]  # fmt: skip
    return sections("extract-speed", speeds=markdown_table(heads, speeds))


def outcomes_text(dataset: str, row: Mapping[str, Any], stamp: Mapping[str, Any]) -> str:
    """Returns the Markdown page of the outcomes of a dataset's records."""
    run, two = row["jobs_1"], row["jobs_2"]
    by_device: dict[str, dict[str, int]] = run["outcomes"]
    featurised = sum(
        count
        for outcomes in by_device.values()
        for name, count in outcomes.items()
        if not name.startswith("failed")
    )
    lines = [
        f"# Records of {dataset}",
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
