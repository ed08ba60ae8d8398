"""Peak memory of extraction as the data grow.

`python -m tests.datasets.extraction.memory_probe --help`.

Data of any size are made from the shipped records: more devices (the same programs again), more
programs (an unroll pragma of another depth makes another program of the same task), more files
(the same under other names) or one file that holds everything. Each size is extracted in a process
of its own.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.paths import ROOT

SHIPPED = ROOT / "data" / "tenset-cpu"
AXES = ("devices", "programs", "files", "one-file")
_PRAGMA = re.compile(r"auto_unroll_max_step\$\d+")


def make_dataset(out: Path, *, axis: str, scale: int, files: int, device: str) -> int:
    """Writes `files` record files of a device, `scale` times along an axis; returns the lines."""
    (out / "measure_records").mkdir(parents=True)
    (out / "network_info").symlink_to(SHIPPED / "network_info")
    written = 0
    for path in sorted((SHIPPED / "measure_records" / device).iterdir())[:files]:
        lines = gzip.decompress(path.read_bytes()).decode().splitlines()
        name = path.name.removesuffix(".gz")
        for copy in range(scale):
            label = f"{device}-{copy}" if axis == "devices" else device
            folder = out / "measure_records" / label
            folder.mkdir(exist_ok=True)
            names = {"files": f"{copy}-{name}", "one-file": "all.json"}
            place = folder / names.get(axis, name)
            with place.open("a", encoding="utf-8") as stream:
                for line in lines:
                    if axis != "devices" and copy:
                        line = _PRAGMA.sub(f"auto_unroll_max_step${1000 + copy}", line)
                    stream.write(line + "\n")
                    written += 1
    return written


def fake_featurise(task: Any, records: Any) -> list[Any]:
    """Five leaves of random numbers a program, without replay."""
    from cdmpp.programs.compact_ast import CompactAst

    rng = np.random.default_rng(len(records))
    tree = np.array([0, 1, -1, 2, -1, 3, -1, 4, -1, 5, -1, -1], np.int32)
    return [
        CompactAst(
            rng.random((5, 164), dtype=np.float32),
            np.zeros((5, 0), np.float32),
            np.array([1, 3, 5, 7, 9], np.int32),
            tree,
        )
        for _ in records
    ]


def extract_here(dataset: Path, out: Path, *, is_real: bool, jobs: int) -> dict[str, Any]:
    """Extracts in this process and returns counts, seconds and its peak memory in bytes."""
    from cdmpp.datasets.extraction.extract import extract
    from cdmpp.datasets.tenset.source import TensetRecords

    featurise: Any = fake_featurise
    if is_real:
        from cdmpp.programs.featurise import featurise_records

        featurise = featurise_records
    began = time.perf_counter()
    report = extract(TensetRecords(dataset, None, featurise), out, jobs=jobs)
    who = resource.RUSAGE_SELF if jobs == 1 else resource.RUSAGE_CHILDREN
    return {
        "records": report.read.records,
        "programs": report.programs,
        "valid": report.valid,
        "seconds": round(time.perf_counter() - began, 2),
        "peak_bytes": resource.getrusage(who).ru_maxrss * 1024,
        "parent_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def measure(
    *, axis: str, scale: int, files: int, device: str, is_real: bool, jobs: int = 1
) -> dict[str, Any]:
    """Makes a dataset, extracts it in a fresh process and returns what `extract_here` says."""
    with tempfile.TemporaryDirectory() as folder:
        dataset = Path(folder) / "dataset"
        make_dataset(dataset, axis=axis, scale=scale, files=files, device=device)
        command = [
            sys.executable, "-m", "tests.datasets.extraction.memory_probe",
            "--child", str(dataset), str(Path(folder) / "out"),
            "--jobs", str(jobs), *(["--real"] if is_real else []),
        ]  # fmt: skip
        done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    value: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return value


def main() -> None:
    """Prints one line a size, and the ratio of the peaks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", nargs=2, type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--axis", choices=AXES, default="programs")
    parser.add_argument("--scales", type=int, nargs="+", default=[1, 10])
    parser.add_argument("--files", type=int, default=400, help="record files at scale 1")
    parser.add_argument("--device", default="xeon-avx512-2c")
    parser.add_argument("--real", action="store_true", help="the product's featuriser")
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(extract_here(*args.child, is_real=args.real, jobs=args.jobs)))
        return
    first = 0
    for scale in args.scales:
        value = measure(
            axis=args.axis, scale=scale, files=args.files, device=args.device, is_real=args.real,
            jobs=args.jobs,
        )  # fmt: skip
        first = first or value["peak_bytes"]
        ratio = value["peak_bytes"] / first
        print(f"{args.axis} x{scale}: {json.dumps(value)} ratio {ratio:.3f}", flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
