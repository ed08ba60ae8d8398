"""Peak memory of extraction as the data grow.

Data of any size are made from the shipped records: more devices (the same programs again), or more
programs (an unroll pragma of another depth makes another program of the same task) in one file.
Each size is extracted in a process of its own.
"""

from __future__ import annotations

import gzip
import json
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tests.paths import ROOT

SHIPPED = ROOT / "data" / "tenset-cpu"
AXES = ("devices", "one-file")
_PRAGMA = re.compile(r"auto_unroll_max_step\$\d+")


def make_dataset(out: Path, *, axis: str, scale: int, files: int, device: str) -> int:
    """Writes `files` record files of a device, `scale` times along an axis; returns the lines."""
    (out / "measure_records").mkdir(parents=True)
    (out / "network_info").symlink_to(SHIPPED / "network_info")
    written = 0
    for path in sorted((SHIPPED / "measure_records" / device).iterdir())[:files]:
        lines = gzip.decompress(path.read_bytes()).decode().splitlines()
        for copy in range(scale):
            label = f"{device}-{copy}" if axis == "devices" else device
            folder = out / "measure_records" / label
            folder.mkdir(exist_ok=True)
            name = "all.json" if axis == "one-file" else path.name.removesuffix(".gz")
            with (folder / name).open("a", encoding="utf-8") as stream:
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


def extract_here(dataset: Path, out: Path) -> dict[str, int]:
    """Extracts in this process and returns the records and its peak memory in bytes."""
    from cdmpp.datasets.extraction.extract import extract
    from cdmpp.datasets.tenset.source import TensetRecords

    report = extract(TensetRecords(dataset, None, fake_featurise), out, jobs=1)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"records": report.read.records, "peak_bytes": peak}


def measure(*, axis: str, scale: int, files: int, device: str) -> dict[str, int]:
    """Makes a dataset, extracts it in a fresh process and returns what `extract_here` says."""
    with tempfile.TemporaryDirectory() as folder:
        dataset = Path(folder) / "dataset"
        make_dataset(dataset, axis=axis, scale=scale, files=files, device=device)
        command = [sys.executable, "-m", __name__, str(dataset), str(Path(folder) / "out")]
        done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    value: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return value


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    print(json.dumps(extract_here(*map(Path, sys.argv[1:]))))
