"""Runs calls on a Ray cluster: machines with a shared file system, or the cores of this one."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from cdmpp.errors import CdmppError, DataError
from cdmpp.extras import require

Result = TypeVar("Result")

#: Number of retries of a call whose worker dies.
WORKER_DEATHS = 3
#: Calls submitted per CPU, so that no worker waits for the next one.
_CALLS_PER_CPU = 2


def run_on_ray(
    function: Callable[..., Result], calls: Sequence[tuple[Any, ...]], *, jobs: int | None
) -> Iterator[tuple[int, Result]]:
    """Yields (position in `calls`, result) as the calls finish.

    A call whose worker dies is retried up to `WORKER_DEATHS` times; a call that raises is not. A
    cluster that this process has already joined is used and left running. Otherwise `RAY_ADDRESS`
    names the cluster; without it, a cluster is started on this machine and stopped at the end.
    Until the last result is taken, stdout is redirected to stderr, because Ray reports dead
    workers on stdout.

    Args:
        function: module-level; every worker must be able to import its module.
        calls: arguments of each call; paths must be valid on every worker.
        jobs: concurrent calls (CPUs of a cluster that is started here); None = all CPUs.

    Raises:
        UsageError: Ray is not installed.
        DataError: the cluster cannot be reached, or the worker of a call died too often.
        CdmppError: raised by a call.
    """
    ray = require("ray", extra="ray", purpose="--backend ray")
    is_ours = not ray.is_initialized()
    with contextlib.redirect_stdout(sys.stderr):
        if is_ours:
            _start(ray, jobs)
        try:
            yield from _run(ray, function, calls, _in_flight(ray, jobs, is_ours=is_ours))
        finally:
            if is_ours:
                ray.shutdown()


def _in_flight(ray: Any, jobs: int | None, *, is_ours: bool) -> int:
    """Returns the number of calls to submit at a time."""
    is_sized_by_jobs = is_ours and "RAY_ADDRESS" not in os.environ
    if jobs is not None and not is_sized_by_jobs:
        return jobs
    cpus = max(1, int(ray.cluster_resources().get("CPU", 1)))
    return _CALLS_PER_CPU * cpus


def _start(ray: Any, jobs: int | None) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # sends nothing about this run
    address = os.environ.get("RAY_ADDRESS")
    here: dict[str, Any] = {} if address else {"num_cpus": jobs or os.cpu_count()}
    try:
        ray.init(
            address=address, include_dashboard=None if address else False, log_to_driver=False,
            configure_logging=False, **here,
        )  # fmt: skip
    except (ConnectionError, RuntimeError, ValueError, OSError, TimeoutError) as error:
        place = f"the Ray cluster at {address}" if address else "a Ray cluster on this machine"
        raise DataError(
            f"cannot use {place} ({' '.join(str(error).split())[:200]}); start one with: "
            "ray start --head, or leave out --backend ray"
        ) from None


def _run(
    ray: Any, function: Callable[..., Result], calls: Sequence[tuple[Any, ...]], in_flight: int
) -> Iterator[tuple[int, Result]]:
    remote = ray.remote(max_retries=WORKER_DEATHS, num_cpus=1)(function)
    waiting = iter(enumerate(calls))
    running: dict[Any, int] = {}
    done = 0
    try:
        while True:
            while len(running) < in_flight and (call := next(waiting, None)) is not None:
                running[remote.remote(*call[1])] = call[0]
            if not running:
                return
            (reference, *_), _ = ray.wait(list(running), num_returns=1)
            position = running.pop(reference)
            yield position, _result(ray, reference, done, len(calls))
            done += 1
    finally:
        for reference in running:
            ray.cancel(reference, force=True)


def _result(ray: Any, reference: Any, done: int, total: int) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, CdmppError):
            raise error.cause from None
        raise
    except ray.exceptions.RayError as error:
        raise DataError(
            f"a Ray worker died {WORKER_DEATHS + 1} times over one part, after {done} of {total} "
            f"parts ({type(error).__name__}). Finished work is kept: rerun the same command, "
            "with --backend local --jobs 1 to find the cause"
        ) from None
