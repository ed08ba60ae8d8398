"""Extracts DATASET into OUT by BACKEND and JOBS: a process that tests kill, slow where they ask."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from cdmpp.datasets.extraction.extract import extract
from cdmpp.datasets.tenset.source import TensetRecords
from cdmpp.errors import CdmppError
from tests.datasets.tiny import fake_featurise


def featurise(task: Any, records: Any) -> list[Any]:
    """Returns `fake_featurise`, after a while, or does what the environment says."""
    with open(os.environ["PIDS"], "a") as stream:
        stream.write(f"{os.getpid()}\n")
    time.sleep(float(os.environ["PAUSE"]))
    if "CRASH" in os.environ:
        os.kill(os.getpid(), signal.SIGKILL)
    return [] if "SHORT" in os.environ else fake_featurise(task, records)


if __name__ == "__main__":
    dataset, out, backend, jobs = sys.argv[1:]
    try:
        source = TensetRecords(Path(dataset), None, featurise, shard_bytes=1)
        report = extract(source, Path(out), jobs=int(jobs), backend=backend)  # type: ignore[arg-type]
    except CdmppError as error:
        sys.exit(f"{type(error).__name__}: {error}")
    print(report.shards, report.reused, report.data_hash)
