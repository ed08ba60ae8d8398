"""Searches for tests: TVM draws, a worker without TVM measures. Runs one as a process too."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import numpy as np

from cdmpp.errors import CdmppError
from tvm_helper.measure.options import TimingOptions
from tvm_helper.search import evolution
from tvm_helper.search.options import SearchOptions
from tvm_helper.search.progress import SearchProgress
from tvm_helper.search.run import SearchPlan, plan_search, run_search

FAKE_WORKER = (sys.executable, "-m", "tests.tvm_helper.search.fake_worker")
TASK = "matmul:m=32,n=32,k=32"


def plan(**values: Any) -> SearchPlan:
    """A small search by chance, of which nothing is predicted."""
    defaults: dict[str, Any] = {
        "device": "epyc-avx2-2c", "force": True, "task": (TASK,), "cost_model": "random",
        "trials": 8,
        "trials_per_round": 4, "population": 8, "model": "no-such-model", "search_threads": 1,
        "run_timeout_s": 20.0, "build_timeout_s": 20.0, "queue_timeout_s": 300.0,
        "timing": TimingOptions(max_repeats=5),
    }  # fmt: skip
    return plan_search(SearchOptions(**{**defaults, **values}))


@contextmanager
def few_are_drawn() -> Iterator[None]:
    """Within it what is drawn is evolved once, from a few programs."""
    with (
        patch.object(evolution, "GENERATIONS", 1),
        patch.object(evolution, "LATER_GENERATIONS", 1),
        patch.object(evolution, "LEAST_NEW", 8),
    ):
        yield


class LastFirst:
    """Predicts of the drafts of a round that what was drafted last is the fastest."""

    def latency_s(self, modules: Sequence[Any], columns: Sequence[Sequence[float]]) -> Any:
        assert len(modules) == len(columns)
        return -1.0 * np.arange(len(modules))


def search(
    folder: Path,
    *,
    least_free_bytes: int = 0,
    on_progress: Any = None,
    verify: int = 1,
    **values: Any,
) -> dict[str, Any]:
    """Runs it; little is drawn. With `verify` what is drafted last is run first."""
    planned = plan(**values)
    if verify > 1:
        options = replace(planned.options, verify=verify)
        planned = replace(planned, options=options, verifier=cast(Any, LastFirst()))
    with few_are_drawn():
        return run_search(
            planned, folder, on_progress=on_progress, command=FAKE_WORKER,
            final_command=FAKE_WORKER, least_free_bytes=least_free_bytes,
        )  # fmt: skip


def on_small_disk(folder: Path, keep: Path) -> None:
    """On a disk that has been made small: fails, then goes on when there is space again."""
    filler, out = folder / "filler", folder / "out"
    print(search(out, trials=3)["trials"])
    filler.write_bytes(b"x" * (shutil.disk_usage(folder).free - 8192))
    try:
        search(out)
    except CdmppError as error:
        print(f"{type(error).__name__}: {error}")
    filler.unlink()
    print(search(out)["trials"])
    shutil.copytree(out, keep)


def interrupted(folder: Path, stage: str) -> bool:
    """Gets Ctrl-C a little into a stage, once a round has been measured; returns whether it did."""
    timers: list[threading.Timer] = []

    def show(progress: SearchProgress) -> None:
        if progress.stage == stage and progress.trials >= 4 and not timers:
            timers.append(threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)))
            timers[0].start()

    # An interrupt that comes too late is not one of the tests themselves.
    outside = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        search(folder, on_progress=show, population=64, run_timeout_s=600.0)
    except KeyboardInterrupt:
        return True
    finally:
        for timer in timers:
            timer.join()
        signal.signal(signal.SIGINT, outside)
    return False


if __name__ == "__main__":
    if sys.argv[1] == "small-disk":
        on_small_disk(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        search(Path(sys.argv[2]), run_timeout_s=600.0, verify=int(sys.argv[3]))
